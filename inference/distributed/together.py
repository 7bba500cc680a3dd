"""The start of a fit among ranks: all ranks agree on what they fit, or all of them raise the same error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ...models.base import with_factor
from ...models.ranks import Ranks, meeting
from ...models.sums import among
from ..protocol import Model
from ..running.files import release
from .collectives import on_all
from .rows import streamed


class Fits(Protocol):
    """The methods of a backend that the start of a fit among ranks needs."""

    def module_of(self, model: Model) -> Any:
        """The module with its kernel for the structure of the model."""

    def require_files(self, X: Any, checkpoint: Any, resume: Any) -> None:
        """Raise unless a fit to X can write and read these files."""


@contextmanager
def together(
    group: Any, backend: Fits, model: Model, X: Any, y: Any, lengths: Any, weights: tuple[Any, Any], **files: Any
) -> Iterator[None]:
    """A context in which a fit has the rows X [n, D] and y, the sequences, or the source of each rank of a group.

    Raises
    ------
    NotImplementedError    if the backend cannot fit the model among ranks.
    ValueError             on all ranks if one refuses its data or files, or if they differ in what they fit.
    RankLost               if one ends.
    """
    with meeting(group) as those, among(those):
        _require_all_split(those, backend, model, X)
        _agree(those, on_all(lambda: _described(backend, model, X, y, lengths, weights, files)))
        yield


def _require_all_split(those: Ranks, backend: Fits, model: Model, X: Any) -> None:
    """Raise the error of `_require_split`, and ValueError on a rank that has none if another has."""
    try:
        _require_split(backend, model, X)
    except NotImplementedError as error:
        those.objects(str(error))
        raise
    for rank, said in enumerate(those.objects("")):
        if said:
            raise ValueError(f"Rank {rank} of {those.size} cannot begin: {said}")


def _require_split(backend: Fits, model: Model, X: Any) -> None:
    """Raise NotImplementedError unless this fit works on several ranks."""
    which = f"{type(backend).__name__} of {type(model).__name__}"
    alone = getattr(backend.module_of(model), "alone", None)
    reason = "fit on one rank, without group" if alone is None else alone(backend, with_factor(model))
    if not reason and streamed(X) is not None and not getattr(backend.module_of(model), "splits_sources", False):
        which, reason = f"{which} from a source of rows", "pass each rank its rows as a tensor"
    if reason:
        raise NotImplementedError(f"{which} does not run on several ranks yet; {reason}.")


def _agree(those: Ranks, own: dict[str, str]) -> None:
    """Raise ValueError on all ranks unless the description `own` is the same on each."""
    first, *others = those.objects(own)
    for rank, described in enumerate(others, 1):
        for name, value in described.items():
            if value != first.get(name, value):
                raise ValueError(
                    f"Ranks differ in the {name}: rank 0 has {first[name]}, rank {rank} has {value}. Give all ranks "
                    "the same, each with its own rows."
                )


def _described(
    backend: Fits, model: Model, X: Any, y: Any, lengths: Any, weights: tuple[Any, Any], files: dict[str, Any]
) -> dict[str, str]:
    """The properties that ranks must have in common, by name; raises on rows or files that a fit cannot use."""
    backend.require_files(X, **files)
    names: list[str] = []
    if (source := streamed(X)) is not None:
        names = source.column_names or names
        X, y = next(iter(source.blocks(_FEW)), (None, y))
        if X is None:
            raise ValueError(f"X gives no rows ({source.name}).")
    rows, values = cast(Any, model).admit(X, y, lengths)
    return {
        "version of regbayes": release,
        "version of torch": torch.__version__,
        "backend": repr(backend),
        "model": _ADDRESS.sub("", repr(model)),  # of a function for a feature map
        "number of columns": str(rows.shape[1]),
        **{f"name of column {place}": repr(name) for place, name in enumerate(names)},
        "dtype": str(rows.dtype),
        "kind of rows": "dense" if isinstance(rows, Tensor) else "sparse",
        "targets": "none" if y is None else str([1, *(values.shape[1:] if values is not None else [])]),
        **{name: _told(values) for name, values in zip(("sample_weight", "loss_weight"), weights, strict=True)},
        **{name: str(path) for name, path in files.items()},
    }


def _told(values: Any) -> str:
    return "none" if values is None else "a weight for each row"


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_FEW = 1000  # rows of a source that are used for the comparison
