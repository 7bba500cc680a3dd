"""Variational inference for a truncated Dirichlet process mixture of margin classifiers.

    q = prod_k q(v_k) q(theta_k; chi_k) N(eta_k; m_k, V_k) prod_n q(z_n) q(omega_n | z_n)       [q(alpha) with a prior]

maximizes a bound of log Z of the truncated model (math/dp-mixtures, section 6). Each omega is given its optimal factor
for every pair (n, k), so that a margin factor enters through `Loss.expect` and `Loss.expected_log_factor` alone. A
sweep sets the global factors to their optimum given the responsibilities, then the responsibilities to theirs: the
bound never falls. Where components repel (`Hyperplanes`) every pair counts on both sides (`hyperplanes`).

A stochastic step moves natural parameters towards the optimum of a minibatch (Hoffman et al. 2013).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Gamma, kl_divergence
from torch.nn.functional import pad

from ...models.mixture import Data, Mixture
from ...models.priors.dirichlet_process import (
    expected_log_sticks,
    log_labelled_prior,
    log_stick_weights,
    posterior_sticks,
)
from ..engine import Draw
from ..ridge import Ridge, safe_cholesky, soft_ridge
from ..seeding import far_apart
from .hyperplanes import blend, expect_sides

__all__ = [
    "PartitionState",
    "assignment_logits",
    "elbo",
    "extrapolate",
    "init",
    "stochastic_sweep",
    "summary",
    "sweep",
]


@dataclass(frozen=True)
class PartitionState:
    """A variational posterior: N points, T components, P classifier features, C scores."""

    hyperparameters: Tensor  # [T, S] chi of q(theta_k)
    sticks: Tensor  # [2, T - 1] of q(v_k) = Beta
    mean: Tensor  # [T, P, C] of q(eta_k)
    precision_tril: Tensor  # [T, C, P, P]
    concentration: Tensor  # [2] shape and rate of q(alpha); (alpha, 1) for a fixed alpha
    responsibilities: Tensor  # [N, T] q(z_n); [0, T] after a stochastic step
    precision: Tensor  # [N, T, C] expected pseudo-observations
    shift: Tensor  # [N, T, C]
    bound: Tensor  # [] float64, the ELBO, or its estimate from the last minibatch
    step: int = 0
    may_merge: bool = True  # until all promising unions have been tried in vain

    @cached_property
    def classifiers(self) -> Ridge:
        """q(eta_k)."""
        return Ridge(self.mean, self.precision_tril)

    @cached_property
    def expected_log_sticks(self) -> tuple[Tensor, Tensor]:
        """(E log v, E log(1 - v)), each [T - 1] float64."""
        return expected_log_sticks(self.sticks.double())

    @property
    def expected_concentration(self) -> Tensor:
        """E[alpha]."""
        return self.concentration[0] / self.concentration[1]


def init(model: Mixture, data: Data, generator: torch.Generator) -> PartitionState:
    """Responsibilities from seeds that are far apart, largest component first; classifiers at their prior."""
    T, (N, C), P = model.truncation, data.targets.shape, data.features.shape[1]
    seeds = data.X[far_apart(model.likelihood, data.X, T, generator)]
    chi = model.likelihood.prior() + model.likelihood.statistics(seeds)
    responsibilities = model.likelihood.log_predictive(data.X, chi).softmax(1)
    order = responsibilities.sum(0).argsort(descending=True)
    identity = torch.eye(P, dtype=data.X.dtype, device=data.X.device)
    state = PartitionState(
        hyperparameters=chi,
        sticks=data.X.new_ones(2, T - 1),
        mean=data.X.new_zeros(T, P, C),
        precision_tril=identity.repeat(T, C, 1, 1) / model.weight_scale,
        concentration=data.X.new_tensor(model.concentration_prior or (model.concentration, 1.0)),
        responsibilities=responsibilities[:, order],
        precision=data.X.new_zeros(N, T, C),
        shift=data.X.new_zeros(N, T, C),
        bound=data.X.new_tensor(-torch.inf, dtype=torch.float64),
    )
    state = update_components(update_sticks(state, model), data, model)
    return observe(state, data, model)


# -- full batch: coordinate ascent -------------------------------------------------------------------------------------


def sweep(state: PartitionState, data: Data, model: Mixture, generator: torch.Generator) -> PartitionState:
    """Sticks, alpha, family, classifiers, then responsibilities; each block maximizes the bound given the others."""
    if len(state.responsibilities) != data.num_data:  # the first full sweep after stochastic steps
        state = update_responsibilities(state, data, model)
    before = state.bound
    state = ascend(reorder(state), data, model)
    if state.may_merge and state.bound - before <= _SETTLED * data.num_data:
        state = merge(state, data, model)
    return state


def ascend(state: PartitionState, data: Data, model: Mixture) -> PartitionState:
    """One round of the block updates."""
    return update_responsibilities(update_factors(state, data, model), data, model)


def update_factors(state: PartitionState, data: Data, model: Mixture) -> PartitionState:
    """All factors but the responsibilities."""
    state = update_sticks(state, model)
    state = update_concentration(state, model)
    state = update_components(state, data, model)
    return update_classifiers(state, data, model)


def merge(state: PartitionState, data: Data, model: Mixture) -> PartitionState:
    """The first of the most promising pairs of components whose union raises the bound, or the state as it is.

    Coordinate ascent hardly ever empties a component that has points, so it would keep all that it started from
    (Bryant & Sudderth 2012; Hughes & Sudderth 2013).
    """
    for kept, absorbed in _pairs(state, model):
        r = state.responsibilities.clone()
        r[:, kept] += r[:, absorbed]
        r[:, absorbed] = 0
        merged = observe(replace(state, responsibilities=r), data, model)
        for _ in range(_MERGE_ROUNDS):
            merged = ascend(merged, data, model)
        if merged.bound > state.bound:
            return merged
    return replace(state, may_merge=False)


def _pairs(state: Any, model: Any) -> list[list[int]]:
    """Pairs of occupied components, those whose union has the best block marginal first."""
    likelihood, chi = model.likelihood, state.hyperparameters
    occupied = torch.nonzero(state.responsibilities.sum(0) > 0.5).squeeze(1)
    first, second = torch.combinations(occupied).unbind(1) if len(occupied) > 1 else (occupied[:0], occupied[:0])
    own = likelihood.log_marginal(chi)
    gain = likelihood.log_marginal(chi[first] + chi[second] - likelihood.prior()) - own[first] - own[second]
    best = gain.topk(min(_MERGE_TRIES, len(gain))).indices
    return torch.stack([first[best], second[best]], 1).tolist()


def reorder(state: PartitionState) -> PartitionState:
    """Components by decreasing size, if that raises the bound: at the best q(v) it is log p(z) of expected counts."""
    counts = state.responsibilities.sum(0, dtype=torch.float64)
    order = counts.argsort(descending=True)
    alpha = state.expected_concentration.double()
    if not log_labelled_prior(counts[order], alpha) > log_labelled_prior(counts, alpha):
        return state
    return replace(
        state,
        hyperparameters=state.hyperparameters[order],
        mean=state.mean[order],
        precision_tril=state.precision_tril[order],
        responsibilities=state.responsibilities[:, order],
        precision=state.precision[:, order],
        shift=state.shift[:, order],
    )


def update_sticks(state: PartitionState, model: Mixture) -> PartitionState:
    """q(v_k) = Beta(1 + sum_n r_nk, E[alpha] + sum_n sum_{j>k} r_nj)."""
    counts = state.responsibilities.sum(0)
    return replace(state, sticks=torch.stack(posterior_sticks(counts, state.expected_concentration)))


def update_concentration(state: PartitionState, model: Mixture) -> PartitionState:
    """q(alpha) = Gamma(shape + T - 1, rate - sum_k E log(1 - v_k)), where alpha has a prior."""
    if model.concentration_prior is None:
        return state
    shape, rate = model.concentration_prior
    _, log_rest = state.expected_log_sticks
    new = torch.stack([log_rest.new_tensor(shape + len(log_rest)), rate - log_rest.sum()])
    return replace(state, concentration=new.to(state.concentration))


def update_components(state: PartitionState, data: Data, model: Mixture) -> PartitionState:
    """chi_k = chi0 + sum_n r_nk statistics(x_n)."""
    statistics = model.likelihood.weighted_statistics(data.X, state.responsibilities)
    return replace(state, hyperparameters=model.likelihood.prior() + statistics)


def update_classifiers(state: PartitionState, data: Data, model: Mixture) -> PartitionState:
    """V_k^-1 = I / nu^2 + sum_n r_nk precision_nk a_n a_n^T,  m_k = V_k sum_n r_nk shift_nk a_n."""
    r = state.responsibilities
    if model.repels:  # every point counts for every hyperplane, and its sides are blended already
        r = r.sum(1, keepdim=True).expand_as(r)
    ridge = soft_ridge(data.features, state.precision, state.shift, r, weight_scale=model.weight_scale)
    return replace(state, mean=ridge.mean, precision_tril=ridge.precision_tril)


def update_responsibilities(state: PartitionState, data: Data, model: Mixture) -> PartitionState:
    """log r_nk = E log pi_k + E log p(x_n | theta_k) + bound of E log phi(y_n | f_nk) + const; and the ELBO, which at
    these responsibilities is the sum of the log normalizers less the KL terms."""
    if model.repels:
        sides = expect_sides(data.features, state.classifiers, model.loss)
        logits = assignment_logits(state, data, model, sides.gain)
        precision, shift = blend(sides, logits.softmax(1))
        bound = sides.rejection.sum(dtype=torch.float64) - kl(state, model)
    else:
        precision, shift, margin = expected_margins(state, data, model)
        logits = assignment_logits(state, data, model, margin)
        bound = -kl(state, model)
    bound = bound + logits.logsumexp(1).sum(dtype=torch.float64)
    r = logits.softmax(1)
    return replace(state, responsibilities=r, precision=precision, shift=shift, bound=bound, step=state.step + 1)


def assignment_logits(state: PartitionState, data: Data, model: Mixture, margin: Tensor | None = None) -> Tensor:
    """log r_nk [N, T] up to a constant for each point."""
    if margin is None:
        if model.repels:
            margin = expect_sides(data.features, state.classifiers, model.loss).gain
        else:
            *_, margin = expected_margins(state, data, model)
    log_v, log_rest = state.expected_log_sticks
    log_mixture = pad(log_v, (0, 1)) + pad(log_rest.cumsum(0), (1, 0))
    return log_mixture.to(margin.dtype) + model.likelihood.expected_log_density(data.X, state.hyperparameters) + margin


def observe(state: PartitionState, data: Data, model: Mixture) -> PartitionState:
    """The pseudo-observations at these classifiers and responsibilities."""
    if model.repels:
        precision, shift = blend(expect_sides(data.features, state.classifiers, model.loss), state.responsibilities)
    else:
        precision, shift, _ = expected_margins(state, data, model)
    return replace(state, precision=precision, shift=shift)


def expected_margins(state: PartitionState, data: Data, model: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    """Expected pseudo-observations (precision, shift), each [N, T, C], and the bound of E log phi, [N, T]."""
    N, (T, P, C) = data.num_data, state.mean.shape
    scores = (data.features @ state.mean.transpose(0, 1).reshape(P, T * C)).view(N, T, C)
    variance = state.classifiers.score_variance(data.features)
    targets = data.targets.unsqueeze(1)
    precision, shift = model.loss.expect(scores, variance, targets)
    margin = model.loss.expected_log_factor(scores, variance, targets) @ scores.new_ones(C)  # faster than a sum
    return precision.expand_as(scores), shift.expand_as(scores), margin


def elbo(state: PartitionState, data: Data, model: Mixture) -> Tensor:
    """The bound of any state, [] float64; the responsibilities need not be optimal."""
    logits = assignment_logits(state, data, model)
    r = state.responsibilities
    bound = (r * logits + torch.special.entr(r)).sum(dtype=torch.float64) - kl(state, model)
    if model.repels:
        bound = bound + expect_sides(data.features, state.classifiers, model.loss).rejection.sum(dtype=torch.float64)
    return bound


def kl(state: PartitionState, model: Mixture) -> Tensor:
    """KL of the global factors from their priors, [] float64.

    KL(Beta(a, b) || Beta(1, alpha)) = (a - 1) E log v + (b - alpha) E log(1 - v) - log B(a, b) - log alpha, with
    alpha and log alpha expected under q(alpha) where it has a prior.
    """
    a, b = state.sticks.double()
    log_v, log_rest = state.expected_log_sticks
    alpha = state.expected_concentration.double()
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    log_alpha, total = alpha.log(), model.likelihood.kl(state.hyperparameters).sum(dtype=torch.float64)
    if model.concentration_prior is not None:
        shape, rate = state.concentration.double()
        log_alpha = torch.digamma(shape) - rate.log()
        prior_shape, prior_rate = shape.new_tensor(model.concentration_prior)
        total = total + kl_divergence(Gamma(shape, rate), Gamma(prior_shape, prior_rate))
    total = total + ((a - 1) * log_v + (b - alpha) * log_rest - log_beta - log_alpha).sum()
    return total + state.classifiers.kl(model.weight_scale).sum(dtype=torch.float64)


# -- minibatches: stochastic natural gradients -------------------------------------------------------------------------


def extrapolate(state: PartitionState, rows: Data, model: Mixture, num_data: int) -> PartitionState:
    """Factors as if the rows were `num_data` points like them: where stochastic steps start."""
    scaled = replace(state, responsibilities=state.responsibilities * (num_data / rows.num_data))
    return replace(update_factors(scaled, rows, model), responsibilities=state.responsibilities[:0], step=0)


def stochastic_sweep(
    state: PartitionState, batch: Data, model: Mixture, *, num_data: int, delay: float, forgetting: float
) -> PartitionState:
    """Natural parameters move by rho = (t + delay)^-forgetting towards the optimum of a batch that stands for all.

    The recorded bound is the batch's estimate at the factors from before the step.
    """
    scale = num_data / batch.num_data
    rho = (state.step + 1 + delay) ** -forgetting
    local = update_responsibilities(state, batch, model)
    scaled = replace(local, responsibilities=scale * local.responsibilities)
    target = update_factors(scaled, batch, model)
    gram, linear = (torch.lerp(*pair, rho) for pair in zip(_natural(local), _natural(target), strict=True))
    tril = safe_cholesky(gram)
    state = replace(
        local,
        hyperparameters=torch.lerp(local.hyperparameters, target.hyperparameters, rho),
        sticks=torch.lerp(local.sticks, target.sticks, rho),
        mean=torch.cholesky_solve(linear.mT.unsqueeze(-1), tril).squeeze(-1).mT,
        precision_tril=tril,
        responsibilities=local.responsibilities[:0],  # those of a minibatch are of no use to a full sweep
    )
    penalty = kl(local, model)
    return replace(update_concentration(state, model), bound=scale * (local.bound + penalty) - penalty)


def _natural(state: Any) -> tuple[Tensor, Tensor]:
    """(A [T, C, P, P], A m [T, P, C]) of q(eta_k)."""
    gram = state.precision_tril @ state.precision_tril.mT
    return gram, (gram @ state.mean.mT.unsqueeze(-1)).squeeze(-1).mT


# -- what the engine asks ----------------------------------------------------------------------------------------------


def summary(state: PartitionState, data: Data, model: Mixture) -> Draw:
    """What the posterior keeps."""
    a, b = state.sticks
    mixture = log_stick_weights(a / (a + b))
    return {
        "assignments": state.responsibilities.argmax(1),
        "responsibilities": state.responsibilities,
        "hyperparameters": state.hyperparameters,
        "log_mixture": torch.cat([mixture, mixture.new_tensor([-torch.inf])]),
        "weights": state.mean,
        "precision_tril": state.precision_tril,
        "concentration": state.expected_concentration,
    }


_SETTLED = 1e-2  # rise of the bound, in nats per point, below which merges are tried
_MERGE_TRIES = 10
_MERGE_ROUNDS = 3
