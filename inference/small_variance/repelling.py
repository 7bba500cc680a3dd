"""Descent for models whose components repel, and for sequences: discriminative DP-means, asymptotic HDP-HMM and DIH.

No step raises J (`landscape`). Points go to the cheapest components, sequences to the cheapest paths. A component
opens, or two are merged, if J is lower after both alternatives have been fitted.

Sources: docs/derivations/repelling, "Small-variance limit"; docs/derivations/sequences, "Small-variance limit"; Kulis &
Jordan (2012); Roychowdhury, Jiang & Kulis (2013).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..distributed.collectives import all_largest, own_exponentials
from ..distributed.picked import own_of, top
from ..protocol import D, M
from ..running.engine import Draw, Kernel
from . import descent
from .assignment import all_costs, sums_later
from .backend import SmallVariance
from .hyperplanes import Fitted, fit_hyperplanes
from .landscape import Landscape
from .penalty import Wanted, joint_penalty
from .problem import Problem
from .restarts import Restarts, changed_little, kernel_of
from .state import Descent, RepellingDescent


def kernel(backend: SmallVariance, landscape_of: Callable[[M, D, float], Landscape]) -> Kernel:
    """The kernel for the landscape of a resolved model and its data, at the backend's scale."""
    return kernel_of(
        RepellingDescent, lambda model, data: RepellingRestarts(backend, landscape_of(model, data, backend.scale))
    )


@dataclass(frozen=True, eq=False)
class RepellingRestarts(Restarts[RepellingDescent]):
    """Restarts on one landscape: the first from the best of some DP-means partitions, others from random components."""

    landscape: Landscape

    @cached_property
    def prices(self) -> Prices:
        """The prices, which all restarts share so that their objectives can be compared."""
        return Prices.of(self.landscape, self.backend)

    def first(self, generator: torch.Generator) -> RepellingDescent:
        plain, wanted = self.prices.plain, self.prices.wanted
        return self._lowest([_start(plain, wanted, factor, generator) for factor in _START_PENALTIES])

    def scattered(self, generator: torch.Generator) -> RepellingDescent:
        plain, natural = self.prices.plain, self.prices.wanted.penalty
        return self._lowest([descent.scattered(plain, natural, 2 * self.backend.num_components, generator)])

    def _lowest(self, starts: list[Descent]) -> RepellingDescent:
        """The state of lowest J among those with the assignments of `starts`, with centres and hyperplanes fitted."""
        numbers = self.prices.penalty, self.prices.transition_penalty, self.backend.transition_weight, 0.0
        landscape, found = self.landscape, list[RepellingDescent]()
        for start in starts:
            weights = landscape.empty.repeat(start.num_components, 1, 1)
            each, successor, surprise, unknown = map(start.centers.new_tensor, numbers)
            state = RepellingDescent(
                landscape.completed(start.assignments), start.centers, weights, each, successor, surprise, unknown
            )
            found.append(refit(state, landscape, _POLISH))
        return min(found, key=lambda state: float(state.objective))

    def sweep(self, state: RepellingDescent, generator: torch.Generator) -> RepellingDescent:
        tolerance, merge = self.backend.tolerance, self.backend.merge
        return sweep(state, self.landscape, generator, tolerance=tolerance, merge=merge)

    def draw(self, state: RepellingDescent) -> Draw:
        return self.landscape.draw(state)


@dataclass(frozen=True)
class Prices:
    """The prices of components and transitions, and the problem of DP-means that gives default penalties."""

    plain: Problem
    wanted: Wanted  # components of DP-means and their penalty
    penalty: float
    transition_penalty: float

    @classmethod
    def of(cls, landscape: Landscape, options: SmallVariance) -> Prices:
        """The prices of a fit, drawn with its seed."""
        plain = landscape.plain()
        seeded = torch.Generator(plain.X.device).manual_seed(options.seed)
        wanted, transition_penalty = joint_penalty(plain, options.num_components, seeded), options.transition_penalty
        if transition_penalty is None:
            transition_penalty = landscape.natural_transition_penalty(lambda: _start(plain, wanted, 1.0, seeded), plain)
        return cls(plain, wanted, wanted.penalty if options.penalty is None else options.penalty, transition_penalty)


def sweep(
    state: RepellingDescent, landscape: Landscape, generator: torch.Generator, *, tolerance: float, merge: bool = True
) -> RepellingDescent:
    """Update assignments, centres and hyperplanes; a settled state also tries to open and to merge components."""
    before, moved = state, assign(state, landscape)
    if state.transition_weight and landscape.objective(moved) > state.objective:
        moved = assign(state, landscape, unused=0.0)
    state = refit(moved, landscape, _POLISH if state.settled else 2)
    if before.settled:
        if (stepped := _stepped(state, landscape)) is not None:
            state = _better(state, stepped, landscape)
        for index in _candidates(state, landscape, generator):
            state = _better(state, _opened(state, index, landscape), landscape)
        if merge:
            for pair in near_pairs(state, landscape):
                if max(pair) < state.num_components:
                    state = _better(state, joined(state, pair), landscape, _MOST_FALL)
        if changed_little(before, state, tolerance):
            state = refit(state, landscape, _LAST_STEPS)
    little = changed_little(before, state, tolerance)
    return replace(state, settled=little, converged=little and before.settled)


def assign(
    state: RepellingDescent, landscape: Landscape, *, unused: float = 0.5, costs: Tensor | None = None
) -> RepellingDescent:
    """Assign every point to its cheapest component, or every sequence to its cheapest path; remove empty components.

    In the shares of a transition row, an unused transition counts as `unused` transitions. `costs` [M, K] are those of
    the observed points, if known.
    """
    costs = all_costs(landscape.problem, state.centers, state.weights) if costs is None else costs
    return replace(state, assignments=landscape.cheapest(costs, state, unused)).occupied()


# -- moves -------------------------------------------------------------------------------------------------------------


def refit(state: RepellingDescent, landscape: Landscape, num_steps: int) -> RepellingDescent:
    """Set the centres to the best ones, and improve the hyperplanes, at these assignments."""
    problem, own = landscape.problem, landscape.observed(state.assignments)
    data = problem.data
    told = sums_later(problem.X, own, state.num_components, data.weights)
    structure = landscape.structure_later(state)
    before = Fitted(*state.fitted) if state.fitted else None
    weights, costs, fitted = fit_hyperplanes(data, own, state.weights, problem.model, num_steps, before)
    sums, counts = told()
    # a state with missing steps alone keeps its centre
    centers = torch.where((counts > 0).unsqueeze(1), problem.centers(sums, counts), state.centers)
    state = replace(state, centers=centers, weights=weights, fitted=tuple(fitted or ()))
    return replace(
        state, objective=landscape.value(state, problem.divergences(sums, counts, centers), costs, structure())
    )


def joined(state: RepellingDescent, pair: tuple[int, int]) -> RepellingDescent:
    """Merge the second component of a pair into the first."""
    keep, drop = pair
    return replace(state, assignments=torch.where(state.assignments == drop, keep, state.assignments)).occupied()


def near_pairs(state: RepellingDescent, landscape: Landscape) -> list[tuple[int, int]]:
    """Pairs of components with the nearest centres; the second one, of larger index, is to be removed."""
    K = state.num_components
    if K == 1:
        return []
    divergence = landscape.problem.likelihood.divergence(state.centers, state.centers)
    first, second = torch.triu_indices(K, K, 1, device=divergence.device)
    near = divergence[first, second].topk(min(_TRIES, len(first)), largest=False).indices
    pairs = torch.stack([first[near], second[near]], 1).tolist()
    return [(one, other) for one, other in pairs]


def _better(
    state: RepellingDescent, proposal: RepellingDescent, landscape: Landscape, most_fall: float = torch.inf
) -> RepellingDescent:
    """The proposal after some rounds of updates, if that lowers J, otherwise the state.

    For points, a round hardly ever lowers J by more than the round before, and all rounds after a merge hardly ever by
    more than `most_fall` times the saving of the first reassignment. If more than that were needed, the proposal is
    given up. In sequences, the moves of single steps in the last round can lower J more, so every round is made.
    """
    first = refit(proposal, landscape, _ROUND_STEPS)
    costs = all_costs(landscape.problem, first.centers, first.weights)
    if most_fall < torch.inf and first.objective - state.objective > most_fall * landscape.saved(costs, first):
        return state
    second = refit(assign(first, landscape, costs=costs), landscape, _ROUND_STEPS)
    moved = assign(second, landscape)
    stepped, fall = _stepped(moved, landscape), (first.objective - second.objective).clamp(min=0.0)
    if stepped is None and second.objective - state.objective > fall:
        return state
    third = refit(moved if stepped is None else stepped, landscape, _ROUND_STEPS)
    return third if third.objective < state.objective else state


def _stepped(state: RepellingDescent, landscape: Landscape) -> RepellingDescent | None:
    """The state after moves of single steps; None if there are none, as for points."""
    moved = landscape.stepwise(state)
    return None if moved is state.assignments else replace(state, assignments=moved).occupied()


def _opened(state: RepellingDescent, index: Tensor, landscape: Landscape) -> RepellingDescent:
    """Open a component around a point, with the hyperplane of an empty one; points move there if that is cheaper.

    The path's transitions to the point and from it are in use from the start.
    """
    centers = torch.cat([state.centers, landscape.problem.founding_centers(index.unsqueeze(0))])
    here = landscape.places(own_of(index.unsqueeze(0), landscape.problem.num_data, landscape.problem.data.span))
    assignments = state.assignments.index_fill(0, here, state.num_components)
    weights = torch.cat([state.weights, landscape.empty])
    fitted = tuple(Fitted(*state.fitted).opened()) if state.fitted else ()
    alone = replace(state, assignments=assignments, centers=centers, weights=weights, fitted=fitted)
    moved = assign(alone, landscape)
    return moved if moved.num_components > state.num_components else alone.occupied()


def _candidates(state: RepellingDescent, landscape: Landscape, generator: torch.Generator) -> Tensor:
    """The numbers [M'] of points that may found a component, drawn in proportion to their costs."""
    costs = all_costs(landscape.problem, state.centers, state.weights).amin(1)
    excess = costs + all_largest(-costs.amin())
    data = landscape.problem.data
    weight = data.counted(excess.clamp(min=torch.finfo(costs.dtype).tiny))
    noise = own_exponentials(weight, generator, data.span)
    return top(weight / noise, min(_TRIES, data.span[1]), data.span)


def _start(plain: Problem, wanted: Wanted, factor: float, generator: torch.Generator) -> Descent:
    """The result of a descent of DP-means at `factor` times its penalty."""
    state = descent.nearer(plain, factor * wanted.penalty, wanted.centers, wanted.weights)
    for _ in range(_START_SWEEPS):
        state = descent.sweep(state, plain, generator)
        if state.converged:
            break
    return state


_START_PENALTIES = (1.0, 0.25, 4.0)
_START_SWEEPS = 20
_POLISH = 12
_ROUND_STEPS = 4
_MOST_FALL = 5.0  # it was exceeded by one of 506 merges that paid
_LAST_STEPS = 100
_TRIES = 4
