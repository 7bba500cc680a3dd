"""CSV tables of numbers and labels, read with errors that name the row and the column."""

from __future__ import annotations

import csv
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CommandError


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
        if name not in self.names:
            raise CommandError(f"{self.path} has no column {name!r}; its columns are {listed(self.names)}.")
        index = self.names.index(name)
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
                value = _number(cell)
                if not math.isfinite(value):
                    found = "not finite" if _is_number(cell) else "not a number"
                    raise CommandError(
                        f"{self.path}, line {self.lines[index]}, column {name!r}: {cell!r} is {found}. "
                        "Features must be finite numbers; fix the cell, or drop the row or the column."
                    )
                values[index, position] = value
        return values


def read_table(path: str) -> Table:
    """A table with a header row, separated by commas, semicolons or tabs (whichever the header has most of).

    Raises
    ------
    CommandError    if the file is missing, unreadable, empty or ragged, or if a column has no name or another one's.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise CommandError(f"there is no file {path!r}.") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path!r} is not a text file in UTF-8. Export it as CSV.") from None
    except OSError as error:
        raise CommandError(f"{path!r} cannot be read: {error.strerror}.") from None
    lines = text.splitlines(keepends=True)
    header = next((line for line in lines if line.strip()), "")
    reader = csv.reader(lines, delimiter=max(",;\t", key=header.count))
    try:
        numbered = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
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


def features_and_labels(table: Table, target: str) -> tuple[list[str], NDArray[np.float64], NDArray[Any]]:
    """Names [D] and values [N, D] of all columns but the target, and the labels [N] as text."""
    labels = np.array(table.column(target))
    names = [name for name in table.names if name != target]
    if not names:
        raise CommandError(f"{table.path} has no column beside the target {target!r}.")
    return names, table.numbers(names), labels


def check_labels(path: str, target: str, labels: NDArray[Any], folds: int = 1) -> None:
    """Raise CommandError unless there are two classes or more, each with enough rows to be in all folds."""
    names = labels.tolist()
    counts = Counter(names)
    if len(counts) < 2:
        raise CommandError(f"{path}, column {target!r} has only one class, {names[0]!r}; expected two or more.")
    least = 4 if folds == 2 else folds  # so that two of each class are left to train on
    rarest = min(counts, key=lambda label: counts[label])
    if counts[rarest] < least:
        few = sum(count < least for count in counts.values())
        raise CommandError(
            f"{path}, column {target!r}: {few} of {len(counts)} classes have fewer than the {least} rows that "
            f"{folds} folds need: {rarest!r} has {counts[rarest]}. Take fewer --folds, or drop such rows."
        )


def aligned(lines: list[list[str]]) -> str:
    """Rows of cells as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def listed(names: list[str], most: int = 8) -> str:
    """Names for a message, cut after the first few."""
    return ", ".join(map(repr, names[:most])) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def _check_header(path: str, names: list[str]) -> None:
    if "" in names:
        raise CommandError(f"{path!r}: column {names.index('') + 1} of the header has no name.")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise CommandError(f"{path!r}: the header has {repeated[0]!r} more than once. Rename one of these columns.")
    if all(map(_is_number, names)):
        raise CommandError(f"{path!r} has no header: its first row is all numbers. Add a row with the column names.")


def _is_missing(cell: str) -> bool:
    return cell.lower() in ("", "nan", "na")


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _is_number(cell: str) -> bool:
    return not math.isnan(_number(cell)) or cell.lower().lstrip("+-") == "nan"
