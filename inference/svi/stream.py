"""Minibatches from a torch DataLoader, in the form that the kernels read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ...models.arrays import as_features, as_sequences
from ...models.bnmc import BNMC
from ...models.data import Data
from ...models.label_data import LabelData
from ...models.mixture import Mixture
from ...models.numbers import as_tensor
from ...models.sequence import Sequences, StateSpace
from ...models.sparse import Rows, SparseRows

D = TypeVar("D")


@dataclass
class Stream(Generic[D]):
    """A loader of N points or steps, and the first of them, from which a fit starts."""

    loader: DataLoader[Any]
    convert: Callable[[Any], D]  # of a batch
    first: D
    num_data: int
    num_units: int  # points, or sequences
    largest: int  # of a batch, in units
    batches: Iterator[D] = field(init=False)

    def __post_init__(self) -> None:
        self.batches = self._endless()

    @property
    def X(self) -> Tensor:
        """The first rows [M, D]."""
        first: Any = self.first
        X: Tensor = first.X
        return X

    @property
    def total_weight(self) -> float:
        """N: in a stream each point counts once."""
        return float(self.num_data)

    def next(self) -> D:
        """The next batch, from the start again after the last."""
        return next(self.batches)

    def once(self) -> Iterator[D]:
        """The batches of one pass."""
        return map(self.convert, self.loader)

    def _endless(self) -> Iterator[D]:
        while True:
            yield from self.once()


def stream_points(loader: DataLoader[Any], model: Mixture, num_first: int) -> tuple[Mixture, Stream[Data]]:
    """The resolved model and the stream of batches (X [n, D], y [n]) or (X [n, D],).

    The loader is read once: all labels, the number of rows, and the first rows for defaults from the data. One missing
    label anywhere is enough for a loss that allows them.
    """
    inputs, targets, total, largest = list[Any](), list[Tensor](), 0, 0
    for place, (X, y) in enumerate(map(_split, loader)):
        if total < _NUM_DEFAULTS:
            inputs.append(_rows_of_batch(model, place, X))
        total, largest = total + X.shape[0], max(largest, X.shape[0])
        if y is not None:
            targets.append(as_tensor("y", y))
    if total < 2:
        raise ValueError(f"The DataLoader gives {total} rows; it must give at least 2.")
    X, y = _stack(inputs), torch.cat(targets) if targets else None
    if y is not None:  # all classes, not only those of the first rows
        model = model.checked().resolve_targets(X.new_zeros(len(y), 0), y)
    model = model.resolve(X, None if y is None else y[: len(X)])

    def convert(batch: Any) -> Data:
        X, y = _split(batch)
        return model.data(model.as_rows(X, num_features=model.num_features), y)

    first = model.data(X[:num_first], None if y is None else y[: len(X)][:num_first])
    return model, Stream(loader, convert, first, total, total, largest)


def stream_sequences(
    loader: DataLoader[Any], model: StateSpace, num_first: int
) -> tuple[StateSpace, Stream[Sequences]]:
    """The resolved model and the stream of batches (X [n, D], lengths) or (X [n, D],): whole sequences, or one.

    The loader is read once: the number of steps and of sequences, and the first of them for defaults from the data.
    """
    inputs, joined, total, num_sequences, largest = list[Tensor](), list[int](), 0, 0, 0
    for X, lengths in map(_split, loader):
        _, sizes, _ = as_sequences(X, lengths)
        if total < _NUM_DEFAULTS:
            inputs.append(as_tensor("X", X))
            joined += sizes
        total, largest = total + sum(sizes), max(largest, len(sizes))
        num_sequences += len(sizes)
    if total < 2:
        raise ValueError(f"The DataLoader gives {total} steps; it must give at least 2.")
    model, data = model.prepare(torch.cat(inputs), None, joined)
    ends = torch.tensor(joined).cumsum(0)
    first = data.sequences(list(range(1 + int((ends < num_first).sum())))) if ends[-1] > num_first else data

    def convert(batch: Any) -> Sequences:
        return model.data(*_split(batch))

    return model, Stream(loader, convert, first, total, num_sequences, largest)


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
    X, Y = _stack(inputs), _stack(targets)
    model = model.resolve(X, Y)
    if missing:
        model = model.with_missing()

    def convert(batch: Any) -> LabelData:
        X, y = batch
        return model.data(X, y)

    return model, Stream(loader, convert, model.data(X[:num_first], Y[:num_first]), total, total, largest)


def _split(batch: Any) -> tuple[Any, Any]:
    """(X, y or lengths, None without)."""
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def _rows_of_batch(model: Mixture, place: int, X: Any) -> Any:
    """The rows of X [n, D] as the model takes them; errors count rows within the batch and tell which it is."""
    try:
        return model.as_rows(X)
    except ValueError as error:
        raise ValueError(f"batch {place} of the DataLoader: {error}") from None


def _stack(parts: list[Rows]) -> Rows:
    """All rows [N, D] of some batches, dense or sparse; the list is empty afterwards, as there may be many rows."""
    rows, width = list(parts), parts[0].shape[1]
    parts.clear()
    if isinstance(rows[0], Tensor):
        return torch.cat(rows)
    sizes = torch.cat([part.starts.diff() for part in rows])
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    columns, values = (torch.cat([getattr(part, name) for part in rows]) for name in ("columns", "values"))
    return SparseRows(starts, columns, values, width)


_NUM_DEFAULTS = 100_000  # rows that the defaults come from: enough for means and variances
