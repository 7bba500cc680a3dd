"""The input of `fit` and `compare`: features, and a target that is a label, a number or a set of labels."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CommandError, cut
from .tables import Table, is_missing, names_in, number


@dataclass(frozen=True)
class Problem:
    """Rows with a target: class names, numbers, or 0 and 1 for each label of a set."""

    name: str
    task: str  # "classification", "regression" or "labels"
    features: list[str]  # [D]
    X: NDArray[np.float64]  # [N, D]
    y: NDArray[Any]  # [N], or [N, C] of labels
    labels: tuple[str, ...] = ()  # [C]

    @property
    def scaling(self) -> tuple[float, float]:
        """Mean and standard deviation of a numeric target, by which it is standardized for models."""
        return float(self.y.mean()), float(self.y.std())


def problem_of(table: Table, target: str, task: str, folds: int = 1) -> Problem:
    """All columns but the target as features, the target as its task needs it; enough rows of it for all folds.

    Among ranks the features are those of this rank's rows, and the target is that of all rows.

    Raises
    ------
    CommandError    if the task cannot be told from the target; if it lacks labels, has one value only, or too few rows;
                    if a class is written in two ways; if its numbers are too large or too close to be squared.
    """
    features = [name for name in table.names if name != target]
    cells = table.column(target)
    if not features:
        raise CommandError(f"{table.path} has no column beside the target {target!r}.")
    if task == "auto":
        found = set(cells)
        task = task_of(table, target, found)
        if task == "regression":
            said = f"column {target!r} has {len(found)} different numbers, so this is regression"
            print(f"regbayes: {said} (--task classification for classes).", file=sys.stderr)
    X = table.own.numbers(features)
    if task == "regression":
        y = table.numbers([target])[:, 0]
        _check_numbers(table, target, y, folds)
    else:
        y = cells.astype(str)
        _check_missing(table, target, cells)
        check_spellings(table.path, target, cells)
        _check_labels(table.path, target, cells, folds)
    return Problem(Path(table.path).name, task, features, X, y)


def label_problem(table: Table, targets: str, folds: int) -> Problem:
    """All columns but the targets, whose names are separated by commas, as features; enough rows for all folds.

    Raises
    ------
    CommandError    if the targets are fewer than two, not all there, or not 0 and 1; if features or rows are too few.
    """
    labels = names_in(targets)
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise CommandError(
            f"--targets {targets!r} has {len(set(labels))} different columns of {len(labels)}. Expected two labels or "
            "more, each once, as in A,B,C; one label is for --target."
        )
    y = table.bits(labels)
    features = [name for name in table.names if name not in labels]
    if not features:
        raise CommandError(f"{table.path} has no column beside the targets {', '.join(map(repr, labels))}.")
    _check_rows(table.path, len(y), folds)
    return Problem(Path(table.path).name, "labels", features, table.numbers(features), y, tuple(labels))


def check_spellings(path: str, target: str, labels: Iterable[str]) -> None:
    """Raise CommandError if two classes are one number, such as 1 and 1.0; compared digit by digit, not as floats."""
    seen = dict[Decimal | str, str]()
    for label in dict.fromkeys(labels):
        if (first := seen.setdefault(_exact(label), label)) != label:
            raise CommandError(
                f"{path}, column {target!r} has {cut(first)} and {cut(label)}, the same number, as two classes. "
                "Write each class in one way."
            )


def _exact(label: str) -> Decimal | str:
    """The number that a label holds, with all its digits; a label that is not a number unchanged."""
    if math.isnan(number(label)):
        return label
    try:
        return Decimal(label)
    except InvalidOperation:  # an exponent beyond 18 digits
        return label


def task_of(table: Table, target: str, cells: set[str]) -> str:
    """The task for the distinct cells of a target: "classification" for text or few values, else "regression".

    Raises
    ------
    CommandError    if there are many values, all of them whole numbers.
    """
    values = np.array([number(cell) for cell in cells])
    if len(values) <= _MOST_CLASSES or np.isnan(values).any():
        return "classification"
    if (values == np.rint(values)).all():
        raise CommandError(
            f"{table.path}, column {target!r} has {len(values)} different whole numbers: classes, or a number to "
            "predict? Give --task classification or --task regression."
        )
    return "regression"


def _check_labels(path: str, target: str, labels: NDArray[Any], folds: int) -> None:
    """Raise CommandError unless there are two classes or more, each with enough rows to be in all folds."""
    counts = Counter(labels)
    if len(counts) < 2:
        raise CommandError(f"{path}, column {target!r} has only one class, {cut(labels[0])}; expected two or more.")
    least = 4 if folds == 2 else folds  # so that two rows of each class are left for training
    rarest = min(counts, key=lambda label: counts[label])
    if counts[rarest] < least:
        few = sum(count < least for count in counts.values())
        raise CommandError(
            f"{path}, column {target!r}: {few} of {len(counts)} classes have fewer than the {least} rows that "
            f"{folds} folds need: {rarest!r} has {counts[rarest]}. Take fewer --folds, or drop such rows."
        )


def _check_missing(table: Table, target: str, labels: NDArray[Any]) -> None:
    """Raise CommandError if a label is missing, or is a number that is not finite."""
    for label in dict.fromkeys(labels):
        if is_missing(label, infinite=True):
            raise CommandError(
                f"{table.place(int(np.argmax(labels == label)), target)}: {label!r} is a missing "
                "label. Fill the cell or drop the row; if it is the name of a class, write it in other letters."
            )


def _check_numbers(table: Table, target: str, values: NDArray[np.float64], folds: int) -> None:
    """Raise CommandError unless the numbers vary, have a standard deviation, and each fold has two of them."""
    if values.min() == values.max():
        raise CommandError(
            f"{table.path}, column {target!r} is {values[0]:g} in every row; expected a number that varies."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = values.std()
    if not np.isfinite(deviation):
        row = int(np.abs(values).argmax())
        raise CommandError(
            f"{table.place(row, target)}: {values[row]:g} is too large to be squared. "
            "Fix the cell, drop the row, or give the column in larger units."
        )
    if not deviation > np.finfo(np.float64).tiny ** 0.5:
        raise CommandError(
            f"{table.path}, column {target!r} goes from {values.min():g} to {values.max():g}, too small a range to be "
            "squared. Give the column in smaller units."
        )
    _check_rows(table.path, len(values), folds)


def _check_rows(path: str, num_rows: int, folds: int) -> None:
    """Raise CommandError unless each fold, and each inner fold, has two rows."""
    least = 1 if folds == 1 else max(8, 2 * folds)
    if num_rows < least:
        raise CommandError(f"{path} has {num_rows} rows, but {folds} folds need {least}. Take fewer --folds.")


_MOST_CLASSES = 20
