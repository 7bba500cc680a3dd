"""The kernels' view of data with several labels: rows beside their labels, and signs for the classifiers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from .data import Data, RowData
from .likelihoods.product import join_columns
from .sparse import Rows


@dataclass(frozen=True, eq=False)
class LabelData(RowData):
    """What kernels see of N points with D columns and C labels: P features of the classifiers."""

    x: Rows  # [N, D], dense or sparse
    y: Rows  # [N, C], dense or sparse, NaN where a label is missing
    features: Tensor  # [N, P]
    targets: Tensor  # [N, C]: +1 where a label is present, -1 where it is absent, NaN where it is missing
    weights: Tensor | None = None  # [N] > 0, how many times each point counts; None: once

    @cached_property
    def X(self) -> Rows:
        """Rows [N, D + C] of x and y side by side, sparse if either is."""
        return join_columns([self.x, self.y])

    @cached_property
    def points(self) -> Data:
        """The data that the mixture sees: rows (x, y), without features."""
        return replace(self.margins, X=self.X).without_features()

    @cached_property
    def inputs(self) -> Data:
        """The rows of x alone."""
        return replace(self.margins, X=self.x).without_features()

    @cached_property
    def labels(self) -> Tensor:
        """Labels [N, C], dense, NaN where one is missing."""
        return self.y.to_dense()

    @cached_property
    def margins(self) -> Data:
        """The data that the classifiers see: features and targets."""
        return Data(self.features, self.features, self.targets, self.weights)
