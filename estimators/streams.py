"""Rows of estimators that need not fit into memory: what is one, the classes or the scale of its targets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from ..inference import RowSource, rows_of
from .rows import in_units


@dataclass(frozen=True)
class EncodedRows(RowSource):
    """The rows of a source, with y as a posterior sees it."""

    source: RowSource
    encode: Callable[[NDArray[Any]], NDArray[Any]]  # from y [n] to y [n]
    name: str  # of the source

    @property
    def num_rows(self) -> int:
        return self.source.num_rows

    @property
    def column_names(self) -> list[str] | None:
        return self.source.column_names

    def reads(self, path: Path) -> bool:
        return self.source.reads(path)

    def blocks(self, size: int) -> Iterator[Any]:
        return ((X, self.encode(np.asarray(y))) for X, y in self.source.blocks(size))

    def outline(self, size: int) -> Iterator[Any]:
        return ((number, self.encode(np.asarray(y))) for number, y in self.source.outline(size))


def is_source(X: Any) -> bool:
    """Whether X is a source of rows, or the path of a file that is one."""
    return isinstance(X, str | os.PathLike | RowSource | DataLoader)


def require_array(X: Any, who: object) -> None:
    """Raise ValueError on a source of rows, which an estimator does not read."""
    if is_source(X):
        raise ValueError(
            f"X is a file or another source of rows, which {type(who).__name__} does not read: pass an array. "
            "Classifier, Regressor and Clusterer read sources, in fit alone."
        )


def source_of(X: Any, y: Any, **refused: Any) -> RowSource | None:
    """The source that X is, or the file at a path, whose column of labels y names; None of an array.

    Raises
    ------
    ValueError    on what else was given, by name, that goes with arrays alone.
    """
    if not is_source(X):
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
    for y in _targets(source, "labels"):
        some = np.unique(y)
        found = np.union1d(found, some) if len(found) else some
    if not len(found):
        raise ValueError(f"{source.name} has no rows.")
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise ValueError(f"y of {source.name} has missing labels. Drop these rows.")
    if len(found) < 2:
        raise ValueError(f"y of {source.name} has only one class ({found.tolist()[0]!r}); at least two are needed.")
    return found


def moments_of(source: RowSource) -> tuple[float, float]:
    """Mean and standard deviation (1 if y is constant) of the numbers y of all rows, by two passes over these alone.

    Raises
    ------
    ValueError    if rows have none, or if they are not all finite numbers.
    """
    unit = max((float(np.abs(y).max()) for y in _numbers(source)), default=0.0)
    number, mean, squares, unit = 0, 0.0, 0.0, unit or 1.0  # whatever the units of y, its squares are finite
    for y in _numbers(source):
        some, others = y / unit, number
        number += len(y)
        step = float(some.mean()) - mean
        squares += float(np.square(some - some.mean()).sum()) + step**2 * others * len(y) / number
        mean += step * len(y) / number
    if number < 2:
        raise ValueError(f"{source.name} has {number} rows; a fit needs at least 2.")
    return in_units(mean, (squares / number) ** 0.5, unit)


def mean_squared_error(source: RowSource, predict: Callable[[Any], Any]) -> float:
    """The mean squared error of the predictions of a function from the rows X [n, D] of each block."""
    number, total = 0, 0.0
    for X, y in source.blocks(_BLOCK):
        number += X.shape[0]
        total += float(np.square(np.asarray(predict(X), dtype=np.float64) - y).sum())
    return total / number


def _numbers(source: RowSource) -> Iterator[NDArray[np.float64]]:
    """The y [n] of the blocks that have rows, as numbers."""
    for y in _targets(source, "targets"):
        if y.ndim != 1 or y.dtype.kind not in "biuf":
            raise ValueError(
                f"y of {source.name} has shape {y.shape} and type {y.dtype}; expected one column of numbers."
            )
        if not np.isfinite(y).all():
            raise ValueError(f"y of {source.name} has numbers that are missing or not finite. Drop these rows.")
        if len(y):
            yield y.astype(np.float64)


def _targets(source: RowSource, what: str) -> Iterator[NDArray[Any]]:
    """The y [n] of each block; ValueError if there is none."""
    for _, y in source.outline(_BLOCK):
        if y is None:
            raise ValueError(f"{source.name} requires y to be passed: name the column of the {what}, y=...")
        yield np.asarray(y)


_BLOCK = 2**16
