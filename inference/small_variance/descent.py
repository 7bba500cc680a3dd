"""DP-means and M2DPM: descent on the small-variance objective of a mixture of classifiers.

No step raises L (`problem`). Assignments depend on the labels; new points are assigned by the divergence alone.

Sources: Kulis & Jordan (2012); Wang & Zhu (2014), equations (31)-(35) and algorithm 1, with the corrections of
docs/derivations/mixtures, "M2DPM" and "What the papers print": components open after the pass, and by their total
saving.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..distributed.collectives import Later, all_count, largest_later, largest_of, own_draws
from ..distributed.picked import draw_rows
from .assignment import all_costs, component_sums, nearest_components, sums_later
from .births import open_components
from .classifiers import fit_classifiers
from .merge import merge_components
from .problem import Problem
from .restarts import changed_little
from .state import Descent, Parts


def init(problem: Problem, penalty: float) -> Descent:
    """A state with one component that holds all points."""
    N, (P, C) = problem.num_data, (problem.data.features.shape[1], problem.data.targets.shape[1])
    assignments = torch.zeros(N, dtype=torch.int64, device=problem.X.device)
    centers = problem.centers(*component_sums(problem.X, assignments, 1, problem.data.weights))
    weights, duals = centers.new_zeros(1, P, C), centers.new_zeros(N, C)
    state = Descent(assignments, centers, weights, centers.new_tensor(penalty), duals, centers.new_tensor(0.0))
    return replace(state, objective=objective(problem, state))


def of_labels(problem: Problem, labels: Tensor) -> Descent:
    """A settled state with the components given by labels [N], at penalty 0."""
    state, assignments = init(problem, 0.0), labels.unique(return_inverse=True)[1]
    K = int(assignments.max()) + 1
    centers, weights = state.centers.expand(K, -1), state.weights.expand(K, -1, -1)
    state = replace(state, assignments=assignments, centers=centers, weights=weights, settled=True)
    state, parts = fit_components(state, problem, _POLISH)
    return replace(state, objective=_objective(problem, state, parts, problem.total_base))


def at_penalty(state: Descent, penalty: float, problem: Problem) -> Descent:
    """The same components at another penalty."""
    changed = replace(state, penalty=state.penalty.new_tensor(penalty))
    return replace(changed, objective=objective(problem, changed))


def nearer(problem: Problem, penalty: float, centers: Tensor, weights: Tensor) -> Descent:
    """One component with all points or, if cheaper, components [K, S], [K, P, C] with the points nearest to them."""
    whole = init(problem, penalty)
    state, _ = assign(replace(whole, centers=centers, weights=weights), problem)
    state, parts = fit_components(state, problem, 1)
    state = replace(state, objective=_objective(problem, state, parts, problem.total_base))
    return state if state.objective < whole.objective else whole


def scattered(problem: Problem, penalty: float, most_components: int, generator: torch.Generator) -> Descent:
    """A state with up to `most_components` components around random points: the start of later restarts.

    A founder is drawn in proportion to the cost of a point under the founders before it, minus its cost in a component
    of its own. Then a share of the points moves to random components: otherwise founders keep the points near them, and
    restarts end alike.
    """
    state = init(problem, penalty)
    costs, founders = all_costs(problem, state.centers, state.weights)[:, 0], list[Tensor]()
    most = min(most_components, all_count(problem.num_data))
    for _ in range(int(torch.randint(1, most + 1, (), generator=generator, device=generator.device))):
        excess = (costs - problem.founding).clamp(min=torch.finfo(costs.dtype).tiny)
        founders.append(draw_rows(problem.data.counted(excess), 1, generator))
        costs = torch.minimum(costs, all_costs(problem, *problem.founders(founders[-1]))[:, 0])
    centers, weights = problem.founders(torch.cat(founders))
    state, _ = assign(replace(state, centers=centers, weights=weights), problem)
    state = _stirred(state, generator)
    state, parts = fit_components(state, problem, 1)
    return replace(state, objective=_objective(problem, state, parts, problem.total_base))


def sweep(
    state: Descent,
    problem: Problem,
    generator: torch.Generator,
    *,
    tolerance: float = 1e-3,
    merge: bool = True,
    single: bool = False,
    most_components: int | None = None,
    value: Callable[[], Tensor] | None = None,
) -> Descent:
    """One pass over the points. A settled state is also searched for splits and merges before it is final.

    If the state's objective is not up to date, `value` returns its L []; among ranks it joins the next exchange.
    """
    before = state
    assignments, cost, scores = nearest_components(problem, state.centers, state.weights)
    most = largest_later(largest_of(cost - problem.founding))
    state = replace(state, assignments=assignments).occupied()
    nearest = state.assignments
    if state.grows or state.settled or most() > problem.next_price(state.penalty, state.num_components):
        state = open_components(state, cost, problem, generator, single=single, most_components=most_components)
    moved = Later(problem.data.counted((state.assignments != before.assignments).double()).sum())
    base = Later(problem.own_base)
    scores = scores if state.assignments is nearest else None
    state, parts = fit_components(state, problem, _POLISH if state.settled else 1, scores)
    if merge and state.settled:
        state, parts = merge_components(state, parts, problem)
    state = replace(state, objective=_objective(problem, state, parts, base()))
    before = before if value is None else replace(before, objective=value())
    settled = state.num_components == before.num_components
    settled = settled and changed_little(before, state, tolerance, moved() / problem.data.total_weight)
    return replace(state, settled=settled, converged=settled and before.settled)


def assign(state: Descent, problem: Problem) -> tuple[Descent, Tensor]:
    """Assign every point to its cheapest component and remove empty components; also return the costs [N]."""
    assignments, cost, _ = nearest_components(problem, state.centers, state.weights)
    return replace(state, assignments=assignments).occupied(), cost


def fit_components(
    state: Descent, problem: Problem, num_steps: int, scores: Tensor | None = None
) -> tuple[Descent, Parts]:
    """The best centres and better classifiers at these assignments; scores [N, C] if they are known."""
    told = sums_later(problem.X, state.assignments, state.num_components, problem.data.weights)
    fit = fit_classifiers(problem, state.assignments, state.weights, state.duals, num_steps, scores)
    sums, counts = told()
    state = replace(state, centers=problem.centers(sums, counts), weights=fit.weights, duals=fit.tilt)
    return state, Parts(sums, counts, fit.cost.sum(1))


def objective(problem: Problem, state: Descent) -> Tensor:
    """The objective L of a state, []."""
    return objective_later(problem, state)()


def objective_later(problem: Problem, state: Descent) -> Callable[[], Tensor]:
    """A function that returns the objective L [] of a state; among ranks it joins the next exchange."""
    K = state.num_components
    margins, base = problem.margins(state.assignments, K), Later(problem.own_base)
    told = sums_later(problem.X, state.assignments, K, problem.data.weights)
    cost = margins.cost_later(state.weights, margins.scores(state.weights))
    return lambda: _objective(problem, state, Parts(*told(), cost().sum(1)), base())


def _objective(problem: Problem, state: Descent, parts: Parts, base: Tensor) -> Tensor:
    divergences = problem.divergences(parts.sums, parts.counts, state.centers)
    components = problem.smoothing(state.centers) + divergences + parts.margins
    return components.sum() + base + problem.price(state.penalty, state.num_components)


def _stirred(state: Descent, generator: torch.Generator) -> Descent:
    """Move a share of the points to random components."""
    N, K, device = len(state.assignments), state.num_components, generator.device
    moves = own_draws(
        N, lambda n, stream: torch.rand(n, generator=stream, dtype=torch.float32, device=device) < _STIRRED, generator
    )
    anywhere = own_draws(N, lambda n, stream: torch.randint(K, (n,), generator=stream, device=device), generator)
    return replace(state, assignments=torch.where(moves, anywhere, state.assignments)).occupied()


_POLISH = 20
_STIRRED = 0.3
