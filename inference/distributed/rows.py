"""Conversion of users' rows into a source: arrays, files, loaders and functions."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from ...models.domains import Whole, read, shown
from ...models.numbers import in_words
from ...models.sparse import SparseRows
from .sources import ArrayRows, BlockRows, RowSource


def rows_of(X: Any, y: Any = None, *, columns: list[str] | None = None, num_blocks: int | None = None) -> RowSource:
    """The rows of X as a source.

    Parameters
    ----------
    X : an array [N, D] (numpy, a `numpy.memmap`, torch, scipy or torch CSR); the path of a Parquet or Arrow file, or of
        a folder of such; a `pyarrow.dataset.Dataset`; a torch DataLoader of blocks (X [n, D], y [n]), (X [n, D],) or,
        for models of sequences, (X, lengths); or a function from the number of a block, 0, 1, ..., to such a block
    y : targets [N] or [N, C] of an array; the name of the column of a file that has them, or a list of C names
    columns : of a file, the names of the features; None: all but those of y
    num_blocks : of a function, how many blocks it makes

    Raises
    ------
    FileNotFoundError    if there is no such file.
    ValueError           if a file cannot be read, lacks one of these columns or has no numbers in it, or if X is
                         none of the kinds above, such as an iterator.

    Examples
    --------
    >>> import numpy as np
    >>> [len(X) for X, y in rows_of(np.zeros((5, 2))).blocks(2)]
    [2, 2, 1]
    """
    _require_where_it_means_something(X, y, columns, num_blocks)
    if isinstance(X, RowSource):
        return X
    if isinstance(X, DataLoader):
        batches = X.batch_sampler is None or type(X.batch_sampler) is BatchSampler
        in_order = batches and isinstance(X.sampler, SequentialSampler)  # unknown for other samplers
        return BlockRows(lambda: X, "the DataLoader", in_order)
    if is_table(X):
        from .tables import TableRows

        return TableRows.of(X, y, columns)
    if callable(X):
        number = read("num_blocks", num_blocks, Whole(1))
        return BlockRows(lambda: map(X, range(number)), "the function")
    if scipy.sparse.issparse(X) or (isinstance(X, Tensor) and X.layout != torch.strided):
        X = SparseRows.of(X)
    elif not (isinstance(X, np.ndarray) or hasattr(X, "is_cuda")):  # neither a tensor nor sparse rows
        given, X = X, _read("X", X)
        if not X.ndim:  # None, or an iterator
            raise ValueError(
                f"X is {shown(given)}; expected rows [N, D], a file, a DataLoader, or a function of blocks."
            )
    return ArrayRows(X, y if y is None or hasattr(y, "ndim") else _read("y", y))


def streamed(X: Any) -> RowSource | None:
    """X as a source of rows if a fit should read it as one; None if X is an array."""
    return rows_of(X) if isinstance(X, RowSource | DataLoader) else None


def _read(name: str, values: Any) -> NDArray[Any]:
    """The values [...] as an array; ValueError, naming the argument, on nested lists of different lengths."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read as an array: {in_words(error)}.") from None


def is_table(X: Any) -> bool:
    """Whether X is the path of a file, or a dataset of pyarrow."""
    return isinstance(X, str | os.PathLike) or type(X).__module__.startswith("pyarrow")


def _require_where_it_means_something(X: Any, y: Any, columns: Any, num_blocks: Any) -> None:
    """Raise ValueError on an argument that has no meaning for this kind of X."""
    with_own = isinstance(X, RowSource | DataLoader) or callable(X)
    for name, value, means in (
        ("y", y, not with_own),
        ("columns", columns, is_table(X)),
        ("num_blocks", num_blocks, callable(X) and not isinstance(X, DataLoader)),
    ):
        if value is not None and not means:
            raise ValueError(f"{name} is {shown(value)}, but {type(X).__name__} has no use for it: leave it out.")
