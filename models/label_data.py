"""What the kernels of multi-label models see: rows with their labels beside them, and signs for the classifiers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from .data import Data
from .likelihoods.product import join_columns
from .sparse import Rows


@dataclass(frozen=True, eq=False)
class LabelData:
    """N points of D columns and C labels, P features of the classifiers."""

    x: Rows  # [N, D], dense or sparse
    y: Rows  # [N, C], dense or sparse, NaN where a label is missing
    features: Tensor  # [N, P]
    targets: Tensor  # [N, C]: +1 where a label is present, -1 where not, NaN where that is missing
    weights: Tensor | None = None  # [N] > 0, how many times each point counts; None: once

    @cached_property
    def X(self) -> Rows:
        """Rows of x, then y, [N, D + C], sparse if either is."""
        return join_columns([self.x, self.y])

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.targets)

    @property
    def total_weight(self) -> float:
        """R = sum_n r_n, by which weights take the place of N."""
        return self.margins.total_weight

    @cached_property
    def points(self) -> Data:
        """What the mixture sees: rows (x, y), and no classifiers."""
        return Data(self.X, self.features[:, :0], self.targets[:, :0], self.weights)

    @cached_property
    def inputs(self) -> Data:
        """The rows of x alone."""
        return Data(self.x, self.features[:, :0], self.targets[:, :0], self.weights)

    @cached_property
    def labels(self) -> Tensor:
        """Labels [N, C], dense, NaN where one is missing."""
        return self.y.to_dense()

    @cached_property
    def margins(self) -> Data:
        """What the classifiers see."""
        return Data(self.features, self.features, self.targets, self.weights)

    def rows(self, index: Tensor | slice) -> LabelData:
        """The data of some points, from their indices [M]."""
        weights = None if self.weights is None else self.weights[index]
        return LabelData(self.x[index], self.y[index], self.features[index], self.targets[index], weights)
