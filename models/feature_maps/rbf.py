"""The common part of feature maps for an RBF kernel: column scales and length scale.

k(x, x') = exp(-|u - u'|^2 / (2 length_scale^2)),   u = (x - loc) / scale
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from ..domains import AnyNumbers, NonNegative, Positive, PositiveNumbers, Seed, Whole
from ..likelihoods.base import column_variances
from .base import FeatureMap, Rows, Standardized


@dataclass(eq=False)
class RBFFeatures(FeatureMap):
    """Base class of features whose inner products approximate an RBF kernel.

    Arguments are those of `Nystroem` without its landmarks.
    """

    num_features: Annotated[int, Whole(1)] = 200
    length_scale: Positive | None = None
    seed: Seed = 0
    intercept: NonNegative = 1.0
    common_scale: bool | None = None
    loc: AnyNumbers = None
    scale: PositiveNumbers = None

    def scaled(self, X: Tensor, weights: Tensor | None) -> Standardized:
        """The map from rows to u, fitted to the data X [N, D]."""
        scale = self.scale if self.scale is not None else self._common(column_variances(X, weights))
        return Standardized(self.loc, scale).resolve(X, weights)

    def length(self, num_columns: int) -> float:
        """The length scale of the kernel for this number of columns."""
        return math.sqrt(num_columns / 2) if self.length_scale is None else float(self.length_scale)

    def inputs(self, X: Rows) -> Tensor:
        """u [N, D] of the rows of X [N, D]; the map must be resolved."""
        return Standardized(self.loc, self.scale).project(X)

    def _common(self, variances: Tensor) -> Tensor | None:
        """One scale [] for columns of these variances [D]; None: each has its own."""
        total, size = variances.sum(), len(variances)
        drowned = total**2 < max(2.0, size / 10) * variances.square().sum()
        common = not drowned if self.common_scale is None else self.common_scale
        return (total / size).sqrt() if common and total > 0 else None
