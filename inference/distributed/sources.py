"""Rows that need not fit into memory: one interface to arrays, files, loaders and functions.

A fit or a prediction reads a source block by block, as often as it needs to, and keeps no block. So its memory does not
grow with the number of rows.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Block = tuple[Any, Any]
"""Rows X [n, D], and their y [n] or label sets [n, C], or the lengths of the sequences that they are; None without."""


class RowSource(ABC):
    """Rows that are read anew at each use, the same ones in each pass (a shuffled order may change).

    For rows of any other kind, derive a class from it and write `blocks`; a fit also asks for `outline`, which follows
    from `blocks`.
    """

    name: str  # for messages
    in_order: bool = True  # whether all passes have the same order, so that a fit can be resumed from its checkpoint

    @property
    def num_rows(self) -> int:
        """N, by a pass over the rows if it is not known otherwise."""
        return sum(number for number, _ in self.outline(_BLOCK))

    @property
    def column_names(self) -> list[str] | None:
        """The names of the columns of X [D]; None if they have no names."""
        return None

    def reads(self, path: Path) -> bool:
        """Whether writing a file at this path (links resolved) would change the rows."""
        return False

    def named(self, columns: list[str]) -> RowSource:
        """The rows with the columns of these names [D] alone, and without y; itself if its columns have no names.

        Raises
        ------
        ValueError    if there is no such column.
        """
        return self

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        """TypeError: a source is read block by block."""
        raise TypeError("a source of rows is read block by block: use map_rows(posterior.predict, X)")

    @abstractmethod
    def blocks(self, size: int) -> Iterator[Block]:
        """All rows in blocks of `size`, the last one smaller; a source that comes in its own blocks keeps these."""

    def outline(self, size: int) -> Iterator[tuple[int, Any]]:
        """The number of rows of each block, and their y alone: read by itself where that is quicker."""
        return ((X.shape[0], y) for X, y in self.blocks(size))


@dataclass(frozen=True)
class ArrayRows(RowSource):
    """Rows of an array [N, D], of whichever kind: a `numpy.memmap` is read from disk as its blocks are."""

    X: Any
    y: Any = None
    name: str = "the array"

    def __post_init__(self) -> None:
        if self.y is not None and len(self.y) != self.num_rows:
            raise ValueError(f"y has {len(self.y)} entries, but X has {self.num_rows} rows. Give one for each row.")

    @property
    def num_rows(self) -> int:
        return int(self.X.shape[0])

    def reads(self, path: Path) -> bool:
        files = [getattr(each, "filename", None) for each in (self.X, self.y)]  # of `numpy.memmap`
        return path in [Path(os.path.realpath(file)) for file in files if file is not None]

    def blocks(self, size: int) -> Iterator[Block]:
        return ((self.X[rows], None if self.y is None else self.y[rows]) for rows in self._slices(size))

    def outline(self, size: int) -> Iterator[tuple[int, Any]]:
        for rows in self._slices(size):
            yield min(rows.stop, self.num_rows) - rows.start, None if self.y is None else self.y[rows]

    def _slices(self, size: int) -> Iterator[slice]:
        return (slice(start, start + size) for start in range(0, self.num_rows, size))


@dataclass(frozen=True)
class BlockRows(RowSource):
    """Blocks (X, y), or X alone, from a loader or any other iterable."""

    each: Callable[[], Iterable[Any]]  # returns the blocks of a pass
    name: str = "the source"
    in_order: bool = True

    def blocks(self, size: int) -> Iterator[Block]:
        for block in self.each():
            X, *others = block if isinstance(block, tuple | list) else (block,)
            yield X, others[0] if others else None


def require_apart(name: str, path: Path, source: RowSource) -> None:
    """Raise ValueError if a file to write, an argument of this name, is one that the source reads."""
    if source.reads(path):
        raise ValueError(
            f"{name} is {str(path)!r}, where {source.name} is read; writing would lose rows. Name another."
        )


def cut(parts: Iterable[Block], size: int) -> Iterator[Block]:
    """Blocks of `size` rows, and a last one with the rest, from numpy parts of any length."""
    kept, missing = list[Block](), size
    for X, y in parts:
        start = 0
        while start < len(X):
            some = slice(start, start + missing)
            kept.append((X[some], None if y is None else y[some]))
            start, missing = start + missing, missing - len(kept[-1][0])
            if not missing:
                yield _joined(kept)
                kept, missing = [], size
    if kept:
        yield _joined(kept)


def _joined(parts: list[Block]) -> Block:
    if len(parts) == 1:
        return parts[0]
    rows, targets = zip(*parts, strict=True)
    return np.concatenate(rows), None if targets[0] is None else np.concatenate(targets)


_BLOCK = 8192
