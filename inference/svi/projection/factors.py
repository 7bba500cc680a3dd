"""The factors of a binary projection that tasks share, and their terms of the bound.

    q = q(pi, alpha) prod_dk Bernoulli(z_dk; psi_dk) prod_m q(eta_m) prod_n N(w_n; (x_n - offset) map, S) q(precisions)

The loadings have one covariance S, and their means are linear in x_n, so that sums over rows need X^T X alone:

    S^-1 = E[loading] I + E[noise] E[Z^T Z],   map = E[noise] Psi S,   H = sum_n E[w_n w_n^T] = map^T X^T X map + N S

Source: docs/derivations/latent-features, "Tasks".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Gamma, kl_divergence

from ....models.likelihoods import LinearGaussian
from ....models.linalg import safe_cholesky
from ....models.mt_ilsvm import MultiTaskInfiniteLatentSVM
from ....models.multi_task import TaskData
from ....models.priors.features import FeatureFactors
from ...bits.shared_projection import Generative, prior_alone
from ...classifiers.natural import Evidence
from ...distributed.collectives import all_sum
from ..rules import Learned


@dataclass(frozen=True)
class MeanFieldProjection:
    """The factors for D dimensions, K features, M tasks, P further inputs, and A known pairs of a row and a task."""

    features: Tensor  # [D, K] psi
    sticks: Tensor  # [2, K], a and b of q(pi)
    concentration: Tensor  # [2], shape and rate of q(alpha)
    weights: Tensor  # [K + P, M], means of q(eta)
    tilt: Tensor  # [A] dual variables of the margins under the averaging rule; else [0]
    precision_tril: Tensor  # [M, 1, K + P, K + P] of q(eta); [M, 0, K + P, K + P] under the averaging rule
    loading_map: Tensor  # [D, K]; [0] without a likelihood
    loading_covariance: Tensor  # [K, K] S; [0]
    precisions: dict[str, Tensor]  # [2], shape and rate of each gamma factor; (value, 1) if fixed
    bound: Tensor  # [] float64
    duality_gap: Tensor  # [] float64, relative duality gap of the last duals; NaN if there were none
    total_weight: float  # N

    @property
    def num_data(self) -> int:
        """N; all rows are used in every sweep."""
        return int(self.total_weight)

    @property
    def q(self) -> FeatureFactors:
        """q(pi) and q(alpha)."""
        a, b = self.sticks
        return FeatureFactors(a, b, self.concentration)

    @property
    def learned(self) -> Learned:
        """q(eta): one classifier for each task."""
        means = self.weights.double().T.unsqueeze(2)
        return Learned(means, self.precision_tril, self.tilt.unsqueeze(1), self.duality_gap)

    def with_learned(self, found: Learned) -> MeanFieldProjection:
        """Replace q(eta)."""
        weights, tilt = found.mean.squeeze(2).T.to(self.weights).contiguous(), found.tilt.squeeze(1)
        return replace(self, weights=weights, precision_tril=found.precision_tril, tilt=tilt, duality_gap=found.gap)

    @property
    def second(self) -> Tensor:
        """E[Z^T Z] [K, K]."""
        psi = self.features.double()
        return psi.T @ psi + torch.diag((psi * (1 - psi)).sum(0))

    def mean(self, name: str) -> Tensor:
        """The expectation [] of a precision."""
        shape, rate = self.precisions[name]
        return shape / rate

    def mean_log(self, name: str, learned: bool) -> Tensor:
        """The expected logarithm [] of a precision."""
        shape, rate = self.precisions[name]
        return torch.digamma(shape) - rate.log() if learned else (shape / rate).log()


def scatter(data: TaskData, likelihood: LinearGaussian | None) -> Tensor:
    """sum_n (x_n - offset)(x_n - offset)^T [D, D] float64; [0] without a likelihood."""
    if likelihood is None:
        return data.X.new_zeros(0, dtype=torch.float64)
    centred = (data.X - likelihood.offset).double()
    return all_sum(centred.T @ centred)


def evidence(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> Evidence:
    """The known pairs [A] as `Evidence` for the classifiers of their tasks, with features [E u; b]."""
    psi, X = state.features.double(), data.X.double()
    features, variances = torch.cat([X @ psi, data.inputs.double()], 1), X.square() @ (psi * (1 - psi))
    return Evidence(
        features[data.rows],
        data.known.double().unsqueeze(1),
        model.loss,
        model.weight_scale,
        owner=data.tasks,
        num_owners=data.num_tasks,
        variance=variances[data.rows],
    )


# -- updates: the optimum of each factor given all others --------------------------------------------------------------


def update_prior(state: MeanFieldProjection, model: MultiTaskInfiniteLatentSVM) -> MeanFieldProjection:
    """Update q(pi) and q(alpha)."""
    q = model.prior.update(state.q, state.features.double().sum(0), float(len(state.features)))
    return replace(state, sticks=torch.stack([q.a, q.b]), concentration=q.concentration)


def update_loadings(
    state: MeanFieldProjection, model: MultiTaskInfiniteLatentSVM, outer: Tensor
) -> MeanFieldProjection:
    """Update q(w) of all rows, then q of the precisions; outer [D, D] is that of `scatter`."""
    if model.likelihood is None:
        return state
    noise, prior = state.mean("noise_precision"), state.mean("loading_precision")
    matrix = noise * state.second
    matrix.diagonal().add_(prior)
    covariance = torch.cholesky_inverse(safe_cholesky(matrix))
    state = replace(state, loading_covariance=covariance, loading_map=noise * (state.features.double() @ covariance))
    squares, (D, K) = loading_squares(state, outer), state.features.shape
    number = state.total_weight
    seen = {
        "noise_precision": (number * D / 2, squared_error(state, outer) / 2),
        "loading_precision": (number * K / 2, squares.trace() / 2),
    }
    precisions = dict(state.precisions)
    for name, law in model.likelihood.hyperpriors(outer).items():
        if isinstance(law, Gamma):
            shape, rate = seen[name]
            precisions[name] = torch.stack([law.concentration + shape, law.rate + rate])
    return replace(state, precisions=precisions)


def generative(state: MeanFieldProjection, model: MultiTaskInfiniteLatentSVM, outer: Tensor) -> Generative:
    """The terms of the bits' log odds without margins, [K] and [D, K]; outer [D, D] is that of `scatter`."""
    odds = model.prior.log_odds(state.q)
    if model.likelihood is None:
        return prior_alone(odds, len(state.features))
    noise = state.mean("noise_precision")
    return Generative(odds, noise * (outer @ state.loading_map), noise * loading_squares(state, outer))


# -- the bound ---------------------------------------------------------------------------------------------------------


def loading_squares(state: MeanFieldProjection, outer: Tensor) -> Tensor:
    """H = sum_n E[w_n w_n^T] [K, K]."""
    return state.loading_map.T @ outer @ state.loading_map + state.total_weight * state.loading_covariance


def squared_error(state: MeanFieldProjection, outer: Tensor) -> Tensor:
    """sum_n E |x_n - offset - Z w_n|^2 []."""
    cross = (outer @ state.loading_map * state.features.double()).sum()
    return outer.trace() - 2 * cross + (state.second * loading_squares(state, outer)).sum()


def bound_without_margins(state: MeanFieldProjection, model: MultiTaskInfiniteLatentSVM, outer: Tensor) -> Tensor:
    """The terms of the bound for projection, inputs and loadings, []."""
    psi = state.features.double()
    total = model.prior.bound(state.q, psi.sum(0), float(len(psi)))
    total = total + (torch.special.entr(psi) + torch.special.entr(1 - psi)).sum()
    if model.likelihood is None:
        return total
    number, (D, K) = state.total_weight, psi.shape
    laws = model.likelihood.hyperpriors(outer)
    log_noise, log_prior = (
        state.mean_log(name, laws[name] is not None) for name in ("noise_precision", "loading_precision")
    )
    loadings = number * (K * log_prior + K + torch.logdet(state.loading_covariance))
    loadings = loadings - state.mean("loading_precision") * loading_squares(state, outer).trace()
    entries = number * D * (log_noise - math.log(2 * math.pi))
    entries = entries - state.mean("noise_precision") * squared_error(state, outer)
    total = total + (loadings + entries) / 2
    for name, law in laws.items():
        if law is not None:
            shape, rate = state.precisions[name]
            total = total - kl_divergence(Gamma(shape, rate, validate_args=False), law)
    return total
