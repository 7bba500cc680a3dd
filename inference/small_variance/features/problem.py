"""The small-variance objective of latent features, and the state of a descent.

    F = scale [sum_n r_n D(x_n, W^T z_n) + sum_d p_d |w_.d|^2 / 2] + Lambda(K)
      + sum_n r_n g(y_n, eta^T [z_n; b_n]) + |eta|^2 / (2 nu^2),          g = -log phi

D is the likelihood's divergence at its initial variances, and p_d is the precision of its loadings there. Lambda(K) is
the prior's price of K features, penalty K for an Indian buffet process. r_n is the weight of a row, 1 by default. A
missing entry has no divergence, a missing target no loss. F is the limit of -tau log p of the model with the variances
of entries and loadings times tau / scale, nu^2 tau for nu^2, g / tau for g and alpha = exp(-penalty / tau)
(docs/derivations/latent-features, "Small-variance limit").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ....models.latent_features import FeatureData, FeatureModel
from ...classifiers.scored import Scored
from ...distributed.collectives import Later, all_sum
from ...running.chains import OfRows
from ..binary import BinaryDescent
from ..restarts import Priced


@dataclass(frozen=True, kw_only=True)
class FeatureDescent(BinaryDescent):
    """One descent: N rows, K features, D columns, P inputs, C scores."""

    features: OfRows
    tilt: OfRows
    loadings: Tensor  # [K, D]
    grows: bool = True  # whether the last search for a new feature found one
    settled: bool = False  # the last sweep changed little: the next one tries more moves

    def only(self, columns: Tensor) -> Self:
        return replace(super().only(columns), loadings=self.loadings[columns])

    def joined(self, members: Tensor, loadings: Tensor) -> Self:
        """Add a feature for the rows `members` [N] bool, with loadings [D] and weights 0."""
        return replace(self.with_column(members), loadings=torch.cat([self.loadings, loadings.unsqueeze(0)]))


@dataclass(frozen=True)
class FeatureProblem(Priced):
    """The objective of a model on its data."""

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
        """A state without features, and with classifiers equal to 0."""
        X, (N, D) = self.data.X, self.data.X.shape
        P, C = self.data.inputs.shape[1], self.data.targets.shape[1]
        empty = FeatureDescent(
            features=X.new_zeros(N, 0),
            weights=X.new_zeros(P, C),
            tilt=X.new_zeros(N, C),
            penalty=X.new_tensor(penalty),
            objective=X.new_zeros((), dtype=torch.float64),
            loadings=X.new_zeros(0, D),
        )
        return self.evaluated(empty)

    def scores(self, state: FeatureDescent) -> Tensor:
        """eta^T [z; b] [N, C]."""
        scores: Tensor = self.model.scores(state.features, self.data.inputs, state.weights)
        return scores

    def losses(self, scores: Tensor) -> Tensor:
        """The losses g [N] at scores [N, C], for a single copy of each row."""
        losses: Tensor = -self.model.log_margin(scores, self.data.targets)
        return losses

    def divergences(self, mean: Tensor) -> Tensor:
        """scale D(x_n, m_n) [N] at means m [N, D], for a single copy of each row."""
        each = self.model.likelihood.divergence(self.data.X, mean)
        return self.scale * (each if self.data.observed is None else each * self.data.observed).sum(1)

    def total(self, each: Tensor) -> Tensor:
        """The weighted sum over the rows of all ranks of values [N] or [N, M], in double precision."""
        return all_sum(self._own_total(each))

    def _own_total(self, each: Tensor) -> Tensor:
        weights = self.data.row_weights if each.ndim == 2 else self.data.row_weights.squeeze(1)
        return (weights * each).sum(0, dtype=torch.float64)

    def loading_ridge(self, loadings: Tensor) -> Tensor:
        """scale p w^2 / 2 [K] summed over the columns of loadings [K, D], in double precision."""
        return self.scale * (self.prior_precision * loadings.double().square()).sum(1) / 2

    def margins(self, features: Tensor) -> Scored:
        """The rows that the classifiers of features [N, K] and inputs score."""
        seen, model = torch.cat([features, self.data.inputs], 1), self.model
        rows = seen, self.data.targets, model.loss, model.weight_scale, self.data.weights
        return Scored(*rows, source=self.data)

    def entries_later(self, state: FeatureDescent) -> Later:
        """The divergence of all entries, [] float64, as a sum that joins the next exchange of ranks."""
        return Later(self._own_total(self.divergences(state.features @ state.loadings)))

    def moved_later(self, before: FeatureDescent, state: FeatureDescent) -> Later:
        """The number of bits that differ between two states, [] float64, as a sum that joins the next exchange."""
        return Later((self.data.row_weights * (state.features != before.features)).sum(dtype=torch.float64))

    def objective(self, state: FeatureDescent, margin: Tensor | None = None, told: Later | None = None) -> Tensor:
        """The objective F []; `margin` [] is the classifiers' cost, `told` the divergence (None: computed)."""
        told = told or self.entries_later(state)
        if margin is None:
            margin = self.margins(state.features).value(state.weights.unsqueeze(0)).sum()
        loadings = self.loading_ridge(state.loadings).sum()
        return told() + loadings + margin + self.price(state.penalty, state.num_features)

    def evaluated(self, state: FeatureDescent) -> FeatureDescent:
        """Update the objective of a state."""
        return replace(state, objective=self.objective(state))
