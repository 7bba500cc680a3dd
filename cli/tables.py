"""Tables of text, read with errors that name the row and the column."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CommandError
from .progress import bar


@dataclass(frozen=True)
class Table:
    """The cells of a file, as text."""

    path: str
    names: list[str]
    rows: list[list[str]]
    lines: list[int]  # of the file, at which each row ends

    def column(self, name: str, rows: list[int] | None = None) -> list[str]:
        """The cells of one column, in all rows or in some.

        Raises
        ------
        CommandError    if there is no such column, or one of its cells is empty.
        """
        index = self._index(name)
        chosen = range(len(self.rows)) if rows is None else rows
        for row in chosen:
            if not self.rows[row][index]:
                raise CommandError(
                    f"{self.path}, line {self.lines[row]}, column {name!r} is empty. Fill the cell or drop the row."
                )
        return [self.rows[row][index] for row in chosen]

    def numbers(self, names: list[str], *, missing_rows: bool = False) -> NDArray[np.float64]:
        """The cells [N, D] of some columns, which must be finite numbers.

        With `missing_rows` a row may have all of them empty or "nan", and is NaN then.
        """
        values = np.full((len(self.rows), len(names)), np.nan)
        positions = [self.names.index(name) for name in names if name in self.names]
        missing = [missing_rows and all(_is_missing(row[index]) for index in positions) for row in self.rows]
        rows = [index for index, is_missing in enumerate(missing) if not is_missing]
        for position, name in enumerate(names):
            for index, cell in zip(rows, self.column(name, rows), strict=True):
                value = number(cell)
                if not math.isfinite(value):
                    found = "not finite" if _is_number(cell) else "not a number"
                    raise CommandError(
                        f"{self.path}, line {self.lines[index]}, column {name!r}: {cell!r} is {found}. "
                        "Expected finite numbers; fix the cell, or drop the row or the column."
                    )
                values[index, position] = value
        return values

    def bits(self, names: list[str]) -> NDArray[np.int64]:
        """The cells [N, C] of some columns, each of which must be 0 or 1.

        Raises
        ------
        CommandError    if there is no such column, or one of its cells is empty or neither.
        """
        columns = [self._index(name) for name in names]
        for line, row in zip(self.lines, self.rows, strict=True):
            for name, cell in zip(names, (row[index] for index in columns), strict=True):
                if number(cell) not in (0, 1):
                    found = f"{cell!r} is a missing label" if _is_missing(cell) else f"{cell!r} is no label"
                    raise CommandError(
                        f"{self.path}, line {line}, column {name!r}: {found}. Expected 0 or 1 in every row; fix the "
                        "cell, or drop the row."
                    )
        return np.array([[int(number(row[index])) for index in columns] for row in self.rows])

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
                f"{self.path}, line {self.lines[wrong[0]]}, column {name!r}: {cells[wrong[0]]!r} is no ISO date. "
                "Expected numbers throughout, or dates such as 2024-01-31 or 2024-01-31T12:30."
            )
        return seconds

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise CommandError(f"{self.path} has no column {name!r}; its columns are {listed(self.names)}.")
        return self.names.index(name)


def read_table(path: str) -> Table:
    """A table with a header row, separated by commas, semicolons or tabs (whichever the header has most of).

    A file compressed by gzip is known by its content.

    Raises
    ------
    CommandError    if the file is missing, unreadable, empty or ragged, or if a column has no name or another one's.
    """
    content = _content(path)
    lines = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    try:
        header = next((line for line in lines if line.strip()), "")
        lines.seek(0)
        with bar(len(content), f"reading {Path(path).name}", unit="B") as progress:
            reader = csv.reader(_counted(lines, progress), delimiter=max(",;\t", key=header.count))
            numbered = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except UnicodeDecodeError:
        raise CommandError(f"{path!r} is not a text file in UTF-8. Export it as CSV.") from None
    except csv.Error as error:
        raise CommandError(f"{path!r} is not a CSV file: line {reader.line_num}, {error}.") from None
    if not numbered:
        raise CommandError(f"{path!r} is empty.")
    (_, names), *body = numbered
    _check_header(path, names)
    if not body:
        raise CommandError(f"{path!r} has a header but no rows.")
    for line, row in body:
        if len(row) != len(names):
            raise CommandError(f"{path}, line {line} has {len(row)} cells, but the header has {len(names)}.")
    return Table(path, names, [row for _, row in body], [line for line, _ in body])


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
    """The number that a cell holds; NaN if it holds none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _content(path: str) -> bytes:
    try:
        content = Path(path).read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except FileNotFoundError:
        raise CommandError(f"there is no file {path!r}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise CommandError(f"{path!r} is compressed by gzip, but broken or cut short. Compress it again.") from None
    except OSError as error:
        raise CommandError(f"{path!r} cannot be read: {error.strerror}.") from None


def _counted(lines: io.TextIOWrapper, progress: Any) -> Iterator[str]:
    for line in lines:
        progress.update(len(line))
        yield line


def _check_header(path: str, names: list[str]) -> None:
    if "" in names:
        raise CommandError(f"{path!r}: column {names.index('') + 1} of the header has no name.")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise CommandError(f"{path!r}: the header has {repeated[0]!r} more than once. Rename one of these columns.")
    if all(map(_is_number, names)):
        raise CommandError(f"{path!r} has no header: its first row is all numbers. Add a row with the column names.")


def _is_missing(cell: str) -> bool:
    return cell.lower() in ("", "nan", "na")


def _is_number(cell: str) -> bool:
    return not math.isnan(number(cell)) or cell.lower().lstrip("+-") == "nan"


def _seconds(cell: str) -> float:
    try:
        moment = datetime.fromisoformat(cell)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_GZIP = b"\x1f\x8b"
