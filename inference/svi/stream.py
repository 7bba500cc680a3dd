"""Minibatches from a torch DataLoader, in the form that the kernels read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ...models.arrays import as_features, as_labels
from ...models.mixture import Data, Mixture

__all__ = ["NUM_FIRST", "Stream"]

NUM_FIRST = 5_000  # rows from which a stochastic fit starts
_NUM_DEFAULTS = 100_000  # rows that the defaults come from: enough for means and variances


@dataclass
class Stream:
    """A loader of N points and the first of its rows, from which a fit starts."""

    loader: DataLoader[Any]
    model: Mixture  # resolved
    first: Data
    num_data: int
    batches: Iterator[Data] = field(init=False)

    def __post_init__(self) -> None:
        self.batches = self._endless()

    @classmethod
    def of(cls, loader: DataLoader[Any], model: Mixture) -> Self:
        """Read the loader once: all labels, the number of rows, and the first rows for defaults from the data."""
        inputs, targets, kept, total = [], [], 0, 0
        for batch in loader:
            X, y = _split(batch)
            total += len(X)
            if kept < _NUM_DEFAULTS:
                inputs.append(X)
                kept += len(X)
            if y is not None:
                targets.append(y)
        if total < 2:
            raise ValueError(f"The DataLoader gives {total} rows; it must give at least 2.")
        X, y = torch.cat(inputs), torch.cat(targets) if targets else None
        if y is not None and getattr(model, "classes", None) is None and model.loss.target == "sign":
            model = model.replace(classes=as_labels(y, y, None)[1])
        resolved = model.resolve(X, None if y is None else y[: len(X)])
        first = slice(0, NUM_FIRST)
        return cls(loader, resolved, resolved.data(X[first], None if y is None else y[first]), total)

    @property
    def X(self) -> Tensor:
        return self.first.X

    def next(self) -> Data:
        """The next batch, from the start again after the last."""
        return next(self.batches)

    def once(self) -> Iterator[Data]:
        """The batches of one pass."""
        for batch in self.loader:
            yield _as_data(batch, self.model)

    def _endless(self) -> Iterator[Data]:
        while True:
            yield from self.once()


def _as_data(batch: Any, model: Mixture) -> Data:
    X, y = _split(batch)
    return model.data(as_features(X, num_features=model.num_features), y)


def _split(batch: Any) -> tuple[Tensor, Tensor | None]:
    if isinstance(batch, Tensor):
        return batch, None
    return batch[0], batch[1] if len(batch) > 1 else None
