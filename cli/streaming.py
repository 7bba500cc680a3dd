"""`regbayes fit --batch-size`: a table that need not fit into memory, by stochastic steps on some rows at a time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..inference import SVI, Posterior, RowSource
from ..inference.distributed.collectives import on_all
from ..inference.distributed.sources import cut
from .errors import CommandError
from .errors import cut as shortened
from .problems import check_spellings, task_of
from .ranks import rank
from .setups import model_of
from .tables import Table, is_missing, listed


@dataclass(frozen=True)
class TableSource(RowSource):
    """The rows of a table, read anew in each pass; target cells become class indices."""

    table: Table
    features: list[str]
    target: str | None
    classes: list[str]
    name: str  # the path

    @property
    def num_rows(self) -> int:
        return self.table.num_rows

    def blocks(self, size: int) -> Iterator[Any]:
        found = self.table.number_blocks(self.features, beside=self.target)
        return cut(((block, self._coded(cells)) for _, block, cells in found), size)

    def outline(self, size: int) -> Iterator[Any]:
        if self.target is None:
            return ((min(size, self.num_rows - start), None) for start in range(0, self.num_rows, size))
        labels = ((self._coded(cells), None) for cells in self.table.cell_blocks(self.target))
        return ((len(y), y) for y, _ in cut(labels, size))

    def _coded(self, cells: list[str]) -> Any:
        return None if self.target is None else np.searchsorted(self.classes, cells)


def fit_blocks(table: Table, options: argparse.Namespace, group: Any) -> tuple[Posterior, dict[str, Any], str]:
    """Fit the table block by block: the posterior, the metadata for `predict`, and a line to print about them.

    Raises
    ------
    CommandError    on options and targets that such a fit does not support.
    """
    source = on_all(lambda: _source(table, options))
    features, classes = source.features, source.classes
    steps = max(_LEAST_STEPS, -(-table.num_rows // (options.batch_size * rank()[1])))  # with a block on each rank
    backend = SVI(num_steps=steps, batch_size=options.batch_size, seed=options.seed)
    posterior = backend.fit(model_of(options.model, options.likelihood, len(features)), source, group=group)
    dropped = {"dropped": table.dropped} if table.dropped else {}
    metadata = {"features": features, "target": options.target, "classes": classes or None} | dropped
    return posterior, metadata, f"fitted by {steps} steps of {options.batch_size} rows, without a search"


def _source(table: Table, options: argparse.Namespace) -> TableSource:
    """This rank's rows, with the classes of all ranks."""
    _check_options(table, options)
    target = None if options.model == "DPM" else options.target
    classes = [] if target is None else _classes(table, target, options.task)
    features = [name for name in table.names if name != options.target]
    if not features:
        raise CommandError(f"{table.path} has no column beside the target {options.target!r}.")
    return TableSource(table.own, features, target, classes, table.path)


def _check_options(table: Table, options: argparse.Namespace) -> None:
    refused = {
        "--inference": options.inference not in (None, "svi"),
        "--checkpoint": options.checkpoint is not None,
    }
    if given := [name for name, is_given in refused.items() if is_given]:
        raise CommandError(f"--batch-size is for classes and DPM by svi, without a checkpoint. Leave {given[0]} out.")
    if options.model != "DPM" and options.target is None:
        raise CommandError(f"{options.model} needs --target COLUMN; the columns are {listed(table.names)}.")
    if options.target is not None:
        table.require(options.target)


def _classes(table: Table, target: str, task: str) -> list[str]:
    """The classes in a column, found by a pass over it."""
    found, row = set[str](), 0
    for cells in table.cell_blocks(target):
        found |= set(cells)
        if any(is_missing(cell, infinite=True) for cell in found):
            row += next(place for place, cell in enumerate(cells) if is_missing(cell, infinite=True))
            raise CommandError(f"{table.place(row, target)} is a missing label. Fill the cell or drop the row.")
        if len(found) > _MOST_CLASSES:
            raise CommandError(
                f"{table.path}, column {target!r} has over {_MOST_CLASSES} different cells, such as "
                f"{shortened(min(found))}: no classes. Leave --batch-size out to predict a number."
            )
        row += len(cells)
    if (task_of(table, target, found) if task == "auto" else task) == "regression":
        raise CommandError("--batch-size is for classes and DPM. Leave it out to predict a number.")
    check_spellings(table.path, target, sorted(found))
    if len(found) < 2:
        raise CommandError(f"{table.path}, column {target!r} has only one class; expected two or more.")
    return sorted(found)


_LEAST_STEPS = 200
_MOST_CLASSES = 1000
