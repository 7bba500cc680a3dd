"""The factors of a truncated latent feature model, their updates, and the bound.

    q = q(pi) q(h) prod_nk Bernoulli(z_nk; psi_nk) prod_d N(w_d; Phi_d, A_d^-1) prod Gamma(precisions) q(eta)

Each update maximizes the bound given the other factors. Auxiliary variables of entries and margins have their optimal
factor whenever they are used: `LinearLikelihood.expect` and `Loss.expect` (docs/derivations/latent-features, "Mean
field"). The treatment of the labels depends on a rule (`svi/rules.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Gamma, kl_divergence

from ....models.latent_features import FeatureData, FeatureModel
from ....models.linalg import safe_cholesky
from ....models.priors.features import FeatureFactors
from ....models.priors.hyper import Hyper
from ...bits.loadings import Loadings, Sums, solve_columns, solve_loadings, sum_rows
from ...bits.rows import BinaryRows, LoadingMoments, Margin, is_gaussian, observe_gaussian, sweep_features
from ...distributed.collectives import Later, all_count, all_sum
from ...running.chains import OfRows
from ..rules import Learned


@dataclass(frozen=True, kw_only=True)
class VariationalFeatures:
    """The factors of K features of N points; D columns, P inputs, C scores."""

    features: OfRows  # [N, K] psi
    a: Tensor  # [K] float64, of the sticks' or probabilities' Beta(a, b)
    b: Tensor  # [K] float64
    concentration: Tensor  # [2] float64, Gamma(shape, rate), or (alpha, 1)
    loadings: Tensor  # [K, D] Phi
    loading_tril: Tensor  # [U, K, K] Cholesky factors of the distinct precision matrices A
    kind: Tensor  # [D], which of the U matrices each column has
    precisions: Tensor  # [H, 2] float64, Gamma(shape, rate) of the likelihood's H hyperparameters with a law
    weights: Tensor  # [K + P, C] mean of q(eta)
    weights_tril: Tensor  # [C, K + P, K + P] Cholesky factors of its precisions; [0, K + P, K + P]: as in the prior
    tilt: OfRows  # [N, C] dual variables at which the next dual starts; [0, C] if there is none
    bound: Tensor  # [] float64, the ELBO, or its estimate from the last minibatch
    duality_gap: Tensor  # [] float64, relative duality gap of the last dual; NaN if there was none
    row_weights: OfRows | None = None  # [N] how many times each row counts; None: once

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.features)

    @cached_property
    def total_weight(self) -> float:
        """R = sum_n r_n."""
        weights = self.row_weights
        return all_count(self.num_data) if weights is None else float(all_sum(weights.sum(dtype=torch.float64)))

    @property
    def sticks(self) -> FeatureFactors:
        """q(pi) and q(alpha)."""
        return FeatureFactors(self.a, self.b, self.concentration)

    @cached_property
    def loading_moments(self) -> LoadingMoments:
        """Phi and the posterior covariances of the loadings."""
        return LoadingMoments(self.loadings, torch.cholesky_inverse(self.loading_tril), self.kind)

    @cached_property
    def loading_squares(self) -> Tensor:
        """E |w_d|^2 [D]."""
        covariance = self.loading_moments.covariance
        assert covariance is not None
        return self.loadings.square().sum(0) + covariance.diagonal(dim1=-2, dim2=-1).sum(-1)[self.kind]

    @property
    def learned(self) -> Learned:
        """q(eta)."""
        return Learned(self.weights.unsqueeze(0), self.weights_tril.unsqueeze(0), self.tilt, self.duality_gap)

    def with_learned(self, found: Learned) -> VariationalFeatures:
        """Replace q(eta)."""
        weights = found.mean[0].contiguous()
        return replace(
            self, weights=weights, weights_tril=found.precision_tril[0], tilt=found.tilt, duality_gap=found.gap
        )

    def with_sticks(self, q: FeatureFactors) -> VariationalFeatures:
        """Replace q(pi) and q(alpha)."""
        return replace(self, a=q.a, b=q.b, concentration=q.concentration)

    def with_loadings(self, loadings: Loadings) -> VariationalFeatures:
        """Replace q(W)."""
        return replace(self, loadings=loadings.mean, loading_tril=loadings.precision_tril, kind=loadings.which)

    def without_rows(self) -> VariationalFeatures:
        """Drop the values of single rows, which are of no use for the next minibatch."""
        none = torch.full_like(self.duality_gap, torch.nan)
        return replace(self, features=self.features[:0], tilt=self.tilt[:0], duality_gap=none, row_weights=None)


def expected_hyper(state: VariationalFeatures, model: FeatureModel) -> Hyper:
    """Expected hyperparameters of the likelihood; for learned ones also the expected logarithm, `log_name`."""
    h: Hyper = model.likelihood.start(state.precisions)
    for name, (shape, rate) in zip(learned(state, model), state.precisions, strict=True):
        h |= {name: shape / rate, f"log_{name}": torch.digamma(shape) - rate.log()}
    return h


def learned(state: VariationalFeatures, model: FeatureModel) -> dict[str, Gamma]:
    """The prior laws of the likelihood's learned hyperparameters, in double precision."""
    laws = model.likelihood.hyperpriors(state.precisions.new_zeros(()))
    return {name: law for name, law in laws.items() if law is not None}


# -- updates: the optimum of each factor given the others --------------------------------------------------------------


def update_features(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, margin: Margin | None
) -> VariationalFeatures:
    """Update feature after feature, all rows at once: logit psi_nk = E log odds + gain of the entries + margin."""
    return replace(state, features=sweep_features(binary_rows(state, data, model), state.features, margin=margin))


def binary_rows(state: VariationalFeatures, data: FeatureData, model: FeatureModel) -> BinaryRows:
    """The rows, with the other factors' expectations that their bits need."""
    log_odds, h = model.prior.log_odds(state.sticks).to(data.X), expected_hyper(state, model)
    return BinaryRows(data.X, data.observed, model.likelihood, h, log_odds, state.loading_moments)


def gather(state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float = 1.0) -> Sums:
    """The sums over rows, multiplied by `scale`, that updates of the global factors need."""
    h = expected_hyper(state, model)
    if is_gaussian(model.likelihood, h, data.X):
        return sum_rows(state.features, data, observe_gaussian(data.X, model.likelihood, h), scale)
    mean, square = state.loading_moments.predictor(state.features)
    return sum_rows(state.features, data, model.likelihood.expect(data.X, square, h, mean), scale, each=True)


def update_loadings(state: VariationalFeatures, sums: Sums, model: FeatureModel) -> VariationalFeatures:
    """A_d = p_d I + sum_n r_n a_nd E[z_n z_n^T],  Phi_d = A_d^-1 sum_n r_n b_nd psi_n."""
    prior = model.likelihood.loading_precision(expected_hyper(state, model), len(state.kind))
    return state.with_loadings(solve_loadings(sums, prior))


def update_precisions(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, sums: Sums, scale: float = 1.0
) -> VariationalFeatures:
    """Set Gamma(shape + n / 2, rate + E squares / 2), n the number of variables that each precision scales."""
    laws = learned(state, model)
    if not laws:
        return state
    rows, K = entries(state, data, model, sums, scale), state.features.shape[1]
    squares = torch.cat([state.loading_squares.double(), state.precisions.new_tensor([K])])
    X, mean, square, counted, whole = rows
    own = model.likelihood.evidence(X, mean, square, torch.zeros_like(squares), counted)
    shared = model.likelihood.evidence(X[:0], mean[:0], square[:0], squares, counted[:0])
    prior = torch.stack([torch.stack([law.concentration, law.rate]) for law in laws.values()])
    of_rows, others = (torch.stack([torch.stack(each[name]) for name in laws]).double() for each in (own, shared))
    return replace(state, precisions=prior + _total(of_rows, whole) + others)


def update_sticks(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, sums: Sums, scale: float = 1.0
) -> VariationalFeatures:
    """Update q(pi), then q(alpha)."""
    return state.with_sticks(model.prior.update(state.sticks, sums.counts, scale * data.total_weight))


def update_globals(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float = 1.0
) -> tuple[VariationalFeatures, Sums]:
    """Update loadings, precisions and sticks for rows that count `scale` times; also returns the sums."""
    sums = gather(state, data, model, scale)
    state = update_precisions(update_loadings(state, sums, model), data, model, sums, scale)
    return update_sticks(state, data, model, sums, scale), sums


def global_targets(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, sums: Sums, scale: float
) -> VariationalFeatures:
    """The optimum of loadings, precisions, sticks and q(h), each given the *present* values of all other factors.

    Each is then affine in the sums over rows, so that the targets of minibatches average to that of all rows. Given
    updated factors it would not be: precisions given loadings that were fitted to few rows underestimate the noise.
    """
    sticks = model.prior.update_sticks(state.sticks, sums.counts, scale * data.total_weight)
    concentration = model.prior.update_concentration(state.sticks).concentration
    return replace(
        update_loadings(state, sums, model).with_sticks(sticks._replace(concentration=concentration)),
        precisions=update_precisions(state, data, model, sums, scale).precisions,
    )


def move_globals(state: VariationalFeatures, target: VariationalFeatures, rho: float) -> VariationalFeatures:
    """Take a step of size rho of q(W), the precisions, q(pi) and q(alpha) towards those of `target`; q(eta) stays.

    Columns that share a matrix both in the state and in the target share one afterwards.
    """
    codes = state.kind * len(target.loading_tril) + target.kind
    pairs, kind = torch.unique(codes, return_inverse=True)
    ours, theirs = pairs // len(target.loading_tril), pairs % len(target.loading_tril)
    before, after = (s.loading_tril @ s.loading_tril.mT for s in (state, target))
    linear = torch.lerp(_apply(before, state), _apply(after, target), rho)
    tril = safe_cholesky(torch.lerp(before[ours], after[theirs], rho))
    return replace(
        state,
        loadings=solve_columns(tril, kind, linear),
        loading_tril=tril,
        kind=kind,
        precisions=torch.lerp(state.precisions, target.precisions, rho),
        a=torch.lerp(state.a, target.a, rho),
        b=torch.lerp(state.b, target.b, rho),
        concentration=torch.lerp(state.concentration, target.concentration, rho),
    )


def _apply(matrices: Tensor, state: VariationalFeatures) -> Tensor:
    """A_d Phi_d [K, D]."""
    if len(matrices) == 1:
        return matrices[0] @ state.loadings
    return (matrices[state.kind] @ state.loadings.T.unsqueeze(-1)).squeeze(-1).T


# -- the bound ---------------------------------------------------------------------------------------------------------


def generative_bound(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, sums: Sums, scale: float = 1.0
) -> Callable[[], Tensor]:
    """The bound without labels [] float64, as a function that joins the next exchange; rows count `scale` times."""
    h = expected_hyper(state, model)
    X, mean, square, counted, whole = entries(state, data, model, sums, scale)
    fit = (counted * model.likelihood.expected_log_density(X, mean, square, h)).sum(dtype=torch.float64)
    entropy = scale * (data.row_weights.squeeze(1) * _entropy(state.features)).sum(dtype=torch.float64)
    of_rows = Later(entropy if whole else entropy + fit)
    prior = model.prior.bound(state.sticks, sums.counts, scale * data.total_weight) + (fit if whole else 0.0)
    return lambda: prior + of_rows() - loadings_kl(state, model) - precisions_kl(state, model)


def loadings_kl(state: VariationalFeatures, model: FeatureModel) -> Tensor:
    """KL of q(W) from N(0, 1 / p_d), [] float64, expected over q(p)."""
    h, (K, D) = expected_hyper(state, model), state.loadings.shape
    geometric = h | {name: h[f"log_{name}"].exp() for name in learned(state, model)}  # of learned ones
    precision, typical = (model.likelihood.loading_precision(means, D) for means in (h, geometric))
    log_det = 2 * state.loading_tril.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)[state.kind]
    return (precision * state.loading_squares.double() + log_det - K * (1 + typical.log())).sum() / 2


def precisions_kl(state: VariationalFeatures, model: FeatureModel) -> Tensor:
    """KL of the precisions' gammas from their laws, [] float64."""
    total = state.precisions.new_zeros(())
    for (shape, rate), law in zip(state.precisions, learned(state, model).values(), strict=True):
        total = total + kl_divergence(Gamma(shape, rate, validate_args=False), law)
    return total


# -- entries -----------------------------------------------------------------------------------------------------------


class Entries(NamedTuple):
    """The rows for which the likelihood is computed, or one row with the same sums as all rows."""

    X: Tensor  # [M, D]
    mean: Tensor  # [M, D], expected linear predictor
    square: Tensor  # [M, D], expected square of the predictor
    counted: Tensor  # [M, D] or [M, 1], weight of each entry; 0 where missing
    whole: bool  # one row represents the rows of all ranks


def entries(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, sums: Sums, scale: float = 1.0
) -> Entries:
    """The entries with the moments of their linear predictors.

    Density and evidence of Gaussian entries depend only on sums over rows of r^2, r m and E m^2, with r = x - offset.
    One row that counts R times and has their means replaces all rows, which saves products of [N, K] and [K, D].
    """
    moments, h = state.loading_moments, expected_hyper(state, model)
    if sums.precision is None or not is_gaussian(model.likelihood, h, data.X):
        return Entries(data.X, *moments.predictor(state.features), scale * data.counted, False)
    assert sums.squares is not None
    total = scale * data.total_weight
    crossed = (sums.linear * state.loadings).sum(0, dtype=torch.float64) / sums.precision.double()
    spread = torch.einsum("jk,ujk->u", sums.gram, moments.covariance)[state.kind]
    squared = (state.loadings * (sums.gram @ state.loadings)).sum(0, dtype=torch.float64) + spread
    root = (sums.squares / total).sqrt().clamp(min=torch.finfo(torch.float64).tiny ** 0.5)
    zero = observe_gaussian(data.X.new_zeros(1, data.X.shape[1]), model.likelihood, h)
    X = root - (zero.shift / zero.precision).double()
    counted = X.new_full((1, 1), total)
    return Entries(X, (crossed / root / total).unsqueeze(0), (squared / total).unsqueeze(0), counted, True)


def _entropy(features: Tensor) -> Tensor:
    """The entropy [N] of the bits of each row, from probabilities [N, K], in chunks that stay in a CPU's cache."""
    some, tiny = features.split(256 if features.is_cpu else len(features)), torch.finfo(features.dtype).tiny
    logs = ((p * p.clamp(min=tiny).log(), 1 - p) for p in some)
    return -torch.cat([torch.addcmul(own, rest, rest.clamp(min=tiny).log()).sum(1) for own, rest in logs])


def _total(value: Tensor, whole: bool) -> Tensor:
    return value if whole else all_sum(value)
