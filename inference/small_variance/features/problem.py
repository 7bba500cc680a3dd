"""What stays fixed while the small-variance objective of latent features is minimized, and where a descent stands.

    F = scale [sum_n r_n D(x_n, W^T z_n) + sum_d p_d |w_.d|^2 / 2] + Lambda(K)
      + sum_n r_n g(y_n, eta^T [z_n; b_n]) + |eta|^2 / (2 nu^2),          g = -log phi

D is the likelihood's divergence at the variances that it starts from, p_d the precision of its loadings there;
Lambda(K) is what the prior asks for K features, penalty K for an Indian buffet process; r_n counts a row, 1 without. A
missing entry has no divergence, a missing target no loss. F is the limit of -tau log p of the model with the variances
of entries and loadings times tau / scale, nu^2 tau for nu^2, g / tau for g and alpha = exp(-penalty / tau)
(math/latent-features, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ....models.latent_features import FeatureData, FeatureModel
from ...distributed.collectives import all_sum


@dataclass(frozen=True)
class FeatureDescent:
    """One descent: N rows, K features, D columns, P inputs, C scores."""

    features: Tensor  # [N, K] of 0 and 1 in the dtype of X, no column empty
    loadings: Tensor  # [K, D]
    weights: Tensor  # [K + P, C]
    tilts: Tensor  # [N, C] of the dual of the classifiers, which start the next solution
    penalty: Tensor  # []
    objective: Tensor  # [] float64
    grows: bool = True  # the last search for a new feature found one
    settled: bool = False  # the last sweep changed little: try to add by labels, drop and merge in the next one
    converged: bool = False  # it has, and in vain

    @property
    def num_features(self) -> int:
        """K."""
        return self.features.shape[1]

    def only(self, columns: Tensor) -> Self:
        """The state with some of its features, from their indices [K']; F is not up to date."""
        inputs = torch.arange(self.num_features, len(self.weights), device=columns.device)
        kept = self.weights[torch.cat([columns, inputs])]
        return replace(self, features=self.features[:, columns], loadings=self.loadings[columns], weights=kept)

    def occupied(self) -> Self:
        """The state without features that no row has."""
        some = all_sum(self.features.sum(0)) > 0
        return self if some.all() else self.only(torch.nonzero(some).squeeze(1))

    def joined(self, members: Tensor, loadings: Tensor) -> Self:
        """The state with one more feature, of some rows [N] bool and with loadings [D], that no score sees yet."""
        K, column = self.num_features, members.to(self.features).unsqueeze(1)
        unseen = self.weights.new_zeros(1, self.weights.shape[1])
        return replace(
            self,
            features=torch.cat([self.features, column], 1),
            loadings=torch.cat([self.loadings, loadings.unsqueeze(0)]),
            weights=torch.cat([self.weights[:K], unseen, self.weights[K:]]),
        )


@dataclass(frozen=True)
class FeatureProblem:
    """The model, its data, and the prior precision of the loadings."""

    model: FeatureModel  # resolved
    data: FeatureData
    scale: float
    prior_precision: Tensor  # [D] float64

    @classmethod
    def of(cls, model: FeatureModel, data: FeatureData, scale: float) -> Self:
        """The problem of a resolved model."""
        likelihood = model.likelihood
        return cls(model, data, scale, likelihood.loading_precision(likelihood.start(data.X), data.X.shape[1]))

    def rows(self, index: Tensor) -> FeatureProblem:
        """The problem of some of the rows [M]."""
        return replace(self, data=self.data.rows(index))

    def start(self, penalty: float) -> FeatureDescent:
        """No features at all, and classifiers of weight zero."""
        X, (N, D) = self.data.X, self.data.X.shape
        P, C = self.data.inputs.shape[1], self.data.targets.shape[1]
        empty = X.new_zeros(N, 0), X.new_zeros(0, D), X.new_zeros(P, C), X.new_zeros(N, C)
        state = FeatureDescent(*empty, X.new_tensor(penalty), X.new_zeros((), dtype=torch.float64))
        return self.evaluated(state)

    def scores(self, state: FeatureDescent) -> Tensor:
        """eta^T [z; b] [N, C]."""
        scores: Tensor = self.model.scores(state.features, self.data.inputs, state.weights)
        return scores

    def losses(self, scores: Tensor) -> Tensor:
        """g [N] of scores [N, C], for a single copy of each row."""
        losses: Tensor = -self.model.log_margin(scores, self.data.targets)
        return losses

    def divergences(self, mean: Tensor) -> Tensor:
        """scale D(x_n, m_n) [N] of means [N, D], for a single copy of each row."""
        each = self.model.likelihood.divergence(self.data.X, mean)
        return self.scale * (each if self.data.observed is None else each * self.data.observed).sum(1)

    def total(self, each: Tensor) -> Tensor:
        """Sums over the rows of what a single copy costs, [N] or [N, M], in double precision."""
        weights = self.data.row_weights if each.ndim == 2 else self.data.row_weights.squeeze(1)
        return all_sum((weights * each).sum(0, dtype=torch.float64))

    def loading_ridge(self, loadings: Tensor) -> Tensor:
        """scale p w^2 / 2 [K] summed over the columns of loadings [K, D], in double precision."""
        return self.scale * (self.prior_precision * loadings.double().square()).sum(1) / 2

    def margin_cost(self, scores: Tensor, weights: Tensor) -> Tensor:
        """Losses and ridge [] of classifiers [K + P, C] with these scores [N, C], in double precision."""
        return self.total(self.losses(scores)) + weights.double().square().sum() / (2 * self.model.weight_scale**2)

    def price(self, penalty: Tensor | float, num_features: int) -> float:
        """Lambda(K) of a penalty []."""
        return float(self.model.prior.price(float(penalty), num_features))

    def next_price(self, penalty: Tensor | float, num_features: int) -> float:
        """Lambda(K + 1) - Lambda(K) of a penalty []: what one more feature beside K costs."""
        return self.price(penalty, num_features + 1) - self.price(penalty, num_features)

    def objective(self, state: FeatureDescent) -> Tensor:
        """F []."""
        entries = self.total(self.divergences(state.features @ state.loadings))
        margin = self.margin_cost(self.scores(state), state.weights)
        loadings = self.loading_ridge(state.loadings).sum()
        return entries + loadings + margin + self.price(state.penalty, state.num_features)

    def evaluated(self, state: FeatureDescent) -> FeatureDescent:
        """The state with its F."""
        return replace(state, objective=self.objective(state))
