"""Descent for models whose components repel, and for sequences: discriminative DP-means, asymptotic HDP-HMM and DIH.

    J = scale sum_n D(x_n, mu_{z_n}) + sum_k [SVM_k(eta_k) - R0] + structure(z)

    structure    points        penalty K
                 sequences     penalty (K - 1) + transition_penalty sum_j (successors of row j - 1), rows with exits
                               - transition_weight sum_t log P_{z_{t-1} z_t},    P_jk = n_jk / n_j.

No step raises J. Assignments are the cheapest components, or the cheapest paths, in which a transition not in use costs
`transition_penalty` every time: an upper bound of J that is exact at the present path. With a transition weight unused
ones get a share of P first, and such a path is taken only if it lowers J. A component opens, or two become one, where
that lowers J after both have been fitted. A model without hyperplanes has neither SVM_k nor R0.

Sources: math/discriminative-clustering, sections 8 and 13; Kulis & Jordan (2012); Roychowdhury, Jiang & Kulis (2013).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...models.dpm import DPM
from ...models.mixture import Data
from ...models.priors.hierarchical_dirichlet_process import count_transitions
from ...models.sequence import Sequences
from ..markov import viterbi
from . import partition
from .assignment import all_costs, component_sums
from .hyperplanes import fit_hyperplanes, hyperplane_costs
from .penalty import joint_penalty
from .problem import Problem

__all__ = ["Landscape", "RepellingState", "assign", "init", "log_edges", "objective", "sweep"]


@dataclass(frozen=True)
class RepellingState:
    """One descent: N points or steps, K components, D coordinates, P features."""

    assignments: Tensor  # [N] int64, 0..K-1, all occupied
    centers: Tensor  # [K, D] in the likelihood's coordinates
    weights: Tensor  # [K, P, C]
    penalty: Tensor  # []
    transition_penalty: Tensor  # []
    transition_weight: Tensor  # []
    objective: Tensor  # [] float64
    settled: bool = False  # the last sweep changed little: try to open and to merge in the next one
    converged: bool = False  # it has, and in vain


@dataclass(frozen=True)
class Landscape:
    """What stays fixed during a descent."""

    problem: Problem  # of the M observed points
    sequences: Sequences | None  # None: points are exchangeable
    empty: Tensor  # [1, P, C] the hyperplane that rejects every point at the least cost
    empty_cost: Tensor  # [1] R0

    @classmethod
    def of(cls, model: Any, data: Data | Sequences, scale: float) -> Landscape:
        """The landscape of a resolved model."""
        sequences = data if isinstance(data, Sequences) else None
        points = data.points if isinstance(data, Sequences) else data
        nobody = torch.full((points.num_data,), -1, device=points.X.device)
        start = _rejecting(points, model)
        empty, cost = fit_hyperplanes(points.features, nobody, start, model, num_steps=_EMPTY_STEPS)
        return cls(Problem.of(model, points, scale), sequences, empty, cost)

    def observed(self, assignments: Tensor) -> Tensor:
        """Assignments [M] of the observed points."""
        return assignments if self.sequences is None else assignments[self.sequences.steps]

    def transitions(self, assignments: Tensor, num_components: int) -> Tensor:
        """Moves [K + 1, K] between states, from the start row last."""
        assert self.sequences is not None
        return count_transitions(assignments, self.sequences.starts, num_components)


def init(
    landscape: Landscape,
    penalty: float | None,
    transition_penalty: float | None,
    options: Any,
    generator: torch.Generator | None = None,
) -> RepellingState:
    """The lowest J among the partitions that DP-means finds at several penalties.

    What the generator draws (None: from options.seed) differs between restarts; penalties that are None do not.
    """
    problem = landscape.problem
    X, plain = problem.X, Problem.of(*_without_hyperplanes(problem), problem.scale)
    seeded = torch.Generator(X.device).manual_seed(options.seed)
    natural = joint_penalty(plain, options.num_components, seeded)
    penalty = natural if penalty is None else penalty
    if transition_penalty is None:
        transition_penalty = 0.0 if landscape.sequences is None else _step_cost(_start(plain, natural, seeded), plain)
    found = []
    for factor in _START_PENALTIES:
        start = _start(plain, natural * factor, seeded if generator is None else generator)
        labels = start.assignments if landscape.sequences is None else _fill_gaps(start.assignments, landscape)
        weights = landscape.empty.repeat(len(start.centers), 1, 1)
        state = RepellingState(
            labels,
            start.centers,
            weights,
            penalty=X.new_tensor(penalty),
            transition_penalty=X.new_tensor(transition_penalty),
            transition_weight=X.new_tensor(options.transition_weight),
            objective=X.new_tensor(0.0),
        )
        found.append(_refit(state, landscape, _POLISH))
    return min(found, key=lambda state: float(state.objective))


def sweep(
    state: RepellingState, landscape: Landscape, generator: torch.Generator, *, tolerance: float, merge: bool = True
) -> RepellingState:
    """Assignments, centres, hyperplanes; a settled state also tries to open components and to merge them."""
    before, moved = state, assign(state, landscape)
    if state.transition_weight and objective(moved, landscape) > state.objective:
        moved = assign(state, landscape, unused=0.0)
    state = _refit(moved, landscape, _POLISH if state.settled else 2)
    if before.settled:
        for index in _candidates(state, landscape, generator):
            state = _better(state, _opened(state, index, landscape), landscape)
        if merge:
            for pair in _near_pairs(state, landscape):
                if max(pair) < len(state.centers):
                    state = _better(state, _joined(state, pair), landscape)
        if _changed_little(before, state, tolerance):
            state = _refit(state, landscape, _LAST_STEPS)
    little = _changed_little(before, state, tolerance)
    return replace(state, settled=little, converged=little and before.settled)


def assign(state: RepellingState, landscape: Landscape, *, unused: float = 0.5) -> RepellingState:
    """Every point to its cheapest component, or every sequence to its cheapest path; empty components go.

    `unused` is the number of moves that each transition not in use counts for in P.
    """
    costs = all_costs(landscape.problem, state.centers, state.weights).T
    if landscape.sequences is None:
        return _occupied(replace(state, assignments=costs.argmin(1)))
    sequences, K = landscape.sequences, len(state.centers)
    log_steps = log_edges(state, landscape, unused=unused).to(costs)
    table = sequences.spread(-costs)
    paths, _ = viterbi(log_steps[K], log_steps[:K], table, sequences.lengths)
    return _occupied(replace(state, assignments=paths))


def log_edges(state: RepellingState, landscape: Landscape, *, unused: float = 0.5) -> Tensor:
    """Minus what each move costs [K + 1, K], from the start row last."""
    counts = landscape.transitions(state.assignments, len(state.centers)).double()
    log_edges = torch.where(counts > 0, 0.0, -state.transition_penalty.double())
    if not state.transition_weight:
        return log_edges
    moves = torch.where(counts > 0, counts, unused)
    log_shares = (moves / moves.sum(1, keepdim=True)).log().nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    return log_edges + state.transition_weight.double() * log_shares


def objective(state: RepellingState, landscape: Landscape) -> Tensor:
    """J of a state, [] float64."""
    problem, K = landscape.problem, len(state.centers)
    own = landscape.observed(state.assignments)
    divergences = problem.divergences(*component_sums(problem.X, own, K), state.centers)
    costs = hyperplane_costs(problem.data.features, own, state.weights, problem.model) - landscape.empty_cost
    smoothing = torch.zeros_like(divergences)
    if problem.row is not None:
        divergence = problem.likelihood.divergence(problem.row.unsqueeze(0), state.centers).squeeze(0)
        smoothing = problem.scale * problem.row_weight * divergence
    return (
        (divergences + costs + smoothing).sum() + problem.base.sum(dtype=torch.float64) + _structure(state, landscape)
    )


def _changed_little(before: RepellingState, state: RepellingState, tolerance: float) -> bool:
    return bool(before.objective - state.objective <= tolerance * state.objective.abs())


def _structure(state: RepellingState, landscape: Landscape) -> Tensor:
    K, penalty = len(state.centers), state.penalty.double()
    if landscape.sequences is None:
        return penalty * K
    counts = landscape.transitions(state.assignments, K).double()
    spare = ((counts > 0).sum(1) - 1).clamp(min=0).sum()  # a row without exits has none
    surprise = (torch.xlogy(counts.sum(1), counts.sum(1)) - torch.xlogy(counts, counts).sum(1)).sum()
    weight = state.transition_weight.double()
    return penalty * (K - 1) + state.transition_penalty.double() * spare + weight * surprise


# -- moves -------------------------------------------------------------------------------------------------------------


def _refit(state: RepellingState, landscape: Landscape, num_steps: int) -> RepellingState:
    """The best centres and better hyperplanes at these assignments."""
    problem, own = landscape.problem, landscape.observed(state.assignments)
    sums, counts = component_sums(problem.X, own, len(state.centers))
    features, model = problem.data.features, problem.model
    weights, _ = fit_hyperplanes(features, own, state.weights, model, num_steps=num_steps)
    centers = problem.centers(sums, counts)
    # a state of missing steps alone has no points: it keeps its centre
    centers = torch.where((counts > 0).unsqueeze(1), centers, state.centers)
    state = replace(state, centers=centers, weights=weights)
    return replace(state, objective=objective(state, landscape))


def _better(state: RepellingState, proposal: RepellingState, landscape: Landscape) -> RepellingState:
    """The proposal after some rounds of its own if that lowers J, else the state."""
    for _ in range(_ROUNDS):
        proposal = assign(_refit(proposal, landscape, _ROUND_STEPS), landscape)
    proposal = _refit(proposal, landscape, _ROUND_STEPS)
    return proposal if proposal.objective < state.objective else state


def _opened(state: RepellingState, index: Tensor, landscape: Landscape) -> RepellingState:
    """One more component around a point, with the hyperplane of an empty one; points move there if that is cheaper."""
    center = landscape.problem.X[index].unsqueeze(0)
    grown = replace(
        state,
        centers=torch.cat([state.centers, landscape.problem.centers(center.double(), center.new_ones(1).double())]),
        weights=torch.cat([state.weights, landscape.empty]),
    )
    return assign(grown, landscape)


def _joined(state: RepellingState, pair: tuple[int, int]) -> RepellingState:
    """The second component of the pair in the first."""
    keep, drop = pair
    return _occupied(replace(state, assignments=torch.where(state.assignments == drop, keep, state.assignments)))


def _candidates(state: RepellingState, landscape: Landscape, generator: torch.Generator) -> Tensor:
    """Points [M'] that may found a component: drawn with weights in proportion to what they cost."""
    costs = all_costs(landscape.problem, state.centers, state.weights).amin(0)
    weight = (costs - costs.min()).clamp(min=torch.finfo(costs.dtype).tiny)
    noise = torch.empty_like(weight).exponential_(generator=generator)
    return (weight / noise).topk(min(_TRIES, len(weight))).indices


def _near_pairs(state: RepellingState, landscape: Landscape) -> list[tuple[int, int]]:
    """Pairs of components whose centres are nearest, the larger index first to go."""
    K = len(state.centers)
    if K == 1:
        return []
    divergence = landscape.problem.likelihood.divergence(state.centers, state.centers)
    first, second = torch.combinations(torch.arange(K, device=divergence.device)).unbind(1)
    near = divergence[first, second].topk(min(_TRIES, len(first)), largest=False).indices
    pairs = torch.stack([first[near], second[near]], 1).tolist()
    return [(one, other) for one, other in pairs]


def _occupied(state: RepellingState) -> RepellingState:
    labels, assignments = torch.unique(state.assignments, return_inverse=True)
    return replace(state, assignments=assignments, centers=state.centers[labels], weights=state.weights[labels])


def _rejecting(points: Data, model: Any) -> Tensor:
    """Weights [1, P, C] along the mean a of the features, or zero if that costs less.

    As all losses are convex, N loss(mean score) bounds their sum from below: for centred features, where a is the
    intercept alone, the best multiple of a is the least R0 of all.
    """
    (N, P), C = points.features.shape, points.targets.shape[1]
    start = points.features.new_zeros(2, P, C)
    if not start.numel():
        return start[:1]
    mean = points.features.mean(0, dtype=torch.float64)
    size = mean.square().sum().clamp(min=torch.finfo(mean.dtype).tiny)
    score, _ = model.loss.one_point(N * model.weight_scale**2 * size, size.new_tensor(-1.0))
    start[1, :, 0] = (score / size * mean).to(start)
    nobody = torch.full((N,), -1, device=mean.device)
    return start[hyperplane_costs(points.features, nobody, start, model).argmin()].unsqueeze(0)


def _start(plain: Problem, penalty: float, generator: torch.Generator) -> partition.PartitionState:
    """A descent of DP-means."""
    state = partition.init(plain, penalty)
    for _ in range(_START_SWEEPS):
        state = partition.sweep(state, plain, generator)
        if state.converged:
            break
    return state


def _step_cost(state: partition.PartitionState, plain: Problem) -> float:
    """What an observed step costs on average, its component's penalty apart."""
    cost = (state.objective - state.penalty * len(state.centers)) / plain.num_data
    return float(cost.clamp(min=torch.finfo(plain.X.dtype).tiny))


def _without_hyperplanes(problem: Problem) -> tuple[DPM, Data]:
    X = problem.data.X
    return DPM(problem.likelihood, num_features=X.shape[1]), Data(X, X[:, :0], X[:, :0])


def _fill_gaps(labels: Tensor, landscape: Landscape) -> Tensor:
    """States [N]: those of the observed steps [M], and at a missing step that of the last observed one before it."""
    assert landscape.sequences is not None
    place = torch.zeros(landscape.sequences.num_data, dtype=torch.long, device=labels.device)
    place[landscape.sequences.steps] = 1
    return labels[(place.cumsum(0) - 1).clamp(min=0)]


_EMPTY_STEPS = 400
_START_PENALTIES = (1.0, 0.25, 4.0)
_START_SWEEPS = 20
_POLISH = 12
_ROUNDS = 2
_ROUND_STEPS = 4
_LAST_STEPS = 100
_TRIES = 4
