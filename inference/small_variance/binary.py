"""The state of a descent over binary features, of rows or of the dimensions that tasks project."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class BinaryDescent:
    """One descent: K features of N rows or dimensions, P additional inputs, C classifiers."""

    features: Tensor  # [N, K] of 0 and 1 in the dtype of X
    weights: Tensor  # [K + P, C]
    tilt: Tensor  # dual variables of the classifiers, where the next dual starts
    penalty: Tensor  # []
    objective: Tensor  # [] float64
    converged: bool = False

    @property
    def num_features(self) -> int:
        """K."""
        return self.features.shape[1]

    def only(self, columns: Tensor) -> Self:
        """Keep the features with indices [K']; the objective is not updated."""
        inputs = torch.arange(self.num_features, len(self.weights), device=columns.device)
        weights = self.weights[torch.cat([columns, inputs])]
        return replace(self, features=self.features[:, columns], weights=weights)

    def without(self, feature: Tensor | int) -> Self:
        """Remove the feature with index []."""
        every = torch.arange(self.num_features, device=self.features.device)
        return self.only(every[every != feature])

    def occupied(self) -> Self:
        """Remove the features that no row or dimension has."""
        some = torch.nonzero(self.features.sum(0)).squeeze(1)
        return self if len(some) == self.num_features else self.only(some)

    def with_column(self, column: Tensor) -> Self:
        """Add a feature that the rows with column [N] 1 have; its weights are 0."""
        K, unseen = self.num_features, self.weights.new_zeros(1, self.weights.shape[1])
        features = torch.cat([self.features, column.to(self.features).unsqueeze(1)], 1)
        return replace(self, features=features, weights=torch.cat([self.weights[:K], unseen, self.weights[K:]]))
