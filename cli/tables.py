"""Tables with a header: columns of numbers, labels or dates, with errors that name the row and the column."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .errors import CommandError, cut
from .ranks import rank
from .sources import Source, TextSource, source_of


@dataclass(frozen=True)
class Table:
    """A file whose rows are read anew at each use, so that a large table is never in memory as a whole."""

    source: Source
    path: str  # as messages name it
    header: list[str]  # the names of all columns
    dropped: list[str]  # the names of the columns that are left out
    num_rows: int

    @property
    def names(self) -> list[str]:
        """The names of the columns that are not dropped."""
        return [name for name in self.header if name not in self.dropped]

    @cached_property
    def own(self) -> Table:
        """The rows that this rank reads: all without torchrun."""
        if rank()[1] == 1:
            return self
        source = self.source.own()
        return replace(self, source=source, num_rows=source.span.stop - source.span.start)

    def rows(self) -> Iterator[list[str]]:
        """The cells of every row as text."""
        for _, batch in self._batches(self.header):
            yield from map(list, zip(*(_as_text(cells).to_pylist() for cells in batch.columns), strict=True))

    def place(self, row: int, name: str) -> str:
        """The position of a cell, in words for messages; rows are counted from 0."""
        return f"{self.path}, {self.source.place(row)}, column {name!r}"

    def column(self, name: str) -> NDArray[Any]:
        """The cells [N] of one column as text; equal cells are one object.

        Raises
        ------
        CommandError    if there is no such column, or one of its cells is empty.
        """
        self.require(name)
        found, seen = np.empty(self.num_rows, dtype=object), dict[str, str]()
        for start, batch in self._batches([name]):
            coded = _as_text(batch.column(0)).dictionary_encode()
            words = np.array([seen.setdefault(word, word) for word in coded.dictionary.to_pylist()], dtype=object)
            found[start : start + len(batch)] = words[coded.indices.to_numpy()] if len(batch) else []
        if (empty := np.flatnonzero(found == "")).size:
            raise CommandError(f"{self.place(empty[0], name)} is empty. Fill the cell or drop the row.")
        return found

    def numbers(self, names: list[str], *, missing_rows: bool = False) -> NDArray[np.float64]:
        """The cells [N, D] of some columns, which must be finite numbers.

        With `missing_rows` a row may have all its cells empty or "nan"; it is then NaN.
        """
        values = np.empty((self.num_rows, len(names)))
        for start, block, _ in self.number_blocks(names, missing_rows=missing_rows):
            values[start : start + len(block)] = block
        return values

    def number_blocks(
        self, names: list[str], *, missing_rows: bool = False, beside: str | None = None
    ) -> Iterator[tuple[int, NDArray[np.float64], list[str]]]:
        """As `numbers`, in blocks: first row's index, numbers [n, D], and cells [n] of the column `beside` as text."""
        for start, batch, block in self._blocks(names, beside):
            for row in np.flatnonzero(~np.isfinite(block).all(1)).tolist():
                cells = [_as_text(column.slice(row, 1))[0].as_py() for column in batch.columns[: len(names)]]
                if not (missing_rows and all(map(is_missing, cells))):
                    raise self._not_finite(start + row, cells, names)
                block[row] = math.nan
            yield start, block, [] if beside is None else _as_text(batch.column(len(names))).to_pylist()

    def cell_blocks(self, name: str) -> Iterator[list[str]]:
        """The cells of one column as text, some rows at a time; CommandError if there is no such column."""
        self.require(name)
        for _, batch in self._batches([name]):
            yield _as_text(batch.column(0)).to_pylist()

    def bits(self, names: list[str]) -> NDArray[np.int64]:
        """The cells [N, C] of some columns, each of which must be 0 or 1.

        Raises
        ------
        CommandError    if there is no such column, or one of its cells is empty or neither.
        """
        found = np.empty((self.num_rows, len(names)), dtype=np.int64)
        for start, batch, block in self._blocks(names):
            wrong = ~np.isin(block, (0, 1))
            if wrong.any():
                row, place = np.argwhere(wrong)[0].tolist()
                cell = _as_text(batch.column(place))[row].as_py()
                said = f"{cut(cell)} is a missing label" if is_missing(cell) else f"{cut(cell)} is no label"
                raise CommandError(
                    f"{self.place(start + row, names[place])}: {said}. Expected 0 or 1 in every row; fix the "
                    "cell, or drop the row."
                )
            found[start : start + len(block)] = block
        return found

    def times(self, name: str) -> NDArray[np.float64]:
        """The cells [N] of a column of numbers, or of dates: then as seconds since 1970, in UTC unless they say more.

        Raises
        ------
        CommandError    if a cell is neither a number nor an ISO date, or unlike the first one.
        """
        cells = self.column(name)
        if _is_number(cells[0]):
            return self.numbers([name])[:, 0]
        seconds = np.array([_seconds(cell) for cell in cells])
        if (wrong := np.flatnonzero(np.isnan(seconds))).size:
            raise CommandError(
                f"{self.place(wrong[0], name)}: {cut(cells[wrong[0]])} is no ISO date. "
                "Expected numbers throughout, or dates such as 2024-01-31 or 2024-01-31T12:30."
            )
        return seconds

    def require(self, name: str) -> None:
        """Raise CommandError if a column does not exist or is dropped."""
        if name in self.dropped:
            raise CommandError(f"column {name!r} of {self.path} is left out by --drop, but it is needed.")
        if name not in self.header:
            raise CommandError(f"{self.path} has no column {name!r}; its columns are {listed(self.names)}.")

    def _blocks(
        self, names: list[str], beside: str | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch, NDArray[np.float64]]]:
        """Blocks of rows: the index of the first, the cells, with `beside` last, and the numbers of `names` or NaN."""
        for name in names:
            self.require(name)
        for start, batch in self._batches([*names, *([] if beside is None else [beside])]):
            numbers = [_as_numbers(cells) for cells in batch.columns[: len(names)]]
            yield start, batch, np.stack(numbers, axis=1)

    def _batches(self, names: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        start = 0
        for batch in self.source.batches(names):
            if start + len(batch) <= self.num_rows:
                yield start, batch
            start += len(batch)
        if start != self.num_rows:
            raise CommandError(f"{self.path} has changed while it was read. Try again.")

    def _not_finite(self, row: int, cells: list[str], names: list[str]) -> CommandError:
        """The error for a row whose cells are not all finite numbers."""
        wrong = [name for name, cell in zip(names, cells, strict=True) if not math.isfinite(number(cell))]
        cell, place = cells[names.index(wrong[0])], self.place(row, wrong[0])
        others = f" (likewise {listed(wrong[1:])} in this line)" if wrong[1:] else ""
        drop = f"or leave the column out by --drop{others}"
        if not cell:
            return CommandError(f"{place} is empty. Fill in a number, drop the row, {drop}.")
        if _is_number(cell):
            return CommandError(
                f"{place}: {cut(cell)} is not finite. Expected finite numbers; fill in one, drop the row, {drop}."
            )
        return CommandError(
            f"{place}: {cut(cell)} is not a number. Expected finite numbers; write text as numbers, one column "
            f"of 0 and 1 for each category, drop the row, {drop}."
        )


def read_table(path: str, drop: Collection[str] = (), *, drops_all: bool = True) -> Table:
    """A table with a header row: see `TextSource` and `ColumnSource`; "-" is standard input.

    Parameters
    ----------
    drop : names of columns to leave out, whatever they contain
    drops_all : whether all of them must exist

    Raises
    ------
    CommandError    if the file is missing, unreadable, empty or ragged, if a column has no name or another one's, if a
                    column to drop does not exist, or if no column is left.
    """
    source = source_of(path)
    path, names = source.path, source.names
    if not names:
        raise CommandError(f"{path!r} is empty.")
    _check_header(path, names)
    if isinstance(source, TextSource) and all(map(_is_number, names)):
        raise CommandError(f"{path!r} has no header: its first row is all numbers. Add a row with the column names.")
    if drops_all and (unknown := [name for name in drop if name not in names]):
        raise CommandError(f"--drop: {path} has no column {unknown[0]!r}; its columns are {listed(names)}.")
    if not (num_rows := source.span.stop):
        raise CommandError(f"{path!r} has a header but no rows.")
    table = Table(source, path, names, [name for name in names if name in drop], num_rows)
    if not table.names:
        raise CommandError(f"--drop leaves no column of {path}.")
    return table


def names_in(text: str) -> list[str]:
    """The names in a list such as A,B,C; a name with a comma is in double quotes."""
    return [name.strip() for name in next(csv.reader(text.splitlines(), skipinitialspace=True), [])]


def aligned(lines: list[list[str]]) -> str:
    """Rows of cells as text: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(justified(line, widths) for line in lines)


def justified(line: list[str], widths: list[int]) -> str:
    """One row of cells as text: the first column left-aligned, the others right-aligned."""
    return "  ".join(
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
    )


def listed(names: list[str], most: int = 8) -> str:
    """Names for a message, cut after the first few."""
    return ", ".join(map(repr, names[:most])) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def number(cell: str) -> float:
    """The number in a cell; NaN if it is not a number, as "1_000" is not."""
    try:
        return math.nan if "_" in cell else float(cell)
    except ValueError:
        return math.nan


def is_missing(cell: str, *, infinite: bool = False) -> bool:
    """Whether a cell is empty or means a missing number; with `infinite`, also an infinite one."""
    word = cell.lower()
    word = word[1:] if len(word) > 1 and word[0] in "+-" else word
    return word in (_MISSING | _INFINITE if infinite else _MISSING)


def _check_header(path: str, names: list[str]) -> None:
    if "" in names:
        raise CommandError(f"{path!r}: column {names.index('') + 1} of the header has no name.")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise CommandError(f"{path!r}: the header has {repeated[0]!r} more than once. Rename one of these columns.")


def _is_number(cell: str) -> bool:
    return not math.isnan(number(cell)) or cell.lower().lstrip("+-") == "nan"


def _seconds(cell: str) -> float:
    try:
        moment = datetime.fromisoformat(cell)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _as_text(cells: pa.Array) -> pa.Array:
    """Cells of any type as text, as in Python and in a CSV file; empty where a cell is missing."""
    try:
        text = cells.cast(pa.string())
        if pa.types.is_boolean(cells.type):
            text = pc.utf8_capitalize(text)
        elif pa.types.is_duration(cells.type):  # with its unit, so that it is not taken for a number
            text = pc.binary_join_element_wise(text, cells.type.unit, " ")
        elif pa.types.is_floating(cells.type):
            text = pc.replace_substring_regex(text, r"^(-?\d+)$", r"\1.0")
            text = pc.replace_substring_regex(text, r"e([+-])(\d)$", r"e\10\2")
    except pa.ArrowException:  # such as lists
        text = pa.array([None if cell is None else str(cell) for cell in cells.to_pylist()], pa.string())
    return pc.utf8_trim_whitespace(text.fill_null("") if text.null_count else text)


def _as_numbers(cells: pa.Array) -> NDArray[np.float64]:
    """Cells of any type as numbers; NaN where a cell is not a number."""
    with suppress(pa.ArrowException):
        return np.asarray(cells.cast(pa.float64()).to_numpy(zero_copy_only=False))
    return np.array([number(cell) for cell in _as_text(cells).to_pylist()])  # Python also reads "+1"


_MISSING = frozenset(("", "na", "nan"))
_INFINITE = frozenset(("inf", "infinity"))
