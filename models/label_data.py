"""What the kernels of multi-label models see: rows with their labels beside them, and signs for the classifiers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from .data import Data, RowData
from .likelihoods.product import join_columns
from .sparse import Rows


@dataclass(frozen=True, eq=False)
class LabelData(RowData):
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

    @cached_property
    def points(self) -> Data:
        """What the mixture sees: rows (x, y), and no classifiers."""
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
        """What the classifiers see."""
        return Data(self.features, self.features, self.targets, self.weights)
