"""Tables of text, read block by block, with errors that name the row and the column."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CommandError
from .progress import bar


@dataclass(frozen=True)
class Table:
    """The text of a file, whose rows are read anew at each use: never are all cells of a large one there at once."""

    path: str  # as messages name it
    content: bytes  # of the file, perhaps compressed
    delimiter: str
    header: list[str]  # the names of all columns
    dropped: list[str]  # those that are left out
    num_rows: int

    @property
    def names(self) -> list[str]:
        """The names of the columns that are not dropped."""
        return [name for name in self.header if name not in self.dropped]

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """The cells of every row as they stand there, and the line at which it ends."""
        return islice(_records(self.path, self.content, self.delimiter), 1, None)

    def line(self, row: int) -> int:
        """The line of the file at which a row ends, counted from 0."""
        return next(islice(self.rows(), row, None))[0]

    def column(self, name: str) -> list[str]:
        """The cells [N] of one column; equal ones are one object.

        Raises
        ------
        CommandError    if there is no such column, or one of its cells is empty.
        """
        index, found, seen = self.require(name), [], dict[str, str]()
        for line, row in self.rows():
            cell = row[index].strip()
            if not cell:
                raise CommandError(
                    f"{self.path}, line {line}, column {name!r} is empty. Fill the cell or drop the row."
                )
            found.append(seen.setdefault(cell, cell))
        return found

    def numbers(self, names: list[str], *, missing_rows: bool = False) -> NDArray[np.float64]:
        """The cells [N, D] of some columns, which must be finite numbers.

        With `missing_rows` a row may have all of them empty or "nan", and is NaN then.
        """
        places, rows = [self.require(name) for name in names], self.rows()
        values = np.empty((self.num_rows, len(names)))
        for start in range(0, self.num_rows, _BLOCK):
            block = list(islice(rows, _BLOCK))
            values[start : start + _BLOCK] = self._block(block, names, places, missing_rows)
        return values

    def bits(self, names: list[str]) -> NDArray[np.int64]:
        """The cells [N, C] of some columns, each of which must be 0 or 1.

        Raises
        ------
        CommandError    if there is no such column, or one of its cells is empty or neither.
        """
        places = [self.require(name) for name in names]
        found = np.empty((self.num_rows, len(names)), dtype=np.int64)
        for index, (line, row) in enumerate(self.rows()):
            cells = [row[place].strip() for place in places]
            for name, cell in zip(names, cells, strict=True):
                if number(cell) not in (0, 1):
                    said = f"{cell!r} is a missing label" if is_missing(cell) else f"{cell!r} is no label"
                    raise CommandError(
                        f"{self.path}, line {line}, column {name!r}: {said}. Expected 0 or 1 in every row; fix the "
                        "cell, or drop the row."
                    )
            found[index] = [int(number(cell)) for cell in cells]
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
                f"{self.path}, line {self.line(wrong[0])}, column {name!r}: {cells[wrong[0]]!r} is no ISO date. "
                "Expected numbers throughout, or dates such as 2024-01-31 or 2024-01-31T12:30."
            )
        return seconds

    def _block(
        self, block: list[tuple[int, list[str]]], names: list[str], places: list[int], missing_rows: bool
    ) -> NDArray[np.float64]:
        """Some rows of `numbers`: all at once, or one by one where a cell is not a plain number."""
        try:
            values = np.array([[float(row[place]) for place in places] for _, row in block])
            if np.isfinite(values).all() and not any("_" in "".join(row) for _, row in block):
                return values
        except ValueError:
            pass
        rows = [(line, [row[place].strip() for place in places]) for line, row in block]
        return np.array([self._row(line, cells, names, missing_rows) for line, cells in rows])

    def _row(self, line: int, cells: list[str], names: list[str], may_be_missing: bool) -> list[float]:
        if may_be_missing and all(map(is_missing, cells)):
            return [math.nan] * len(cells)
        values = list(map(number, cells))
        wrong = [name for name, value in zip(names, values, strict=True) if not math.isfinite(value)]
        if not wrong:
            return values
        cell, place = cells[names.index(wrong[0])], f"{self.path}, line {line}, column {wrong[0]!r}"
        others = f" (likewise {listed(wrong[1:])} in this line)" if wrong[1:] else ""
        drop = f"or leave the column out by --drop{others}"
        if not cell:
            raise CommandError(f"{place} is empty. Fill in a number, drop the row, {drop}.")
        if _is_number(cell):
            raise CommandError(
                f"{place}: {cell!r} is not finite. Expected finite numbers; fill in one, drop the row, {drop}."
            )
        raise CommandError(
            f"{place}: {cell!r} is not a number. Expected finite numbers; write text as numbers, such as one column of "
            f"0 and 1 for each category, drop the row, {drop}."
        )

    def require(self, name: str) -> int:
        """The place of a column in the header; CommandError if it is not there, or dropped."""
        if name in self.dropped:
            raise CommandError(f"column {name!r} of {self.path} is left out by --drop, but it is needed.")
        if name not in self.header:
            raise CommandError(f"{self.path} has no column {name!r}; its columns are {listed(self.names)}.")
        return self.header.index(name)


def read_table(path: str, drop: Collection[str] = (), *, drops_all: bool = True) -> Table:
    """A table with a header row, separated by commas, semicolons or tabs (whichever the header has most of).

    A file compressed by gzip is known by its content; "-" is standard input.

    Parameters
    ----------
    drop : names of columns to leave out, whatever is in them
    drops_all : whether all of them must be there

    Raises
    ------
    CommandError    if the file is missing, unreadable, empty or ragged, if a column has no name or another one's, or if
                    there is none of those to drop, or no other.
    """
    content = _content(path)
    path = "standard input" if path == "-" else path
    delimiter = _delimiter(path, content)
    records = _records(path, content, delimiter)
    _, names = next(records, (0, []))
    names = [name.strip() for name in names]
    if not names:
        raise CommandError(f"{path!r} is empty.")
    _check_header(path, names)
    if drops_all and (unknown := [name for name in drop if name not in names]):
        raise CommandError(f"--drop: {path} has no column {unknown[0]!r}; its columns are {listed(names)}.")
    num_rows = 0
    for line, row in records:
        num_rows += 1
        if len(row) != len(names):
            raise CommandError(f"{path}, line {line} has {len(row)} cells, but the header has {len(names)}.")
    if not num_rows:
        raise CommandError(f"{path!r} has a header but no rows.")
    table = Table(path, content, delimiter, names, [name for name in names if name in drop], num_rows)
    if not table.names:
        raise CommandError(f"--drop leaves no column of {path}.")
    return table


def names_in(text: str) -> list[str]:
    """The names in a list such as A,B,C; one with a comma in it stands in double quotes."""
    return [name.strip() for name in next(csv.reader(text.splitlines(), skipinitialspace=True), [])]


def aligned(lines: list[list[str]]) -> str:
    """Rows of cells as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(justified(line, widths) for line in lines)


def justified(line: list[str], widths: list[int]) -> str:
    """One row of cells as text: the first column to the left, the others to the right."""
    return "  ".join(
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
    )


def listed(names: list[str], most: int = 8) -> str:
    """Names for a message, cut after the first few."""
    return ", ".join(map(repr, names[:most])) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def number(cell: str) -> float:
    """The number that a cell holds; NaN if it holds none, as "1_000" does not."""
    try:
        return math.nan if "_" in cell else float(cell)
    except ValueError:
        return math.nan


def is_missing(cell: str, *, infinite: bool = False) -> bool:
    """Whether a cell is empty or says that there is no number, or, with `infinite`, none that is finite."""
    word = cell.lower()
    word = word[1:] if len(word) > 1 and word[0] in "+-" else word
    return word in (_MISSING | _INFINITE if infinite else _MISSING)


def _content(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except FileNotFoundError:
        raise CommandError(f"there is no file {path!r}.") from None
    except OSError as error:
        raise CommandError(f"{path!r} cannot be read: {error.strerror}.") from None


def _delimiter(path: str, content: bytes) -> str:
    with _readable(path):
        header = next((line for line in _lines(path, content) if line.strip()), "")
    return max(",;\t", key=header.count)


def _records(path: str, content: bytes, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of which a cell is not blank, the header first, and the line at which each ends."""
    reader = csv.reader(_lines(path, content), delimiter=delimiter)
    with _readable(path):
        try:
            for row in reader:
                if any(map(str.strip, row)):
                    yield reader.line_num, row
        except csv.Error as error:
            raise CommandError(f"{path!r} is not a CSV file: line {reader.line_num}, {error}.") from None


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise CommandError(f"{path!r} is not a text file in UTF-8. Export it as CSV.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise CommandError(f"{path!r} is compressed by gzip, but broken or cut short. Compress it again.") from None


def _lines(path: str, content: bytes) -> Iterator[str]:
    """Lines of text, unpacked as they are read: a small file may hold more than fits in memory."""
    stored = io.BytesIO(content)
    packed = content.startswith(_GZIP)
    unpacked: Any = gzip.GzipFile(fileobj=stored) if packed else stored
    lines = io.TextIOWrapper(unpacked, encoding="utf-8-sig", newline="")
    num_read, most = 0, max(_LEAST_BOUND, _MOST_INFLATION * len(content))
    with bar(len(content), f"reading {Path(path).name}", unit="B") as progress:
        for count in itertools.count(1):
            line = lines.readline(_LONGEST_LINE)
            num_read += len(line)
            if len(line) == _LONGEST_LINE:
                raise CommandError(
                    f"{path!r} is not a CSV file: line {count} has {_LONGEST_LINE:,} characters or more."
                )
            if packed and num_read > most:
                raise CommandError(
                    f"{path!r} holds over {most:,} characters of text, {_MOST_INFLATION} times its size or more, as "
                    "tables hardly do. If it is meant, unpack it first (gunzip) and name that file."
                )
            if not line:
                return
            if count % _BLOCK == 0:
                progress.update(stored.tell() - progress.n)
            yield line


def _check_header(path: str, names: list[str]) -> None:
    if "" in names:
        raise CommandError(f"{path!r}: column {names.index('') + 1} of the header has no name.")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise CommandError(f"{path!r}: the header has {repeated[0]!r} more than once. Rename one of these columns.")
    if all(map(_is_number, names)):
        raise CommandError(f"{path!r} has no header: its first row is all numbers. Add a row with the column names.")


def _is_number(cell: str) -> bool:
    return not math.isnan(number(cell)) or cell.lower().lstrip("+-") == "nan"


def _seconds(cell: str) -> float:
    try:
        moment = datetime.fromisoformat(cell)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_GZIP = b"\x1f\x8b"
_MISSING = frozenset(("", "na", "nan"))
_INFINITE = frozenset(("inf", "infinity"))
_BLOCK = 4096  # rows that are text at once
_LONGEST_LINE = 2**24
_MOST_INFLATION = 100  # characters of text for each byte of a compressed file
_LEAST_BOUND = 2**26
