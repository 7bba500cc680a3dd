"""How the ranks of a fit begin it: they agree on what they fit, or all of them refuse, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ...models.domains import shown
from ...models.labelled import coding_of, with_factor
from ...models.mixture import Mixture
from ...models.ranks import Ranks
from ...models.sums import among
from ..protocol import Model
from .rows import streamed


class Fits(Protocol):
    """A backend: what begins a fit asks of it."""

    def module_of(self, model: Model) -> Any:
        """The module with its kernel of the structure of the model."""


@contextmanager
def together(group: Any, backend: Fits, model: Model, X: Any, y: Any, files: dict[str, Any]) -> Iterator[None]:
    """A context in which a fit has the rows X [n, D] and y of each of the ranks of a group.

    Raises
    ------
    NotImplementedError    if the backend cannot fit the model so, before anything is exchanged.
    ValueError             on all ranks if one refuses its data, or if they differ in what they fit.
    """
    those = _ranks_of(group)
    _require_split(backend, model, X, files)
    _agree(those, backend, cast(Mixture, model), X, y)  # no other is served
    with among(those):
        yield


def _ranks_of(group: Any) -> Ranks:
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized() and isinstance(group, dist.ProcessGroup)):
        raise ValueError(
            f"group is {shown(group)}; expected a process group that this rank is in, such as dist.group.WORLD after "
            "dist.init_process_group()."
        )
    return Ranks(group)


def _require_split(backend: Fits, model: Model, X: Any, files: dict[str, Any]) -> None:
    """NotImplementedError on a fit that was not verified on several ranks."""
    which = f"{type(backend).__name__} of {type(model).__name__}"
    alone = getattr(backend.module_of(model), "alone", None)
    reason = "fit on one rank, without group" if alone is None else alone(backend, with_factor(model))
    given = [name for name, value in files.items() if value is not None]
    if not reason and given:
        which, reason = f"{which} with {given[0]}", f"leave {given[0]} out"
    if not reason and streamed(X) is not None:
        which, reason = f"{which} from a source of rows", "pass each rank its rows as a tensor"
    if reason:
        raise NotImplementedError(f"{which} does not run on several ranks yet; {reason}.")


def _agree(those: Ranks, backend: Fits, model: Mixture, X: Any, y: Any) -> None:
    """ValueError on all ranks unless each has rows that the model takes, and all have the same model."""
    try:
        own = _described(backend, model, X, y), ""
    except Exception as error:  # whatever a part raises on rows that it does not take
        own = {}, str(error)
    found = those.objects(own)
    for rank, (_, refusal) in enumerate(found):
        if refusal:
            raise ValueError(f"Rank {rank} of {those.size} refuses its data: {refusal}")
    first = found[0][0]
    for rank, (described, _) in enumerate(found):
        for name, value in described.items():
            if value != first[name]:
                raise ValueError(
                    f"Ranks differ in the {name}: rank 0 has {first[name]}, rank {rank} has {value}. Give all ranks "
                    "the same, each with its own rows."
                )


def _described(backend: Fits, model: Mixture, X: Any, y: Any) -> dict[str, str]:
    """What ranks must have in common, by its name; raises on rows that the model does not take."""
    rows = model.as_rows(X)
    model.likelihood.admit(rows)
    coding = coding_of(model)
    if coding is not None and y is not None:
        values = coding.values(y, rows)
        if model.classes is None:  # a rank may have one class alone, or no label
            values = torch.cat([values, values.new_tensor([0, 1])])
        with among(None):
            coding.find_classes(values, rows)
    return {
        "version of regbayes": version("regbayes"),
        "backend": repr(backend),
        "model": repr(model),
        "number of columns": str(rows.shape[1]),
        "dtype": str(rows.dtype),
        "kind of rows": "dense" if isinstance(rows, Tensor) else "sparse",
        "targets": "none" if y is None else "some",
    }
