"""What stays fixed while the small-variance objective of a mixture is minimized.

    L = sum_k [penalty + |eta_k|^2 / (2 nu^2) + scale w D(row, mu_k)]
      + sum_n [-log phi(y_n | eta_{z_n} . a_n) + scale D(x_n, mu_{z_n})]             (math/dp-mixtures, section 7)

(row, w) is the pseudo-observation of a smoothed family, w = 0 for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...models.likelihoods.base import Likelihood
from ...models.mixture import Data

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """The data in the coordinates of the divergence, and what a point costs in a component of its own."""

    model: Any  # resolved
    data: Data
    scale: float
    X: Tensor  # [N, D] rows in the likelihood's coordinates
    base: Tensor  # [N] scale * base(x_n), which makes D(x_n, x_n) = 0
    founding: Tensor  # [N] what a point costs in a component of its own, without the penalty
    row: Tensor | None  # [D] the pseudo-observation
    row_weight: float

    @classmethod
    def of(cls, model: Any, data: Data, scale: float) -> Self:
        """The problem of a resolved model."""
        X = model.likelihood.coordinates(data.X).contiguous()
        base = scale * model.likelihood.divergence_base(X)
        row, weight = model.likelihood.pseudo_observation()
        problem = cls(model, data, scale, X, base, torch.zeros_like(base), row, weight)
        return replace(problem, founding=problem._founding_costs())

    @property
    def likelihood(self) -> Likelihood:
        return self.model.likelihood

    @property
    def num_data(self) -> int:
        return len(self.X)

    def rows(self, index: Tensor) -> Problem:
        """The problem of some of the points."""
        taken = {name: getattr(self, name)[index] for name in ("X", "base", "founding")}
        return replace(self, data=self.data.rows(index), **taken)

    def without_divergence(self) -> Problem:
        """The problem in which only the losses count."""
        return replace(self, scale=0.0, base=torch.zeros_like(self.base))

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """log phi(y | f) [...] of scores [..., C]."""
        if scores.shape[-1] == 1 and not self.model.repels:  # a sum over one score is a slow copy
            return self.model.loss.log_factor(scores.squeeze(-1), targets.squeeze(-1))
        return self.model.log_margin(scores, targets)

    def centers(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Best centres [K, D] for sums of rows [K, D] and numbers of rows [K]."""
        if self.row is not None:
            sums, counts = sums + self.row_weight * self.row, counts + self.row_weight
        return self.likelihood.centers(sums, counts).to(self.X.dtype)

    def charges(self, centers: Tensor, weights: Tensor) -> Tensor:
        """What each component [K] costs beside its points and the penalty, in double precision."""
        charges = weights.double().square().sum((1, 2)) / (2 * self.model.weight_scale**2)
        if self.row is not None:
            divergence = self.likelihood.divergence(self.row.unsqueeze(0), centers).squeeze(0)
            charges = charges + self.scale * self.row_weight * divergence
        return charges

    def divergences(self, sums: Tensor, counts: Tensor, centers: Tensor) -> Tensor:
        """scale * summed divergence [K] of the rows of each component, from their sums; without the base."""
        slope, offset = self.likelihood.divergence_terms(centers.double())
        return self.scale * (counts * offset - (sums * slope).sum(1))

    # -- components of one point ---------------------------------------------------------------------------------

    def founders(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The best centres [M, D] and classifiers [M, P, C] of components that hold one point each."""
        features = self.data.features[index]
        square = features.square().sum(1, keepdim=True)
        score, _ = self.model.loss.one_point(self.model.weight_scale**2 * square, self.data.targets[index])
        direction = features / square.clamp(min=torch.finfo(square.dtype).tiny)
        centers = self.centers(self.X[index].double(), self.X.new_ones(len(index)).double())
        return centers, direction.unsqueeze(2) * score.unsqueeze(1)

    def _founding_costs(self) -> Tensor:
        square = self.data.features.square().sum(1, keepdim=True)
        _, cost = self.model.loss.one_point(self.model.weight_scale**2 * square, self.data.targets)
        cost = cost.sum(1)
        if self.row is None:
            return cost
        for rows in torch.arange(self.num_data, device=cost.device).split(_CHUNK):
            centers = self.centers(self.X[rows].double(), self.X.new_ones(len(rows)).double())
            slope, offset = self.likelihood.divergence_terms(centers)
            own = self.base[rows] + self.scale * (offset - (self.X[rows] * slope).sum(1))
            smoothing = self.likelihood.divergence(self.row.unsqueeze(0), centers).squeeze(0)
            cost[rows] += own + self.scale * self.row_weight * smoothing
        return cost


_CHUNK = 2**14
