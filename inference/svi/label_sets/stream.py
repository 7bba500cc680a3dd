"""Minibatches of rows and their label sets from a torch DataLoader: what is not in a batch is not in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ....models.arrays import as_features
from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ....models.sparse import Rows, SparseRows
from ..stream import Stream


def stream_labels(loader: DataLoader[Any], model: BNMC, num_first: int) -> tuple[BNMC, Stream[LabelData]]:
    """The resolved model and the stream of batches (X [n, D], Y [n, C]), dense or sparse.

    The loader is read once: the number of rows, whether any label is missing, and the first rows for defaults from the
    data.
    """
    inputs, targets, total, largest, missing = list[Rows](), list[Rows](), 0, 0, False
    for X, y in loader:
        rows = as_features(X, num_features=model.num_features)
        labels = model.labels(rows, y)
        if total < _NUM_DEFAULTS:
            inputs.append(rows)
            targets.append(labels)
        values = labels.values if labels.is_sparse else labels
        missing = missing or bool(values.isnan().any())
        total, largest = total + len(rows), max(largest, len(rows))
    if total < 2:
        raise ValueError(f"The DataLoader gives {total} rows; it must give at least 2.")
    X, Y = stack_rows(inputs), stack_rows(targets)
    model = model.resolve(X, Y)
    if missing:
        model = model.with_missing()

    def convert(batch: Any) -> LabelData:
        X, y = batch
        return model.data(X, y)

    return model, Stream(loader, convert, model.data(X[:num_first], Y[:num_first]), total, total, largest)


def stack_rows(parts: list[Rows]) -> Rows:
    """All rows [N, D] of some batches, dense or sparse; the list is empty afterwards, as there may be many rows."""
    rows, width = list(parts), parts[0].shape[1]
    parts.clear()
    if isinstance(rows[0], Tensor):
        return torch.cat(rows)
    sizes = torch.cat([part.starts.diff() for part in rows])
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    columns, values = (torch.cat([getattr(part, name) for part in rows]) for name in ("columns", "values"))
    return SparseRows(starts, columns, values, width)


_NUM_DEFAULTS = 100_000  # rows that the defaults come from
