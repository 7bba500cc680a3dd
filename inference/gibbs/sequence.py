"""Gibbs sampling of the infinite hidden Markov models: three scans of the states around one draw of everything else.

    target(z, beta, eta) = p(z | beta) p(beta) prod_k m(X_k) G(eta_k) prod_t exp(h(eta_{z_t}^T a_t))

    "direct"    each step in turn, rows and the family's parameters integrated out        infinite model
    "beam"      all steps of a sequence at once, given rows, slices and fresh states       infinite model
    "blocked"   all steps of a sequence at once, given T rows                              truncated model

A state is (z, beta, alpha, gamma, eta); rows, parameters of the family, tables and augmentation variables are drawn
where a step needs them and then dropped. m is the marginal of a state's steps, G the law of a hyperplane without
points, h its gain (`hyperplanes`); a model whose states do not repel has neither of these two.

Sources: Teh et al. (2006) for "direct" and the tables; Van Gael et al. (2008) for "beam"; Fox et al. (2011) for
"blocked" and the stickiness; Nguyen, Phung, Le & Bui; math/discriminative-clustering, sections 9 to 11.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...models.dpm import DPM
from ...models.likelihoods.base import Parameters
from ...models.priors.hierarchical_dirichlet_process import (
    count_transitions,
    draw_base_weights,
    draw_row_concentration,
    draw_sticks,
    draw_tables,
    draw_top_concentration,
    log_dirichlet,
    log_gamma_draw,
    log_paths,
    row_means,
)
from ...models.sequence import Sequences, StateSpace
from ..engine import Draw
from ..markov import sample_paths
from ..seeding import far_apart
from . import direct, partition
from ._component_states import is_compiled
from .hyperplanes import draw_from_prior, draw_hyperplanes, fill_reservoir, refresh_reservoir
from .state import SequenceState

__all__ = [
    "beam_scan",
    "blocked_scan",
    "draw",
    "draw_prior",
    "emissions",
    "hyperparameters",
    "init",
    "log_joint",
    "relabel",
    "row_posterior",
    "sweep",
]

Scan = Callable[[SequenceState, Sequences, StateSpace, torch.Generator], SequenceState]


def init(
    model: Any, data: Sequences, generator: torch.Generator, *, start: str | Tensor, scan: str, num_sweeps: int
) -> SequenceState:
    """A state from labels [N], or from the best of some starts after blocked sweeps without hyperplanes.

    One of these starts is a mixture without time (`start` is how it starts itself, "one" or "random"), the others put
    every step to the nearest of some steps that are far apart. States alike are then joined. A chain of states hardly
    ever leaves a bad start.
    """
    truncated = scan == "blocked"
    if isinstance(start, Tensor):
        states = torch.unique(start.to(data.X.device), return_inverse=True)[1]
    else:
        states = _best_start(model, data, generator, start, num_sweeps)
        states = states if truncated else torch.unique(states, return_inverse=True)[1]
    num_states = model.truncation if truncated else int(states.max()) + 1
    state = _from_states(states, num_states, data, model, truncated=truncated)
    if model.repels and not truncated:
        state = replace(state, reservoir=fill_reservoir(data.points.features, model, generator))
    for _ in range(_NUM_SETTLING):
        state = draw_prior(state, data, model, generator, truncated=truncated)
        state = replace(state, weights=_draw_weights(state, data, model, generator))
    return state


def sweep(
    state: SequenceState,
    data: Sequences,
    model: StateSpace,
    generator: torch.Generator,
    *,
    scan: str,
    births: str = "exact",
) -> SequenceState:
    """One sweep; each line leaves the target invariant (except for births from the "prior", the paper's scan).

    "auto" is "direct" where that is compiled, else "beam".
    """
    if scan == "auto":
        compiled = data.X.device.type == "cpu" and is_compiled(model.likelihood)
        scan = "direct" if compiled else "beam"
    state = _SCANS[scan](state, data, model, generator)
    state = replace(state, weights=_draw_weights(state, data, model, generator))
    if state.reservoir is not None:
        refill = refresh_reservoir if births == "exact" else draw_from_prior
        state = replace(state, reservoir=refill(state.reservoir, data.points.features, model, generator))
    state = draw_prior(state, data, model, generator, truncated=scan == "blocked")
    return relabel(state, generator) if scan == "blocked" else state


# -- states ------------------------------------------------------------------------------------------------------------


def blocked_scan(state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator) -> SequenceState:
    """All states of the truncated model at once: rows pi_j ~ Dirichlet(alpha b_j + n_j), then whole paths."""
    T = len(state.weights)
    log_rows = log_dirichlet(row_posterior(state, data, model)[:, :T], generator)
    table = emissions(_draw_parameters(state, data, model, generator), state.weights, data, model)
    uniforms = _uniforms((data.num_data,), generator)
    return replace(state, states=sample_paths(log_rows[T], log_rows[:T], table, data.lengths, uniforms))


def beam_scan(state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator) -> SequenceState:
    """All states of the infinite model at once, given a slice below the weight of every step.

    u_t ~ U(0, pi_{z_{t-1} z_t});  what the rows leave to states not yet seen is broken into new states until it is
    below every slice;  then whole paths among the steps with pi_jk > u_t, which all weigh 1.
    """
    K, starts = len(state.weights), data.starts
    log_rows = log_dirichlet(row_posterior(state, data, model), generator)
    slices, uniforms = _uniforms((2, data.num_data), generator)
    before = torch.where(starts, K, torch.cat([state.states.new_full((1,), K), state.states[:-1]]))
    log_slices = log_rows[before, state.states] + torch.log1p(-slices)
    lowest, base = log_slices.min(), state.base
    while log_rows[:, -1].max() > lowest:
        num_new = max(1, len(base) - 1 - K)  # as many again: few passes, and at most twice the states that it takes
        log_rows, base = _break_rest(log_rows, base, num_new, state, model, generator)
    num_new = len(base) - 1 - K
    weights, reserved = state.weights, state.reservoir
    parameters = _draw_parameters(state, data, model, generator)
    if num_new:
        prior = model.likelihood.prior().expand(num_new, -1).contiguous()
        fresh = model.likelihood.draw(prior, generator)
        parameters = {name: torch.cat([value, fresh[name]]) for name, value in parameters.items()}
        new_weights, reserved = _fresh_weights(num_new, state, data, model, generator)
        weights = torch.cat([weights, new_weights])
    table = emissions(parameters, weights, data, model)
    log_steps = log_rows[:, :-1]
    paths = sample_paths(log_steps[-1], log_steps[:-1], table, data.lengths, uniforms, log_slices)
    labels, states = torch.unique(paths, return_inverse=True)
    unseen = torch.ones(len(weights), dtype=torch.bool, device=labels.device).index_fill(0, labels, False)
    if reserved is not None:
        reserved = torch.cat([reserved, weights[unseen]])
    kept = torch.cat([base[labels], base[-1:] + base[:-1][unseen].sum()])
    return replace(state, states=states, weights=weights[labels], base=kept, reservoir=reserved)


_SCANS: dict[str, Scan] = {"direct": direct.scan, "beam": beam_scan, "blocked": blocked_scan}


def emissions(parameters: Parameters, weights: Tensor, data: Sequences, model: StateSpace) -> Tensor:
    """log p(x_t | theta_k) + h(eta_k^T a_t) [N, K]; 0 at missing steps."""
    points = data.points
    scores = torch.einsum("np,kpc->nkc", points.features, weights)
    margin = model.log_margin(scores, points.targets.unsqueeze(1))
    return data.spread(model.likelihood.log_density(points.X, parameters) + margin)


# -- rows, base weights, concentrations --------------------------------------------------------------------------------


def row_posterior(state: SequenceState, data: Sequences, model: StateSpace) -> Tensor:
    """alpha b_jk + n_jk [K + 1, K + 1] of every row pi_j | z ~ Dirichlet: last row starts, last column is the rest."""
    K = len(state.weights)
    shape = state.concentration * row_means(state.base, K, model.stickiness)
    shape[:, :K] += count_transitions(state.states, data.starts, K)
    return shape


def draw_prior(
    state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator, *, truncated: bool
) -> SequenceState:
    """Tables, then alpha, gamma and beta given the states (math/discriminative-clustering, section 10)."""
    K = len(state.weights)
    counts = count_transitions(state.states, data.starts, K)
    means = row_means(state.base, K, model.stickiness)[:, :K]
    tables, chosen = draw_tables(counts, state.concentration, means, model.stickiness, generator)
    alpha = draw_row_concentration(state.concentration, counts, tables, model.concentration_prior, generator)
    gamma = state.top_concentration
    if not truncated:
        gamma = draw_top_concentration(gamma, chosen, model.top_concentration_prior, generator)
        base = draw_base_weights(chosen, gamma, generator)
    else:
        log_base, log_rest = draw_sticks(chosen, gamma, generator)
        base = torch.cat([log_base.exp(), log_base.new_zeros(1)])
        if model.top_concentration_prior is not None:
            shape, rate = model.top_concentration_prior
            gamma = torch._standard_gamma(gamma.new_tensor(shape + K - 1), generator=generator) / (rate - log_rest)
    return replace(state, base=base, concentration=alpha, top_concentration=gamma)


def relabel(state: SequenceState, generator: torch.Generator) -> SequenceState:
    """Metropolis swaps of neighbouring labels k, k + 1 of the truncated model, along with their base weights.

    Only the density of beta changes, gamma^(T-1) beta_T^(gamma-1) prod_{k<T} 1 / r_k with r_k = 1 - sum_{j<k} beta_j:
    by (r_k - beta_k) / (r_k - beta_{k+1}), and at the last pair by (beta_{T-1} / beta_T)^(gamma-1).
    """
    base, gamma = state.base[:-1].tolist(), float(state.top_concentration)
    T, order = len(base), list(range(len(base)))
    log_uniforms = torch.log1p(-_uniforms((T - 1,), generator)).tolist()
    for k, log_uniform in enumerate(log_uniforms):
        own, other, rest = base[k], base[k + 1], math.fsum(base[k + 2 :])
        last = k + 2 == T
        log_ratio = (gamma - 1) * (_log(own) - _log(other)) if last else _log(other + rest) - _log(own + rest)
        if log_uniform < log_ratio:
            base[k], base[k + 1] = other, own
            order[k], order[k + 1] = order[k + 1], order[k]
    kept = torch.tensor(order, device=state.states.device)
    moved = torch.cat([state.base[kept], state.base[-1:]])
    return replace(state, states=torch.argsort(kept)[state.states], weights=state.weights[kept], base=moved)


def _break_rest(
    log_rows: Tensor, base: Tensor, num_new: int, state: SequenceState, model: StateSpace, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """M more states: Beta(1, gamma) shares of what is left of beta, Dirichlet(alpha b) ones of the rest of each row."""
    alpha, gamma, K = state.concentration, state.top_concentration, len(base) - 1 + num_new
    log_share = torch.log1p(-_uniforms((num_new,), generator)) / gamma  # of 1 - s, for s ~ Beta(1, gamma)
    left = base[-1] * log_share.cumsum(0).exp()
    new = torch.cat([base[-1:], left[:-1]]) * -torch.expm1(log_share)
    base = torch.cat([base[:-1], new, left[-1:]])
    means = row_means(base, K, model.stickiness)  # rows of the K states and of the start
    known = torch.cat([means[: K - num_new], means[-1:]])[:, K - num_new :]
    split = log_rows[:, -1:] + log_gamma_draw(alpha * known, generator).log_softmax(1)
    fresh = log_dirichlet(alpha * means[K - num_new : K], generator)
    widened = torch.cat([log_rows[:, :-1], split], 1)
    return torch.cat([widened[:-1], fresh, widened[-1:]]), base


# -- log joint, and what a posterior keeps -----------------------------------------------------------------------------


def log_joint(state: SequenceState, data: Sequences, model: StateSpace, *, truncated: bool) -> Tensor:
    """log density of (z, beta, alpha, gamma, eta) and the data, the rest integrated out.

    beta counts through its sticks in the truncated model. In an infinite model whose states repel the density is
    relative to the law of a hyperplane without points, as in `partition.log_joint`.
    """
    K, gamma = len(state.weights), state.top_concentration
    log_prior = _log_path(state, data, model)
    log_base = state.base.clamp(min=_TINY).log()
    if truncated:
        log_prior = log_prior + (K - 1) * gamma.log() + (gamma - 1) * log_base[K - 1]
    else:
        log_prior = log_prior + K * gamma.log() + (gamma - 1) * log_base[K] - log_base[:K].sum()
    for value, prior in (
        (state.concentration, model.concentration_prior),
        (gamma, model.top_concentration_prior),
    ):
        if prior is not None:
            law = torch.distributions.Gamma(value.new_tensor(prior[0]), value.new_tensor(prior[1]))
            log_prior = log_prior + law.log_prob(value)
    points, own = data.points, state.states[data.steps]
    log_marginal = model.likelihood.log_marginal(hyperparameters(state, data, model)).double().sum()
    log_marginal = log_marginal + model.likelihood.log_base_measure(points.X).double().sum()
    scores = torch.einsum("np,npc->nc", points.features, state.weights[own])
    log_margin = model.log_margin(scores, points.targets).double().sum()
    if model.repels and truncated:
        log_margin = log_margin + model.log_rejection(points.features @ state.weights.squeeze(-1).T).double().sum()
        square = (state.weights.double() / model.weight_scale).square().sum()
        log_margin = log_margin - (square + state.weights.numel() * math.log(2 * math.pi * model.weight_scale**2)) / 2
    return log_prior + log_marginal + log_margin


def draw(state: SequenceState, data: Sequences, model: StateSpace, *, truncated: bool) -> Draw:
    """What the posterior keeps of a state; the rows are their expectations given the states."""
    K, dtype = len(state.weights), data.X.dtype
    expected = row_posterior(state, data, model)
    log_rows = (expected.log() - expected.sum(1, keepdim=True).log()).to(dtype)
    share = torch.bincount(state.states, minlength=K).double() / data.num_data
    unseen_row = (1 - model.stickiness) * state.base  # and it may stay where it is
    unseen_row[-1] += model.stickiness
    return {
        "assignments": state.states,
        "hyperparameters": hyperparameters(state, data, model),
        "log_mixture": torch.cat([share, share.new_zeros(1)]).to(dtype).log(),
        "log_start": log_rows[K],
        "log_transitions": log_rows[:K],
        "log_unseen_row": unseen_row.log().to(dtype),
        "weights": state.weights,
        "concentration": state.concentration.to(dtype),
        "top_concentration": state.top_concentration.to(dtype),
        "log_joint": log_joint(state, data, model, truncated=truncated),
    }


def hyperparameters(state: SequenceState, data: Sequences, model: StateSpace) -> Tensor:
    """Posterior hyperparameters [K, S] of every state's family, from the observed steps."""
    sums = model.likelihood.summed_statistics(data.X, state.states[data.steps], len(state.weights))
    return model.likelihood.prior() + sums


# -- scratch -----------------------------------------------------------------------------------------------------------


def _best_start(model: Any, data: Sequences, generator: torch.Generator, start: str, num_sweeps: int) -> Tensor:
    """States [N] of the highest log joint that blocked sweeps of the plain model reach from several starts."""
    plain = model.without_hyperplanes() if model.repels else model
    points = DPM(plain.likelihood, truncation=plain.truncation, num_features=plain.num_features)
    mixture = partition.init(points, points.data(data.X), generator, start=start, truncated=True)
    for _ in range(num_sweeps):
        mixture = partition.sweep(mixture, points.data(data.X), points, generator, scan="blocked", num_split_merge=2)
    labels = [mixture.assignments]
    for count in sorted({min(count, plain.truncation, len(data.X)) for count in _NUM_SEEDS}):
        seeds = data.X[far_apart(plain.likelihood, data.X, count, generator)]
        chi = plain.likelihood.prior() + plain.likelihood.statistics(seeds)
        labels.append(plain.likelihood.log_predictive(data.X, chi).argmax(1))
    ends = []
    bare = replace(data, points=points.data(data.X))
    for own in labels:
        state = _from_states(_fill_gaps(own, data), plain.truncation, bare, plain, truncated=True)
        for _ in range(num_sweeps):
            state = sweep(state, bare, plain, generator, scan="blocked")
        state = _merge_alike(state, bare, plain)
        ends.append(draw_prior(state, bare, plain, generator, truncated=True))
    return max(ends, key=lambda end: float(log_joint(end, bare, plain, truncated=True))).states


def _merge_alike(state: SequenceState, data: Sequences, model: StateSpace) -> SequenceState:
    """A state in which the two states of the most similar steps are one, as long as p(z, X | alpha, beta) rises.

    A chain hardly ever joins two states that share the steps of one, and seeds may well be too many.
    """
    K, likelihood = len(state.weights), model.likelihood
    first, second = torch.triu_indices(K, K, 1, device=state.states.device)
    while True:
        chi = hyperparameters(state, data, model)
        log_own = likelihood.log_marginal(chi)
        gain = likelihood.log_marginal(chi[first] + chi[second] - likelihood.prior())
        gain = gain - log_own[first] - log_own[second]
        used = torch.bincount(state.states, minlength=K) > 0
        pair = int(torch.where(used[first] & used[second], gain, -torch.inf).argmax())
        one, other = first[pair : pair + 1], second[pair : pair + 1]
        base = state.base.index_add(0, one, state.base[other]).index_fill(0, other, 0.0)
        merged = replace(state, states=torch.where(state.states == other, one, state.states), base=base)
        gain_of_paths = _log_path(merged, data, model) - _log_path(state, data, model)
        if not gain[pair] + gain_of_paths > 0:
            return state
        state = merged


def _from_states(
    states: Tensor, num_states: int, data: Sequences, model: StateSpace, *, truncated: bool
) -> SequenceState:
    """A state with beta uniform over the states (and one more that stands for the rest), hyperplanes at 0."""
    weights = data.X.new_zeros(num_states, data.points.features.shape[1], data.points.targets.shape[1])
    base = torch.tensor([1.0] * num_states + [0.0 if truncated else 1.0], dtype=torch.float64, device=data.X.device)
    alpha, gamma = base.new_tensor(model.concentration), base.new_tensor(model.top_concentration)
    return SequenceState(states, weights, base / base.sum(), alpha, gamma)


def _fill_gaps(labels: Tensor, data: Sequences) -> Tensor:
    """States [N]: those of the observed steps [M], and at a missing step that of the last observed one before it."""
    place = torch.zeros(data.num_data, dtype=torch.long, device=labels.device)
    place[data.steps] = 1
    return labels[(place.cumsum(0) - 1).clamp(min=0)]


def _draw_parameters(
    state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator
) -> Parameters:
    return model.likelihood.draw(hyperparameters(state, data, model), generator)


def _draw_weights(state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator) -> Tensor:
    return draw_hyperplanes(data.points.features, state.states[data.steps], state.weights, model, generator)


def _fresh_weights(
    num_new: int, state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Hyperplanes [M, P, 1] for new states, and what is left of the reservoir."""
    reserved = state.reservoir
    if reserved is None:
        return state.weights.new_zeros(num_new, *state.weights.shape[1:]), None
    if num_new > len(reserved):
        more = fill_reservoir(data.points.features, model, generator, size=num_new - len(reserved))
        reserved = torch.cat([reserved, more])
    order = torch.randperm(len(reserved), generator=generator, device=reserved.device)
    return reserved[order[:num_new]], reserved[order[num_new:]]


def _log(weight: float) -> float:
    return math.log(max(weight, _TINY))


def _log_path(state: SequenceState, data: Sequences, model: StateSpace) -> Tensor:
    """log p(z | alpha, beta), rows integrated out."""
    K = len(state.weights)
    counts = count_transitions(state.states, data.starts, K)
    return log_paths(counts, state.concentration, row_means(state.base, K, model.stickiness)[:, :K])


def _uniforms(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)


_TINY = torch.finfo(torch.float64).tiny
_NUM_SEEDS = (3, 6, 12)
_NUM_SETTLING = 10  # draws of base weights and hyperplanes before the first sweep
