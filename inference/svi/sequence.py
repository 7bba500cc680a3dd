"""Variational inference for the truncated infinite hidden Markov models, plain and discriminative.

    q = prod_k q(u_k) q(theta_k; chi_k) N(eta_k; m_k, V_k) prod_j Dir(pi_j; rows_j) q(z) q(omega | z) q(alpha) q(gamma)

maximizes a bound of log Z of the truncated model; q(z) is a whole Markov chain. The top-level weights beta enter the
rows' normalizers, whose expectation has no closed form. As log Gamma(1 + x) is superadditive, for every alpha

    log Gamma(alpha) - sum_k log Gamma(alpha b_jk) >= (T - 1) log alpha + sum_k log b_jk

and with it q(alpha) and q(gamma) are gamma densities. For a row with stickiness, b_jj = (1 - rho) beta_j + rho, and
E log b_jj >= log((1 - rho) exp(E log beta_j) + rho), because log((1 - rho) exp(x) + rho) is convex in x. Both bounds
are loose for alpha far above 1: compare ELBOs of this scheme with each other alone.
Source: math/discriminative-clustering, sections 6 and 12, beta by version (ii). Minibatches are in `sequence_steps`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...models.priors.dirichlet_process import expected_log_sticks, posterior_sticks
from ...models.priors.hierarchical_dirichlet_process import row_means
from ...models.sequence import Sequences, StateSpace
from ..engine import Draw
from ..markov import filter_states, smooth
from ..ridge import Ridge, soft_ridge
from ..seeding import far_apart
from .hyperplanes import blend, expect_sides
from .partition import _pairs

__all__ = [
    "SequenceState",
    "elbo",
    "init",
    "summary",
    "sweep",
]


@dataclass(frozen=True)
class SequenceState:
    """A variational posterior: N steps, M of them observed, T states, P features and C scores of a hyperplane.

    What belongs to the rows is in double precision: their parameters may be tiny.
    """

    hyperparameters: Tensor  # [T, S] chi of q(theta_k)
    rows: Tensor  # [T + 1, T] float64, q(pi_j) = Dirichlet; last row: where sequences start
    sticks: Tensor  # [2, T - 1] float64, of q(u_k) = Beta
    mean: Tensor  # [T, P, C] of q(eta_k)
    precision_tril: Tensor  # [T, C, P, P]
    concentration: Tensor  # [2] float64, shape and rate of q(alpha); (alpha, 1) for a fixed alpha
    top_concentration: Tensor  # [2] float64, the same of gamma
    responsibilities: Tensor  # [N, T] marginals of q(z); [0, T] after a stochastic step
    counts: Tensor  # [T + 1, T] float64, expected transitions under q(z); their running estimate in stochastic steps
    entropy: Tensor  # [] float64, of q(z)
    precision: Tensor  # [M, T, C] expected pseudo-observations of both sides
    shift: Tensor  # [M, T, C]
    bound: Tensor  # [] float64, the ELBO, or its estimate from the last minibatch
    step: int = 0
    may_merge: bool = True  # until all promising unions have been tried in vain

    @cached_property
    def classifiers(self) -> Ridge:
        """q(eta_k)."""
        return Ridge(self.mean, self.precision_tril)

    @property
    def expected_concentration(self) -> Tensor:
        """E[alpha]."""
        return self.concentration[0] / self.concentration[1]

    @property
    def expected_top_concentration(self) -> Tensor:
        """E[gamma]."""
        return self.top_concentration[0] / self.top_concentration[1]

    @property
    def expected_log_rows(self) -> Tensor:
        """E log pi_jk [T + 1, T]."""
        return _expected_log_rows(self.rows)


def init(model: StateSpace, data: Sequences, generator: torch.Generator) -> SequenceState:
    """Steps on their own, from seeds that are far apart, largest state first; hyperplanes at their prior."""
    T = model.truncation
    seeds = data.X[far_apart(model.likelihood, data.X, T, generator)]
    chi = model.likelihood.prior() + model.likelihood.statistics(seeds)
    predictive = model.likelihood.log_predictive(data.X, chi).softmax(1)
    predictive = predictive[:, predictive.sum(0).argsort(descending=True)]
    responsibilities = data.X.new_full((data.num_data, T), 1 / T).index_copy(0, data.steps, predictive)
    counts = _independent_counts(responsibilities.double(), data.starts)
    gamma = data.X.new_tensor(model.top_concentration, dtype=torch.float64)
    state = SequenceState(
        hyperparameters=chi,
        rows=counts + 1,
        sticks=torch.stack(posterior_sticks(counts.clamp(max=1).sum(0), gamma)),
        **_prior_classifiers(model, data),
        concentration=_start(model.concentration, model.concentration_prior, T**2 - 1, counts),
        top_concentration=_start(model.top_concentration, model.top_concentration_prior, T - 1, counts),
        responsibilities=responsibilities,
        counts=counts,
        entropy=torch.special.entr(responsibilities.double()).sum(),
        bound=counts.new_tensor(-torch.inf),
    )
    return observe(update_components(update_rows(state, model), data, model), data, model)


# -- full batch: coordinate ascent -------------------------------------------------------------------------------------


def sweep(state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator) -> SequenceState:
    """Rows, family, hyperplanes, then the paths; each block does not lower the bound given the others."""
    if len(state.responsibilities) != data.num_data:  # the first full sweep after stochastic steps
        state = update_paths(state, data, model)
    before = state.bound
    state = ascend(reorder(state, model), data, model)
    if state.may_merge and state.bound - before <= _SETTLED * data.num_data:
        state = merge(state, data, model)
    return state


def ascend(state: SequenceState, data: Sequences, model: StateSpace) -> SequenceState:
    """One round of the block updates."""
    return update_paths(update_factors(state, data, model), data, model)


def update_factors(state: SequenceState, data: Sequences, model: StateSpace) -> SequenceState:
    """All factors but the paths."""
    state = update_components(update_rows(state, model), data, model)
    return update_classifiers(state, data, model)


def merge(state: SequenceState, data: Sequences, model: StateSpace) -> SequenceState:
    """The first of the most promising pairs of states whose union raises the bound, or the state as it is."""
    for kept, absorbed in _pairs(state, model):
        into = torch.eye(model.truncation, dtype=torch.float64, device=state.counts.device)
        into[absorbed] = into[kept]
        rows = torch.block_diag(into, into.new_ones(1, 1))
        merged = replace(
            state,
            responsibilities=state.responsibilities @ into.to(state.responsibilities),
            counts=rows.T @ state.counts @ into,
        )
        merged = observe(merged, data, model)
        for _ in range(_MERGE_ROUNDS):
            merged = ascend(merged, data, model)
        if merged.bound > state.bound:
            return merged
    return replace(state, may_merge=False)


def reorder(state: SequenceState, model: StateSpace) -> SequenceState:
    """States by decreasing number of visits, if that raises the bound: sticks expect large states first."""
    order = state.counts.sum(0).argsort(descending=True, stable=True)
    if torch.equal(order, torch.arange(len(order), device=order.device)):
        return state
    rows = torch.cat([order, order.new_tensor([len(order)])])
    permuted = replace(
        state,
        hyperparameters=state.hyperparameters[order],
        rows=state.rows[rows][:, order],
        mean=state.mean[order],
        precision_tril=state.precision_tril[order],
        responsibilities=state.responsibilities[:, order],
        counts=state.counts[rows][:, order],
        precision=state.precision[:, order],
        shift=state.shift[:, order],
    )
    as_is, permuted = update_rows(state, model), update_rows(permuted, model)
    return permuted if hierarchy_bound(permuted, model) > hierarchy_bound(as_is, model) else as_is


def update_rows(state: SequenceState, model: StateSpace) -> SequenceState:
    """q(u), q(alpha), q(gamma) and the rows together, given the expected transitions.

    rows_jk = E[alpha] E[b_jk] + counts_jk and q(gamma) = Gamma(shape + T - 1, rate - sum_k E log(1 - u_k)) are the
    optimum given the sticks and alpha, so that the bound is climbed in these 2 T - 1 numbers alone, by L-BFGS; the
    shape of q(alpha) is shape + T^2 - 1, always. Rows updated one after the other with beta would hold it in place.
    """
    free = torch.cat([state.sticks.flatten(), state.concentration[1:]]).log()

    def at(free: Tensor) -> SequenceState:
        values = free.exp()
        rate = values[-1:] if model.concentration_prior else state.concentration[1:]
        concentration = torch.cat([state.concentration[:1], rate])
        return _follow(replace(state, sticks=values[:-1].view_as(state.sticks), concentration=concentration), model)

    start = at(free)
    with torch.enable_grad():
        free = free.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [free], max_iter=_NUM_CLIMBS, tolerance_change=1e-6, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = -hierarchy_bound(at(free), model)
            value.backward()
            return value

        optimizer.step(loss)
    end = at(free.detach())
    return end if hierarchy_bound(end, model) > hierarchy_bound(start, model) else start


def update_components(state: SequenceState, data: Sequences, model: StateSpace) -> SequenceState:
    """chi_k = chi0 + sum_t r_tk statistics(x_t), over the observed steps."""
    statistics = model.likelihood.weighted_statistics(data.X, state.responsibilities[data.steps])
    return replace(state, hyperparameters=model.likelihood.prior() + statistics)


def update_classifiers(state: SequenceState, data: Sequences, model: StateSpace) -> SequenceState:
    """q(eta_k) from both sides of every hyperplane at every observed step (`hyperplanes`)."""
    ones = data.X.new_ones(()).expand(state.precision.shape[:2])
    ridge = soft_ridge(data.points.features, state.precision, state.shift, ones, weight_scale=model.weight_scale)
    return replace(state, mean=ridge.mean, precision_tril=ridge.precision_tril)


def update_paths(state: SequenceState, data: Sequences, model: StateSpace) -> SequenceState:
    """q(z) by forward-backward with weights exp E log pi_jk and E log p(x_t | theta_k) + gain_tk; and the ELBO, which
    at these paths is the sum of the log normalizers and of what all hyperplanes reject, less the KL terms."""
    sides, emission = emissions(state, data, model)
    log_rows = state.expected_log_rows
    smoothed = smooth(log_rows[-1], log_rows[:-1], emission, data.lengths)
    counts = torch.cat([smoothed.transitions, smoothed.starts.unsqueeze(0)])
    log_normalizer = smoothed.log_normalizers.sum()
    entropy = log_normalizer - _inner(smoothed.marginals, emission) - _inner(counts, log_rows)
    r = smoothed.marginals.to(data.X)
    precision, shift = blend(sides, r[data.steps])
    return replace(
        state,
        responsibilities=r,
        counts=counts,
        entropy=entropy,
        precision=precision,
        shift=shift,
        bound=log_normalizer + sides.rejection.sum(dtype=torch.float64) - kl(state, model),
        step=state.step + 1,
    )


def observe(state: SequenceState, data: Sequences, model: StateSpace) -> SequenceState:
    """The pseudo-observations at these hyperplanes and responsibilities."""
    sides = expect_sides(data.points.features, state.classifiers, model.loss)
    precision, shift = blend(sides, state.responsibilities[data.steps])
    return replace(state, precision=precision, shift=shift)


# -- the bound ---------------------------------------------------------------------------------------------------------


def elbo(state: SequenceState, data: Sequences, model: StateSpace) -> Tensor:
    """The bound of any state, [] float64; its paths need not be optimal."""
    sides, emission = emissions(state, data, model)
    paths = _inner(state.responsibilities, emission) + _inner(state.counts, state.expected_log_rows) + state.entropy
    return paths + sides.rejection.sum(dtype=torch.float64) - kl(state, model)


def kl(state: SequenceState, model: StateSpace) -> Tensor:
    """KL of the global factors from their priors, [] float64; that of the hierarchy is a bound from above."""
    total = model.likelihood.kl(state.hyperparameters).sum(dtype=torch.float64)
    total = total + state.classifiers.kl(model.weight_scale).sum(dtype=torch.float64)
    return total + _inner(state.counts, state.expected_log_rows) - hierarchy_bound(state, model)


def hierarchy_bound(state: SequenceState, model: StateSpace) -> Tensor:
    """All terms of the ELBO with rows, sticks, alpha or gamma in them, given the expected transitions, [] float64.

    sum_jk counts_jk E log pi_jk + E log p(pi | alpha, beta) + E log p(u | gamma) + E log p(alpha) p(gamma) + entropies,
    with E log p(pi_j) >= (T - 1) E log alpha + sum_k [E log b_jk + (E[alpha] E[b_jk] - 1) E log pi_jk].
    """
    T, (log_alpha, alpha_kl) = model.truncation, _gamma_terms(state.concentration, model.concentration_prior)
    log_gamma, gamma_kl = _gamma_terms(state.top_concentration, model.top_concentration_prior)
    log_v, log_rest = expected_log_sticks(state.sticks)
    excess = state.counts + state.expected_concentration * _expected_row_means(state, model) - state.rows
    rows = _inner(excess, state.expected_log_rows) + _log_normalizer(state.rows).sum()
    rows = rows + (T + 1) * (T - 1) * log_alpha + _expected_log_row_means(log_v, log_rest, model.stickiness).sum()
    a, b = state.sticks
    sticks = (T - 1) * log_gamma + _log_normalizer(state.sticks.T).sum()
    sticks = sticks - ((a - 1) * log_v + (b - state.expected_top_concentration) * log_rest).sum()
    return rows + sticks - alpha_kl - gamma_kl


# -- what the engine asks ----------------------------------------------------------------------------------------------


def summary(state: SequenceState, data: Sequences, model: StateSpace) -> Draw:
    """What the posterior keeps."""
    r = state.responsibilities
    unseen = state.rows.new_full((model.truncation + 1, 1), -torch.inf)
    log_rows = torch.cat([(state.rows / state.rows.sum(1, keepdim=True)).log(), unseen], 1).to(r)
    share = r.mean(0, dtype=torch.float64).log().to(r)
    return {
        "assignments": r.argmax(1),
        "responsibilities": r,
        "hyperparameters": state.hyperparameters,
        "log_mixture": torch.cat([share, share.new_tensor([-torch.inf])]),
        "log_start": log_rows[-1],
        "log_transitions": log_rows[:-1],
        "weights": state.mean,
        "precision_tril": state.precision_tril,
        "concentration": state.expected_concentration.to(r),
        "top_concentration": state.expected_top_concentration.to(r),
    }


# -- parts -------------------------------------------------------------------------------------------------------------


def emissions(state: SequenceState, data: Sequences, model: StateSpace) -> tuple[Any, Tensor]:
    """Both sides of the hyperplanes at the observed steps, and E log p(x_t | theta_k) + gain_tk [N, T] float64."""
    sides = expect_sides(data.points.features, state.classifiers, model.loss)
    density = model.likelihood.expected_log_density(data.X, state.hyperparameters)
    return sides, data.spread(density + sides.gain).double()


def log_weight(start: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """log of the total weight of all paths through these steps [], 0 without any."""
    if not len(emission):
        return emission.new_zeros(())
    return filter_states(start, transition, emission, [len(emission)])[1].sum()


def _expected_log_rows(rows: Tensor) -> Tensor:
    return torch.digamma(rows) - torch.digamma(rows.sum(1, keepdim=True))


def _log_normalizer(shape: Tensor) -> Tensor:
    """log B [...] of Dirichlet parameters [..., K]."""
    return torch.lgamma(shape).sum(-1) - torch.lgamma(shape.sum(-1))


def _inner(counts: Tensor, log_rows: Tensor) -> Tensor:
    return (counts * log_rows).sum()


def _follow(state: SequenceState, model: StateSpace) -> SequenceState:
    """The optimal q(gamma) and rows given q(u), q(alpha) and the expected transitions."""
    if model.top_concentration_prior is not None:
        shape, rate = model.top_concentration_prior
        _, log_rest = expected_log_sticks(state.sticks)
        top = torch.stack([log_rest.new_tensor(shape + len(log_rest)), rate - log_rest.sum()])
        state = replace(state, top_concentration=top)
    rows = state.counts + state.expected_concentration * _expected_row_means(state, model)
    return replace(state, rows=rows.clamp(min=_TINY))


def _expected_row_means(state: SequenceState, model: StateSpace) -> Tensor:
    """E[b_jk] [T + 1, T]."""
    a, b = state.sticks
    zero = a.new_zeros(1)
    log_v, log_rest = (a / (a + b)).log(), (b / (a + b)).log()
    log_beta = torch.cat([log_v, zero]) + torch.cat([zero, log_rest.cumsum(0)])
    return row_means(log_beta.exp(), model.truncation, model.stickiness)


def _expected_log_row_means(log_v: Tensor, log_rest: Tensor, stickiness: float) -> Tensor:
    """A lower bound of E log b_jk [T + 1, T], equal to it for rho = 0."""
    zero = log_v.new_zeros(1)
    log_beta = torch.cat([log_v, zero]) + torch.cat([zero, log_rest.cumsum(0)])
    if not stickiness:
        return log_beta.expand(len(log_beta) + 1, -1)
    rest = log_beta + math.log1p(-stickiness)
    own = torch.logaddexp(rest, rest.new_tensor(math.log(stickiness)))
    diagonal = torch.eye(len(rest), dtype=torch.bool, device=rest.device)
    return torch.cat([torch.where(diagonal, own, rest), log_beta.unsqueeze(0)])


def _gamma_terms(parameters: Tensor, prior: tuple[float, float] | None) -> tuple[Tensor, Tensor]:
    """(E log alpha, KL from the prior) of q(alpha) = Gamma, or of a fixed alpha."""
    shape, rate = parameters
    if prior is None:
        return shape.log() - rate.log(), torch.zeros_like(shape)
    expected_log, (least, slowest) = torch.digamma(shape) - rate.log(), prior
    kl = (shape - least) * expected_log + shape * (slowest / rate - 1) + shape * rate.log() - torch.lgamma(shape)
    return expected_log, kl + math.lgamma(least) - least * math.log(slowest)


def _start(value: float, prior: tuple[float, float] | None, num_factors: int, like: Tensor) -> Tensor:
    """(shape, rate) [2] of mean `value`, with the shape that the optimum has."""
    shape = prior[0] + num_factors if prior else value
    return like.new_tensor([shape, shape / value])


def _prior_classifiers(model: StateSpace, data: Sequences) -> dict[str, Any]:
    T, (M, C), P = model.truncation, data.points.targets.shape, data.points.features.shape[1]
    identity = torch.eye(P, dtype=data.X.dtype, device=data.X.device)
    return {
        "mean": data.X.new_zeros(T, P, C),
        "precision_tril": identity.repeat(T, C, 1, 1) / model.weight_scale,
        "precision": data.X.new_zeros(M, T, C),
        "shift": data.X.new_zeros(M, T, C),
    }


def _independent_counts(r: Tensor, starts: Tensor) -> Tensor:
    """Expected transitions [T + 1, T] if all steps were independent with marginals r [N, T]."""
    before = torch.where(starts[1:].unsqueeze(1), 0.0, r[:-1])
    return torch.cat([before.T @ r[1:], r[starts].sum(0, keepdim=True)])


_NUM_CLIMBS = 30  # L-BFGS iterations for the sticks and alpha in each sweep
_SETTLED = 1e-2  # rise of the bound, in nats per step, below which merges are tried
_MERGE_ROUNDS = 3
_TINY = 1e-100  # least Dirichlet parameter: its trigamma is still finite
