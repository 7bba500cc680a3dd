"""The primal and the dual objective that every solver of SVM duals shares; `duals` states both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...models.losses import Loss
from ..distributed.collectives import all_sum


@dataclass(frozen=True)
class Problem:
    """The primal and the dual objective of one problem."""

    features: Tensor
    targets: Tensor
    loss: Loss
    weight_scale: float
    row_weights: Tensor | None

    @property
    def count(self) -> Tensor | float:
        """r [N, 1]."""
        return 1.0 if self.row_weights is None else self.row_weights.to(self.features).unsqueeze(1)

    def feasible(self, tilt: Tensor) -> Tensor:
        """The nearest feasible tilts [N, C]; NaN, which an edited file may hold, becomes 0."""
        return self.count * self.loss.feasible(tilt.nan_to_num() / self.count, self.targets)

    def weights(self, tilt: Tensor) -> Tensor:
        """The weights eta [P, C] = nu^2 a^T t of tilts [N, C]."""
        return self.weight_scale**2 * all_sum(self.features.T @ tilt)

    def rows(self, rows: slice) -> Problem:
        """The problem of some of the rows."""
        times = None if self.row_weights is None else self.row_weights[rows]
        return replace(self, features=self.features[rows], targets=self.targets[rows], row_weights=times)

    def double(self) -> Problem:
        weights = None if self.row_weights is None else self.row_weights.double()
        return replace(self, features=self.features.double(), targets=self.targets.double(), row_weights=weights)

    def gaps(self, scores: Tensor, tilt: Tensor) -> tuple[Tensor, float]:
        """What each factor adds to the duality gap, [N, C] or [N, 1], and the gap relative to the primal."""
        cost = -self.count * self.loss.log_factor(scores, self.targets)
        ridge = tilt * scores  # its sum is |eta|^2 / nu^2
        ridge = ridge if cost.shape == ridge.shape else ridge.sum(1, keepdim=True)
        # scaling by the counts and back rounds tilts off their bounds
        own = self.loss.feasible(tilt / self.count, self.targets)
        gaps = cost + self.count * self.loss.conjugate(own, self.targets) + ridge
        gap, primal = all_sum(torch.stack([gaps.sum(), (cost + ridge / 2).sum()]))
        # rounding may make it negative
        return gaps, float((gap / primal.clamp(min=torch.finfo(primal.dtype).tiny)).clamp(min=0.0))
