"""What the kernels of partitions see of a data set."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from .sparse import Rows, SparseRows
from .sums import all_rows, all_sum, span


class Spread:
    """What data have that ranks may have some of each."""

    @property
    @abstractmethod
    def num_data(self) -> int:
        """N, the number of points or steps that are here."""

    @cached_property
    def span(self) -> tuple[int, int]:
        """Where these start among those of all ranks, and how many all are."""
        return span(self.num_data)

    def placed(self, start: int, total: int) -> Self:
        """The same, whose `span` is known without asking other ranks."""
        self.__dict__["span"] = start, total
        return self


class RowData(Spread):
    """What data of exchangeable rows share. Every field is a table [N, ...] with an entry for each row, or None."""

    targets: Tensor
    weights: Tensor | None
    follow: ClassVar[tuple[str, ...]] = ("features",)  # fields that are made of others

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.targets)

    @cached_property
    def total_weight(self) -> float:
        """R = sum_n r_n, by which weights take the place of N."""
        if self.weights is None:
            return self.span[1]
        return float(all_sum(self.weights.sum(dtype=torch.float64)))

    def counting(self, total: float) -> Self:
        """The same, whose rows are known to count so many times on all ranks, without asking these."""
        self.__dict__["total_weight"] = total
        return self

    def rows(self, index: Tensor | slice) -> Self:
        """The data of some rows, from their indices [M]."""
        tables = (getattr(self, field.name) for field in fields(cast(Any, self)))
        return type(self)(*(None if table is None else table[index] for table in tables))


@dataclass(frozen=True, eq=False)
class Data(RowData):
    """N points, D features, P classifier features, C scores."""

    X: Rows  # [N, D], dense or sparse
    features: Tensor  # [N, P]
    targets: Tensor  # [N, C]: -1 / +1 for each class score, or one real target; NaN where it is missing
    weights: Tensor | None = None  # [N] > 0, how many times each point counts; None: once
    loss_weights: Tensor | None = None  # [N] >= 0, how many times its loss counts each of these times; None: once

    @property
    def points(self) -> Data:
        """What families and classifiers see: all of it."""
        return self

    def observed(self, labels: Tensor) -> Tensor:
        """The labels of what has an x, from those of all points [N]."""
        return labels

    def counted(self, values: Tensor) -> Tensor:
        """What belongs to the points, [N, ...], times their weights."""
        if self.weights is None:
            return values
        return values * self.weights.to(values.dtype).view(-1, *[1] * (values.ndim - 1))

    @cached_property
    def nonzeros(self) -> tuple[Tensor, Tensor, Tensor]:
        """X in compressed rows: row n has values[starts[n] : starts[n + 1]], [nnz], in the columns [nnz] there."""
        rows = SparseRows.of(self.X)
        return rows.starts, rows.columns, rows.values

    @cached_property
    def together(self) -> tuple[Tensor, Tensor | None]:
        """The features [N, P] and the weights [N] of the points of all ranks."""
        weights = None if self.weights is None else all_rows(self.weights, self.span)
        return all_rows(self.features, self.span), weights

    def without_features(self) -> Data:
        """The data that a model without hyperplanes sees."""
        return replace(self, features=self.features[:, :0], targets=self.targets[:, :0])

    def double(self) -> Data:
        """The same in double precision."""
        if self.X.dtype == torch.float64:
            return self
        return replace(self, X=self.X.double(), features=self.features.double(), targets=self.targets.double())
