"""Gibbs sampling of a DP mixture of classifiers: three scans of the assignments around one draw of everything else.

    target(z, eta) = p(z) prod_k m(X_k) N(eta_k; 0, nu^2 I) prod_n phi(y_n | eta_{z_n}^T a_n),      m: block marginals

    "collapsed"   each point in turn, the family's parameters integrated out        infinite model, p(z) = EPPF
    "slice"       all points at once given weights, slices and fresh components     infinite model, p(z) = EPPF
    "blocked"     all points at once given T sticks                                 truncated model, z labelled 0..T-1

A state is (z, eta, alpha); mixture weights, parameters theta of the family and augmentation variables omega are drawn
where a step needs them and then dropped. Every scan has omega integrated out, so omega is drawn anew before eta is: the
order z, omega, eta of `sweep` is part of its correctness (math/dp-mixtures, section 4).

Where components repel (`Hyperplanes`), phi(y_n | eta_{z_n}) is exp(h(eta_{z_n}^T a_n)), every eta_k is drawn given all
points, and new components take theirs from a reservoir instead of the prior (`hyperplanes`).

Sources: Wang & Zhu (2014), with new components drawn as in Neal (2000); Walker (2007), Kalli, Griffin & Walker (2011)
for the slice, in the Dirichlet form of section 4 (iii); Ishwaran & James (2001) for the truncated scan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from ...models.likelihoods.base import Parameters, row_chunks
from ...models.losses.base import PseudoObservation
from ...models.mixture import Data, Mixture
from ...models.priors.dirichlet_process import (
    log_eppf,
    log_labelled_prior,
    log_stick_weights,
    posterior_sticks,
    resample_concentration,
)
from ..engine import Draw
from ..ridge import Ridge, weighted_ridge
from . import collapsed
from ._component_states import is_compiled
from .hyperplanes import NUM_RESERVED, draw_from_prior, draw_hyperplanes, fill_reservoir, refresh_reservoir
from .split_merge import split_merge
from .state import PartitionState

__all__ = [
    "Components",
    "assignment_logits",
    "blocked_scan",
    "draw",
    "draw_assignments",
    "draw_concentration",
    "draw_weights",
    "hyperparameters",
    "init",
    "init_generatively",
    "log_joint",
    "mixture_posterior",
    "observe",
    "own_scores",
    "relabel",
    "slice_scan",
    "sweep",
    "weights_posterior",
]

Scan = Callable[[PartitionState, Data, Mixture, torch.Generator], PartitionState]


def init(
    model: Mixture, data: Data, generator: torch.Generator, *, start: str | Tensor, truncated: bool
) -> PartitionState:
    """A state with all points in one component (`start` is "one"), at random in T ("random"), or as given [N]."""
    if isinstance(start, Tensor):
        assignments = torch.unique(start.to(data.X.device), return_inverse=True)[1]
    elif start == "random":
        like: dict[str, Any] = {"generator": generator, "device": data.X.device}
        chosen = torch.randint(model.truncation, (data.num_data,), **like)
        assignments = chosen if truncated else torch.unique(chosen, return_inverse=True)[1]
    else:
        assignments = torch.zeros(data.num_data, dtype=torch.long, device=data.X.device)
    num_components = model.truncation if truncated else int(assignments.max()) + 1
    weights = data.X.new_zeros(num_components, data.features.shape[1], data.targets.shape[1])
    state = PartitionState(assignments, weights, data.X.new_tensor(model.concentration))
    if model.repels and not truncated:
        state = replace(state, reservoir=fill_reservoir(data.features, model, generator))
    return replace(state, weights=draw_weights(state, data, model, generator))


def init_generatively(
    model: Any, data: Data, generator: torch.Generator, *, start: str | Tensor, scan: str, num_sweeps: int
) -> PartitionState:
    """A state of a model whose components repel after sweeps of the mixture without hyperplanes (Nguyen et al.)."""
    plain = model.without_hyperplanes()
    truncated, plain_data = scan == "blocked", plain.data(data.X)
    state = init(plain, plain_data, generator, start=start, truncated=truncated)
    for _ in range(num_sweeps):
        state = sweep(state, plain_data, plain, generator, scan=scan, num_split_merge=2)
    full = init(model, data, generator, start="one", truncated=truncated)
    weights = full.weights.new_zeros(len(state.weights), *full.weights.shape[1:])
    full = replace(full, assignments=state.assignments, concentration=state.concentration, weights=weights)
    for _ in range(_NUM_SETTLING):
        full = replace(full, weights=draw_weights(full, data, model, generator))
    return full


def sweep(
    state: PartitionState,
    data: Data,
    model: Mixture,
    generator: torch.Generator,
    *,
    scan: str,
    num_split_merge: int,
    births: str = "exact",
) -> PartitionState:
    """One sweep; each line leaves the target invariant (except for births from the "prior", the paper's scan).

    "auto" is "collapsed" where that is compiled, else "slice".
    """
    if scan == "auto":
        compiled = data.X.device.type == "cpu" and is_compiled(model.likelihood)
        scan = "collapsed" if compiled else "slice"
    for _ in range(0 if model.repels else num_split_merge):
        state = split_merge(state, data, model, generator, truncated=scan == "blocked")
    state = _SCANS[scan](state, data, model, generator)
    state = replace(state, weights=draw_weights(state, data, model, generator))
    if scan == "blocked":
        return relabel(state, generator)  # its concentration was drawn along with the sticks
    if state.reservoir is not None:
        refill = refresh_reservoir if births == "exact" else draw_from_prior
        state = replace(state, reservoir=refill(state.reservoir, data.features, model, generator))
    return replace(state, concentration=draw_concentration(state, model, generator))


# -- assignments -------------------------------------------------------------------------------------------------------


class Components(NamedTuple):
    """What a point chooses from."""

    log_mixture: Tensor  # [K] float64
    parameters: Parameters  # of the family, each [K, ...]
    weights: Tensor  # [K, P, C]

    def join(self, other: Components) -> Components:
        """These components, then the others."""
        parameters = {name: torch.cat([value, other.parameters[name]]) for name, value in self.parameters.items()}
        log_mixture = torch.cat([self.log_mixture, other.log_mixture])
        return Components(log_mixture, parameters, torch.cat([self.weights, other.weights]))


def assignment_logits(data: Data, components: Components, model: Mixture) -> Tensor:
    """log p(x_n | theta_k) + log phi(y_n | eta_k^T a_n) [N, K]: what a scan adds the mixture weights or slices to."""
    scores = torch.einsum("np,kpc->nkc", data.features, components.weights)
    log_density = model.likelihood.log_density(data.X, components.parameters)
    return log_density + model.log_margin(scores, data.targets.unsqueeze(1))


def draw_assignments(
    data: Data, components: Components, model: Mixture, uniforms: Tensor, log_slices: Tensor | None = None
) -> Tensor:
    """A component [N] for each point by inverse CDF, with weight pi_k p(x_n | theta_k) phi(y_n | eta_k).

    With slices log u_n [N] the mixture weights enter only through the indicator of u_n <= pi_k.
    """
    chosen = torch.empty(data.num_data, dtype=torch.long, device=data.X.device)
    for rows in row_chunks(data.X, len(components.weights) * (1 + data.targets.shape[1])):
        logits = assignment_logits(data.rows(rows), components, model)
        if log_slices is None:
            logits += components.log_mixture.to(logits)
        else:
            logits.masked_fill_(components.log_mixture < log_slices[rows, None], -torch.inf)
        cumulative = logits.softmax(1).cumsum(1)
        total = cumulative[:, -1:]
        # below the total even after rounding, so that no component of weight zero is ever chosen
        level = torch.minimum(uniforms[rows, None] * total, torch.nextafter(total, torch.zeros_like(total)))
        chosen[rows] = torch.searchsorted(cumulative, level, right=True).squeeze(1)
    return chosen


def slice_scan(state: PartitionState, data: Data, model: Mixture, generator: torch.Generator) -> PartitionState:
    """All assignments of the infinite model at once, given slices u_n below the weight of their component.

    (w_1..w_K, w_0) ~ Dirichlet(n_1..n_K, alpha),  u_n ~ U(0, w_{z_n}); w_0 is broken into new components, with theta
    and eta from their priors, until what is left is below every u_n; then z_n among the components with w_k >= u_n.
    """
    uniforms, slices = _uniforms((2, data.num_data), generator)
    alpha, counts = state.concentration.double(), _counts(state)
    log_weights = _log_gamma_draw(torch.cat([counts, alpha.reshape(1)]), generator).log_softmax(0)
    occupied = Components(log_weights[:-1], _draw_parameters(state, data, model, generator), state.weights)
    log_slices = log_weights[state.assignments] + torch.log1p(-slices)
    log_sticks = _break_rest(log_weights[-1], log_slices.min(), alpha, generator)
    chosen = draw_assignments(data, occupied, model, uniforms, log_slices)
    reserved = state.reservoir
    if len(log_sticks):
        fresh, reserved = _fresh(log_sticks, state, data, model, generator)
        near = torch.nonzero(log_slices <= log_sticks.max()).squeeze(1)  # few: about alpha K of the N points
        occupied = occupied.join(fresh)
        chosen[near] = draw_assignments(data.rows(near), occupied, model, uniforms[near], log_slices[near])
    labels, assignments = torch.unique(chosen, return_inverse=True)
    if reserved is not None:
        closed = torch.ones(len(occupied.weights), dtype=torch.bool, device=labels.device).index_fill(0, labels, False)
        reserved = torch.cat([reserved, occupied.weights[closed]])
    return replace(state, assignments=assignments, weights=occupied.weights[labels], reservoir=reserved)


def blocked_scan(state: PartitionState, data: Data, model: Mixture, generator: torch.Generator) -> PartitionState:
    """All assignments of the truncated model at once, given sticks v_k | z.

    A concentration with a prior is drawn from Gamma(shape + T - 1, rate - sum_{k<T} log(1 - v_k)) next to the sticks.
    """
    uniforms = _uniforms((data.num_data,), generator)
    after, before = posterior_sticks(_counts(state), state.concentration.double())
    log_odds = _log_gamma_draw(after, generator) - _log_gamma_draw(before, generator)
    # in logs: for a small alpha 1 - v is often far below the rounding of v
    log_stick, log_rest = logsigmoid(log_odds), logsigmoid(-log_odds)
    if model.concentration_prior is not None:
        shape, rate = model.concentration_prior
        alpha = torch._standard_gamma(log_rest.new_tensor(shape + len(log_rest)), generator=generator)
        state = replace(state, concentration=(alpha / (rate - log_rest.sum())).to(state.concentration))
    log_mixture = pad(log_stick, (0, 1)) + pad(log_rest.cumsum(0), (1, 0))
    components = Components(log_mixture, _draw_parameters(state, data, model, generator), state.weights)
    return replace(state, assignments=draw_assignments(data, components, model, uniforms))


_SCANS: dict[str, Scan] = {"collapsed": collapsed.scan, "slice": slice_scan, "blocked": blocked_scan}


def relabel(state: PartitionState, generator: torch.Generator) -> PartitionState:
    """Metropolis swaps of neighbouring labels k, k + 1 of the truncated model, sticks integrated out.

    With r = n_{>k+1} the labelled prior changes by (alpha + n_{k+1} + r) / (alpha + n_k + r), and at the last pair,
    where the last stick is 1, by B(1 + n_{k+1}, alpha + n_k) / B(1 + n_k, alpha + n_{k+1}).
    """
    counts, alpha = _counts(state).tolist(), float(state.concentration)
    log_uniforms = torch.log1p(-_uniforms((len(counts) - 1,), generator)).tolist()
    order, rest = list(range(len(counts))), float(sum(counts))
    for k, log_uniform in enumerate(log_uniforms):
        own, other = counts[k], counts[k + 1]
        rest -= own + other
        if k + 2 < len(counts):
            log_ratio = math.log(alpha + other + rest) - math.log(alpha + own + rest)
        else:
            log_ratio = math.lgamma(1 + other) + math.lgamma(alpha + own)
            log_ratio -= math.lgamma(1 + own) + math.lgamma(alpha + other)
        if log_uniform < log_ratio:
            counts[k], counts[k + 1] = other, own
            order[k], order[k + 1] = order[k + 1], order[k]
        rest += counts[k + 1]
    kept = torch.tensor(order, device=state.assignments.device)
    return replace(state, assignments=torch.argsort(kept)[state.assignments], weights=state.weights[kept])


# -- classifiers -------------------------------------------------------------------------------------------------------


def draw_weights(state: PartitionState, data: Data, model: Mixture, generator: torch.Generator) -> Tensor:
    """Classifiers [K, P, C] given the assignments: for each block of scores a fresh omega, then eta | omega."""
    if model.repels:
        return draw_hyperplanes(data.features, state.assignments, state.weights, model, generator)
    weights = state.weights.clone()
    for columns in model.loss.blocks(data.targets.shape[1]):
        observed = observe(replace(state, weights=weights), data, model, columns, generator)
        weights[..., columns] = weights_posterior(state, data, model, observed).draw(generator)
    return weights


def observe(
    state: PartitionState, data: Data, model: Mixture, columns: slice, generator: torch.Generator
) -> PseudoObservation:
    """Gaussian pseudo-observations [N, C'] of the scores in these columns, at a draw of omega given all scores."""
    scores = own_scores(state, data)
    reference = model.loss.reference(scores, data.targets, columns)
    precision, shift = model.loss.augment(scores[:, columns] - reference, data.targets[:, columns], generator)
    return PseudoObservation(precision, shift + precision * reference)


def weights_posterior(state: PartitionState, data: Data, model: Mixture, observed: PseudoObservation) -> Ridge:
    """N(A_k^-1 B_k, A_k^-1) of the observed scores' classifiers; the prior for an empty component."""
    return weighted_ridge(
        data.features,
        *observed,
        state.assignments,
        num_components=len(state.weights),
        weight_scale=model.weight_scale,
    )


def own_scores(state: PartitionState, data: Data) -> Tensor:
    """Scores [N, C] of the points under their own component's classifiers."""
    return torch.cat(
        [
            torch.einsum("np,npc->nc", data.features[rows], state.weights[state.assignments[rows]])
            for rows in row_chunks(data.X, state.weights[0].numel())
        ]
    )


# -- concentration, log joint, and what a posterior keeps --------------------------------------------------------------


def draw_concentration(state: PartitionState, model: Mixture, generator: torch.Generator) -> Tensor:
    """alpha given the number of components of the infinite model (Escobar & West 1995); as it was without a prior."""
    if model.concentration_prior is None:
        return state.concentration
    num_components, num_data = len(state.weights), len(state.assignments)
    alpha = state.concentration.double()
    return resample_concentration(alpha, num_components, num_data, model.concentration_prior, generator).to(
        state.concentration
    )


def log_joint(state: PartitionState, data: Data, model: Mixture, *, truncated: bool) -> Tensor:
    """log density of (z, eta, alpha) and the data: theta and the mixture weights integrated out, omega too.

    In an infinite model whose components repel it is relative to the law of a hyperplane without points, whose
    normalizer nobody knows: the hyperplanes then count through exp(h) alone.
    """
    counts, alpha = _counts(state), state.concentration.double()
    log_prior = log_labelled_prior(counts, alpha) if truncated else log_eppf(counts, alpha)
    if model.concentration_prior is not None:
        shape, rate = (torch.tensor(value, dtype=torch.float64) for value in model.concentration_prior)
        log_prior = log_prior + torch.distributions.Gamma(shape, rate).log_prob(alpha.cpu()).to(alpha)
    log_marginal = model.likelihood.log_marginal(hyperparameters(state, data, model)).double().sum()
    log_base = model.likelihood.log_base_measure(data.X).double().sum()
    log_margin = model.log_margin(own_scores(state, data), data.targets).double().sum()
    if model.repels and not truncated:
        return log_prior + log_marginal + log_base + log_margin
    if model.repels:
        log_margin = log_margin + model.log_rejection(data.features @ state.weights.squeeze(-1).T).double().sum()
    square = (state.weights.double() / model.weight_scale).square().sum()
    log_weights = -(square + state.weights.numel() * math.log(2 * math.pi * model.weight_scale**2)) / 2
    return log_prior + log_marginal + log_base + log_weights + log_margin


def draw(state: PartitionState, data: Data, model: Mixture, *, truncated: bool) -> Draw:
    """What the posterior keeps of a state; the mixture weights are their expectations given the assignments."""
    kept = {
        "assignments": state.assignments,
        "hyperparameters": hyperparameters(state, data, model),
        "log_mixture": mixture_posterior(state, truncated=truncated).to(data.X.dtype),
        "weights": state.weights,
        "concentration": state.concentration,
        "log_joint": log_joint(state, data, model, truncated=truncated),
    }
    if state.reservoir is not None:  # as many in every draw, some of them twice where components took many
        places = torch.arange(NUM_RESERVED, device=state.reservoir.device) % len(state.reservoir)
        kept["unseen_weights"] = state.reservoir[places]
    return kept


def mixture_posterior(state: PartitionState, *, truncated: bool) -> Tensor:
    """log E[pi_k | z] [K + 1] float64; the last entry is all components not yet seen: none in the truncated model."""
    counts, alpha = _counts(state), state.concentration.double()
    if not truncated:
        return torch.cat([counts, alpha.reshape(1)]).log() - torch.log(counts.sum() + alpha)
    after, before = posterior_sticks(counts, alpha)
    return torch.cat([log_stick_weights(after / (after + before)), counts.new_tensor([-torch.inf])])


def hyperparameters(state: PartitionState, data: Data, model: Mixture) -> Tensor:
    """Posterior hyperparameters [K, S] of every component's family."""
    sums = model.likelihood.summed_statistics(data.X, state.assignments, len(state.weights))
    return model.likelihood.prior() + sums


# -- scratch -----------------------------------------------------------------------------------------------------------


def _counts(state: PartitionState) -> Tensor:
    return torch.bincount(state.assignments, minlength=len(state.weights)).double()


def _draw_parameters(state: PartitionState, data: Data, model: Mixture, generator: torch.Generator) -> Parameters:
    return model.likelihood.draw(hyperparameters(state, data, model), generator)


def _fresh(
    log_mixture: Tensor, state: PartitionState, data: Data, model: Mixture, generator: torch.Generator
) -> tuple[Components, Tensor | None]:
    """Components drawn from the prior, with hyperplanes from the reservoir if there is one; and what is left of it."""
    prior = model.likelihood.prior()
    parameters = model.likelihood.draw(prior.expand(len(log_mixture), -1).contiguous(), generator)
    num_fresh, reserved = len(log_mixture), state.reservoir
    if reserved is not None:
        if num_fresh > len(reserved):
            more = fill_reservoir(data.features, model, generator, size=num_fresh - len(reserved))
            reserved = torch.cat([reserved, more])
        order = torch.randperm(len(reserved), generator=generator, device=reserved.device)
        components = Components(log_mixture, parameters, reserved[order[:num_fresh]])
        return components, reserved[order[num_fresh:]]
    shape = (num_fresh, *state.weights.shape[1:])
    noise = torch.randn(shape, generator=generator, dtype=state.weights.dtype, device=state.weights.device)
    return Components(log_mixture, parameters, model.weight_scale * noise), None


def _break_rest(log_rest: Tensor, log_lowest: Tensor, alpha: Tensor, generator: torch.Generator) -> Tensor:
    """Log weights [M] of the sticks Beta(1, alpha) broken off exp(log_rest) that are not below every slice.

    log(1 - v) = log(U) / alpha, so that what is left falls below exp(log_lowest) after Poisson(alpha * gap) sticks.
    """
    log_weights = [log_rest.new_empty(0)]
    gap = float(log_rest - log_lowest)
    while gap >= 0:
        mean = float(alpha) * gap
        log_left = torch.log1p(-_uniforms((math.ceil(mean + 3 * math.sqrt(mean)) + 1,), generator)) / alpha
        left = log_rest + log_left.cumsum(0)
        log_weights.append(left - log_left + torch.log(-torch.expm1(log_left)))
        log_rest = left[-1]
        gap = float(log_rest - log_lowest)
    sticks = torch.cat(log_weights)
    return sticks[sticks >= log_lowest]


def _log_gamma_draw(shape: Tensor, generator: torch.Generator) -> Tensor:
    """log of Gamma(shape, 1) draws, finite for any shape: Gamma(a) = Gamma(a + 1) U^(1 / a)."""
    boosted = torch._standard_gamma(shape + 1, generator=generator).log()
    return boosted + torch.log1p(-_uniforms(shape.shape, generator)) / shape


def _uniforms(shape: torch.Size | tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)


_NUM_SETTLING = 20  # draws of the hyperplanes before the first sweep
