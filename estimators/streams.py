"""Rows of estimators that need not fit into memory: what is one, and the classes of its labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from ..inference import RowSource, rows_of


@dataclass(frozen=True)
class CodedRows(RowSource):
    """The rows of a source, whose labels are numbered 0, 1, ... in the order of their classes."""

    source: RowSource
    classes: NDArray[Any]  # [L] sorted
    name: str  # of the source

    @property
    def num_rows(self) -> int:
        return self.source.num_rows

    def blocks(self, size: int) -> Iterator[Any]:
        return ((X, self._coded(y)) for X, y in self.source.blocks(size))

    def outline(self, size: int) -> Iterator[Any]:
        return ((number, self._coded(y)) for number, y in self.source.outline(size))

    def _coded(self, y: Any) -> NDArray[np.int64]:
        return np.searchsorted(self.classes, np.asarray(y))


def source_of(X: Any, y: Any, **refused: Any) -> RowSource | None:
    """The source that X is, or the file at a path, whose column of labels y names; None of an array.

    Raises
    ------
    ValueError    on what else was given, by name, that goes with arrays alone.
    """
    if not isinstance(X, str | os.PathLike | RowSource | DataLoader):
        return None
    for name, value in refused.items():
        if value is not None:
            raise ValueError(f"{name} goes with arrays. Leave it out of a fit from a file or another source of rows.")
    return rows_of(X, y)


def first_rows(source: RowSource) -> NDArray[Any]:
    """The rows [n, D] of the first block, dense."""
    X = next(iter(source.blocks(_BLOCK)), (np.empty((0, 0)), None))[0]
    return np.asarray(X.to_dense() if hasattr(X, "to_dense") else X)


def classes_of(source: RowSource) -> NDArray[Any]:
    """The sorted labels [L] of all rows, by a pass over these alone.

    Raises
    ------
    ValueError    if rows have none, if it is missing in some (NaN), or is the same in all.
    """
    found = np.empty(0)
    for _, y in source.outline(_BLOCK):
        if y is None:
            raise ValueError(f"{source.name} requires y to be passed: name the column of the labels, y=...")
        some = np.unique(np.asarray(y))
        found = np.union1d(found, some) if len(found) else some
    if not len(found):
        raise ValueError(f"{source.name} has no rows.")
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise ValueError(f"y of {source.name} has missing labels. Drop these rows.")
    if len(found) < 2:
        raise ValueError(f"y of {source.name} has only one class ({found.tolist()[0]!r}); at least two are needed.")
    return found


_BLOCK = 2**16
