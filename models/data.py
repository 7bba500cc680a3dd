"""The kernels' view of a data set for partitions: points, features and targets."""

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
    """Base class of data whose rows may be spread over several ranks."""

    @property
    @abstractmethod
    def num_data(self) -> int:
        """N, the number of points or steps on this rank."""

    @cached_property
    def span(self) -> tuple[int, int]:
        """The index of this rank's first row among the rows of all ranks, and the number of all rows."""
        return span(self.num_data)

    def placed(self, start: int, total: int) -> Self:
        """The same data with a given `span`, so that no other rank is asked for it."""
        self.__dict__["span"] = start, total
        return self


class RowData(Spread):
    """Base class of data with exchangeable rows: every field is a table [N, ...] over the rows, or None."""

    targets: Tensor
    weights: Tensor | None
    follow: ClassVar[tuple[str, ...]] = ("features",)  # fields that are computed from other fields

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.targets)

    @cached_property
    def total_weight(self) -> float:
        """R = sum_n r_n over all ranks, which replaces N if there are weights."""
        if self.weights is None:
            return self.span[1]
        return float(all_sum(self.weights.sum(dtype=torch.float64)))

    def counting(self, total: float) -> Self:
        """The same data with a given `total_weight` of all ranks, so that no other rank is asked for it."""
        self.__dict__["total_weight"] = total
        return self

    def rows(self, index: Tensor | slice) -> Self:
        """The data of some rows, from their indices [M]."""
        tables = (getattr(self, field.name) for field in fields(cast(Any, self)))
        return type(self)(*(None if table is None else table[index] for table in tables))


@dataclass(frozen=True, eq=False)
class Data(RowData):
    """What kernels see of N points with D columns: P features of the classifiers and targets of C scores."""

    X: Rows  # [N, D], dense or sparse
    features: Tensor  # [N, P]
    targets: Tensor  # [N, C]: -1 / +1 for each class score, or one real target; NaN where it is missing
    weights: Tensor | None = None  # [N] > 0, how many times each point counts; None: once
    loss_weights: Tensor | None = None  # [N] >= 0, a further factor of each point's loss; None: 1

    @property
    def points(self) -> Data:
        """The data that likelihoods and classifiers see: all of them."""
        return self

    def observed(self, labels: Tensor) -> Tensor:
        """The component labels of the observed points, from those of all points [N]: all of them."""
        return labels

    def counted(self, values: Tensor) -> Tensor:
        """Values [N, ...] of the points, times the points' weights."""
        if self.weights is None:
            return values
        return values * self.weights.to(values.dtype).view(-1, *[1] * (values.ndim - 1))

    @cached_property
    def nonzeros(self) -> tuple[Tensor, Tensor, Tensor]:
        """X in compressed rows: starts [N + 1], columns [nnz] and values [nnz]."""
        rows = SparseRows.of(self.X)
        return rows.starts, rows.columns, rows.values

    @cached_property
    def together(self) -> tuple[Tensor, Tensor | None]:
        """The features [N, P] and the weights [N] of the points of all ranks."""
        weights = None if self.weights is None else all_rows(self.weights, self.span)
        return all_rows(self.features, self.span), weights

    def without_features(self) -> Data:
        """The data that a model without hyperplanes sees: no features and no targets."""
        return replace(self, features=self.features[:, :0], targets=self.targets[:, :0])

    def double(self) -> Data:
        """The same data in double precision."""
        if self.X.dtype == torch.float64:
            return self
        return replace(self, X=self.X.double(), features=self.features.double(), targets=self.targets.double())
