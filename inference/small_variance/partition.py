"""DP-means and M2DPM: descent on the small-variance objective of a mixture of classifiers.

No step raises L (`problem`). Assignments see the labels; new points are assigned by the divergence alone.
Sources: Kulis & Jordan (2012); Wang & Zhu (2014), equations (31)-(35) and algorithm 1, with the corrections of
math/dp-mixtures, sections 7 and 12: components open after the pass, and by what they save in all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .assignment import all_costs, component_sums, nearest_components, own_scores
from .classifiers import fit_classifiers, summed_losses
from .merge import Parts, merge_components
from .problem import Problem

__all__ = ["PartitionState", "init", "objective", "sweep"]


@dataclass(frozen=True)
class PartitionState:
    """One descent: N points, K components, D coordinates, P classifier features, C scores."""

    assignments: Tensor  # [N] int64, 0..K-1, all occupied
    centers: Tensor  # [K, D] in the likelihood's coordinates
    weights: Tensor  # [K, P, C]
    duals: Tensor  # [N, C] of a joint multi-class loss, which warm-start the next pass
    penalty: Tensor  # []
    objective: Tensor  # [] float64, L after the last sweep
    grows: bool = True  # the last search for new components found some
    settled: bool = False  # the last sweep changed little: search, polish and merge in the next one
    converged: bool = False  # it has, and that changed little as well


def init(problem: Problem, penalty: float) -> PartitionState:
    """One component with all points."""
    N, (P, C) = problem.num_data, (problem.data.features.shape[1], problem.data.targets.shape[1])
    assignments = torch.zeros(N, dtype=torch.int64, device=problem.X.device)
    centers = problem.centers(*component_sums(problem.X, assignments, 1))
    weights, duals = problem.X.new_zeros(1, P, C), problem.X.new_zeros(N, C)
    state = PartitionState(
        assignments, centers, weights, duals, problem.X.new_tensor(penalty), problem.X.new_tensor(0.0)
    )
    return replace(state, objective=objective(problem, state))


def sweep(
    state: PartitionState,
    problem: Problem,
    generator: torch.Generator,
    *,
    tolerance: float = 1e-3,
    merge: bool = True,
    single: bool = False,
    most_components: int | None = None,
) -> PartitionState:
    """One pass over the points. A settled state is also searched for splits and merges before it is final."""
    before = state
    state, cost = assign(state, problem)
    if state.grows or state.settled or bool((cost - problem.founding > state.penalty).any()):
        state = open_components(state, cost, problem, generator, single=single, most_components=most_components)
    state, parts = fit_components(state, problem, _POLISH if state.settled else 1)
    if merge and state.settled:
        state, parts = merge_components(state, parts, problem)
    return _judge(replace(state, objective=_objective(problem, state, parts)), before, tolerance)


def assign(state: PartitionState, problem: Problem) -> tuple[PartitionState, Tensor]:
    """Every point to its cheapest component, empty ones deleted; and the costs [N]."""
    assignments, cost = nearest_components(problem, state.centers, state.weights)
    return _without_empty(replace(state, assignments=assignments)), cost


def open_components(
    state: PartitionState,
    cost: Tensor,
    problem: Problem,
    generator: torch.Generator,
    *,
    single: bool = False,
    most_components: int | None = None,
) -> PartitionState:
    """Open components at some points, best first, as long as that saves more than it costs:

    gain(i) = sum_n [Q_n(z_n) - Q_n(component of i alone)]_+ - penalty - |eta_i|^2 / (2 nu^2) - smoothing

    Savings are those left over by the components opened before. A candidate that lost over half of its own to them is
    put off: once the centres have moved to their means it would often not be worth it. With `single` only points for
    which a component of their own would pay are candidates.
    """
    K = len(state.centers)
    limit = len(cost) if most_components is None else most_components - K
    excess = cost - problem.founding
    candidates = _candidates(excess, K, generator)
    if single:
        candidates = candidates[excess[candidates] > state.penalty]
        if not len(candidates):
            return replace(state, grows=False)
    centers, weights = problem.founders(candidates)
    charges = problem.charges(centers, weights) + state.penalty
    costs = all_costs(problem, centers, weights)
    savings = (cost - costs).relu_()
    total = savings.sum(1, dtype=torch.float64)
    first_total = total.clone()
    opened: list[Tensor] = []
    assignments = state.assignments.clone()
    while len(opened) < limit:
        gain, best = torch.where(total >= first_total / 2, total - charges, -torch.inf).max(0)
        if gain <= 0:
            break
        movers = torch.nonzero(savings[best] > 0).squeeze(1)
        assignments[movers] = K + len(opened)
        opened.append(best)
        old = savings[:, movers]
        left = (old - old[best]).relu_()
        savings[:, movers] = left
        total -= (old - left).sum(1, dtype=torch.float64)
    if not opened:
        return replace(state, grows=False)
    chosen = torch.stack(opened)
    state = replace(
        state,
        assignments=assignments,
        centers=torch.cat([state.centers, centers[chosen]]),
        weights=torch.cat([state.weights, weights[chosen]]),
        grows=True,
    )
    return _without_empty(state)


def fit_components(state: PartitionState, problem: Problem, num_steps: int) -> tuple[PartitionState, Parts]:
    """The best centres and better classifiers at these assignments."""
    sums, counts = component_sums(problem.X, state.assignments, len(state.centers))
    weights, duals, losses = fit_classifiers(problem, state.assignments, state.weights, state.duals, num_steps)
    state = replace(state, centers=problem.centers(sums, counts), weights=weights, duals=duals)
    return state, Parts(sums, counts, losses)


def objective(problem: Problem, state: PartitionState) -> Tensor:
    """L of a state."""
    K = len(state.centers)
    scores = own_scores(problem, state.assignments, state.weights)
    losses = summed_losses(problem, state.assignments, scores, K)
    return _objective(problem, state, Parts(*component_sums(problem.X, state.assignments, K), losses))


def _objective(problem: Problem, state: PartitionState, parts: Parts) -> Tensor:
    divergences = problem.divergences(parts.sums, parts.counts, state.centers)
    components = problem.charges(state.centers, state.weights) + divergences + parts.losses + state.penalty
    return components.sum() + problem.base.sum(dtype=torch.float64)


def _candidates(excess: Tensor, num_components: int, generator: torch.Generator) -> Tensor:
    """Points [M] that may found a component: those that cost most beyond a component of their own, and a random
    sample in proportion to it."""
    N = len(excess)
    most = max(4, min(max(16, num_components), _GAIN_NUMBERS // N))
    count = min(most, (N + 1) // 2)
    dearest = excess.topk(max(1, count // 4)).indices
    noise = torch.empty_like(excess).exponential_(generator=generator)
    weight = excess.clamp(min=torch.finfo(excess.dtype).tiny) / noise
    weight[dearest] = 0.0
    return torch.cat([dearest, weight.topk(count - len(dearest)).indices])


def _without_empty(state: PartitionState) -> PartitionState:
    occupied = torch.bincount(state.assignments, minlength=len(state.centers)) > 0
    if occupied.all():
        return state
    label = occupied.cumsum(0) - 1
    return replace(
        state, assignments=label[state.assignments], centers=state.centers[occupied], weights=state.weights[occupied]
    )


def _judge(state: PartitionState, before: PartitionState, tolerance: float) -> PartitionState:
    """Whether this sweep changed L and the assignments by less than the tolerance."""
    same = len(state.centers) == len(before.centers)
    moved = int((state.assignments != before.assignments).sum()) if same else len(state.assignments)
    little = bool(before.objective - state.objective <= tolerance * state.objective.abs())
    still = little and moved <= tolerance * len(state.assignments)
    return replace(state, settled=still, converged=still and before.settled)


_POLISH = 20
_GAIN_NUMBERS = 2**25
