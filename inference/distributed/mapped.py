"""The values of a function for all rows of a source, block by block: in memory, or in a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.lib.format import header_data_from_array_1_0, write_array_header_1_0
from numpy.typing import NDArray
from tqdm import tqdm

from ...models.domains import Whole, read, shown
from ..running.files import partial_file, require_target
from .rows import is_table, rows_of
from .sources import RowSource, require_apart


def map_rows(
    function: Callable[[Any], Any],
    source: Any,
    to: str | os.PathLike[str] | None = None,
    *,
    batch_size: int = 4096,
    progress: bool | None = None,
) -> NDArray[Any] | None:
    """The values of a function of rows, such as `posterior.assign` or `estimator.predict`, for all rows of a source.

    Parameters
    ----------
    function : from the rows X [n, D] of a block to values [n, ...]
    source : rows, or what `rows_of` takes without further arguments. If the function is a method of an estimator that
        knows the names of its columns, as after a fit from a file, it gets the columns of these names
    to : a file to write, whole or not at all: "FILE.npy" for an array [N, ...], or "FILE.parquet" for a column by the
        name of the function, or K columns for values [N, K]; None: the values are returned
    batch_size : rows of a block, where the source has no blocks of its own
    progress : a progress bar; None: on a terminal only

    Raises
    ------
    ValueError    if `to` has another ending or is a file of the source, if there are no rows, no columns of
                  these names, or if the function does not return one value for each row, all of one width.
    OSError       if the file cannot be written to its end, as on a full disk.

    Examples
    --------
    >>> import numpy as np
    >>> map_rows(lambda X: X.sum(1), np.ones((3, 2))).tolist()
    [2.0, 2.0, 2.0]
    """
    if not callable(function):
        raise ValueError(
            f"function is {shown(function)}; expected a function of a block of rows, such as posterior.assign."
        )
    rows, size = _rows_for(function, source), read("batch_size", batch_size, Whole(1))
    target = None if to is None else require_target("to", to)
    if target is not None and target.suffix not in _WRITERS:
        raise ValueError(f"to is {str(to)!r}; expected a name that ends in {' or '.join(_WRITERS)}.")
    if target is not None:
        require_apart("to", target, rows)
    counts = type(rows).num_rows is not RowSource.num_rows  # known without a pass
    with tqdm(
        total=rows.num_rows if counts else None,
        disable=None if progress is None else not progress,
        unit="row",
        unit_scale=True,
        leave=False,
    ) as bar:
        answers = _answers(function, rows, size, bar)
        if target is None:
            return np.concatenate(list(answers))
        with partial_file(target) as partial, _writing(target):
            _WRITERS[target.suffix](partial, answers, _name_of(function))
            os.replace(partial, target)
    return None


def _rows_for(function: Callable[[Any], Any], source: Any) -> RowSource:
    """The rows of a source, with the columns that an estimator was fitted to if the function is its method."""
    names = getattr(getattr(function, "__self__", None), "feature_names_in_", None)
    if names is None:
        return rows_of(source)
    return rows_of(source, columns=list(names)) if is_table(source) else rows_of(source).named(list(names))


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """A context in which an error of writing names the file."""
    try:
        yield
    except FileNotFoundError:  # of the source
        raise
    except OSError as error:
        raise OSError(f"{str(target)!r} could not be written: {error.strerror or error}. It is as it was.") from None


def _answers(function: Callable[[Any], Any], rows: RowSource, size: int, bar: Any) -> Iterator[NDArray[Any]]:
    """The answers [n, ...] for each block in turn."""
    form: tuple[int, ...] | None = None
    for place, (X, _) in enumerate(rows.blocks(size)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")  # `_rows_for` saw to them
            number, found = X.shape[0], function(X)
        found = found.cpu().numpy() if isinstance(found, torch.Tensor) else np.asarray(found)
        form = found.shape[1:] if form is None else form
        if found.shape[:1] != (number,) or found.shape[1:] != form:
            each = f", {list(form)} as in the blocks before" if place else ""
            raise ValueError(
                f"{_name_of(function)} gives {found.shape} for the {number} rows of block {place}; expected an answer "
                f"for each{each}."
            )
        yield found
        bar.update(number)
    if form is None:
        raise ValueError(f"{rows.name} has no rows.")


def _name_of(function: Callable[[Any], Any]) -> str:
    name: str = getattr(function, "__name__", "")
    return name if name.isidentifier() else "answer"


def _write_array(path: Path, answers: Iterator[NDArray[Any]], name: str) -> None:
    """Write an array [N, ...] in numpy's format; its header is written again once N is known."""
    first, total = next(answers), 0
    header = header_data_from_array_1_0(np.ascontiguousarray(first))
    with path.open("wb") as file:
        write_array_header_1_0(file, header)
        for found in chain([first], answers):
            np.ascontiguousarray(found, dtype=first.dtype).tofile(file)
            total += len(found)
        file.seek(0)
        write_array_header_1_0(file, header | {"shape": (total, *first.shape[1:])})


def _write_table(path: Path, answers: Iterator[NDArray[Any]], name: str) -> None:
    """Write a Parquet file with one column, or with one for each column of the answers [N, K]."""
    from pyarrow.parquet import ParquetWriter

    first = next(answers)
    schema = _columns(first, name).schema
    with ParquetWriter(path, schema) as writer:
        for found in chain([first], answers):
            writer.write_table(_columns(found, name).cast(schema))


def _columns(found: NDArray[Any], name: str) -> pa.Table:
    each = {name: found} if found.ndim == 1 else {f"{name}{k}": column for k, column in enumerate(found.T)}
    return pa.table({key: pa.array(column) for key, column in each.items()})


_WRITERS = {".npy": _write_array, ".parquet": _write_table}
