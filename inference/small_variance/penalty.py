"""The penalty for which a wanted number of components is best."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..distributed.collectives import all_largest, all_sum
from ..distributed.picked import top
from .assignment import all_costs, all_savings
from .births import candidates
from .descent import assign, fit_components, init, sweep
from .merge import merge_once
from .problem import Problem
from .restarts import sampled
from .state import Descent


class Wanted(NamedTuple):
    """Components of a sample of the rows, as many as are wanted, and the penalty for which they are best."""

    penalty: float
    centers: Tensor  # [K, S]
    weights: Tensor  # [K, P, C]


def joint_penalty(problem: Problem, num_components: int, generator: torch.Generator, num_times: float = 1.0) -> Wanted:
    """The geometric mean of what the last of `num_components` components saves and what one more would save.

    With L_K the objective of K components without their price, K components are best if L_K - L_{K+1} is below the
    price of one more, and L_{K-1} - L_K above the price of the last. Both savings are computed as costs of merges,
    which start from twice as many components so that none is missed. They grow in proportion to the rows, of which at
    most 20 000 are used. If the problem is itself a sample, there are `num_times` as many rows.
    """
    sample = sampled(problem, MOST_ROWS, generator)
    state = init(sample, 0.0)
    for _ in range(_NUM_SWEEPS):
        state = sweep(state, sample, generator, most_components=2 * num_components)
        state = replace(state, grows=True, settled=False)
    state, parts = fit_components(state, sample, 1)
    above = below = 0.0
    while (spare := state.num_components - num_components) > 0:
        state, parts, gains = merge_once(state, parts, sample, most=max(1, spare // 2), least_gain=-torch.inf)
        above = -gains[-1]
    if state.num_components > 1:
        *_, gains = merge_once(state, parts, sample, most=1, least_gain=-torch.inf)
        below = -gains[0]
    # above this, no point opens a component for itself
    alone = float(all_largest(_largest(assign(state, sample)[1] - sample.founding)))
    least = _LEAST * float(state.objective)
    above = max(above, least)
    below = max(below, least) if below else 4 * above
    price = (above * below) ** 0.5 * num_times * problem.data.total_weight / sample.data.total_weight
    return Wanted(_asking(problem, max(price, alone), num_components), state.centers, state.weights)


def keeping_penalty(problem: Problem, state: Descent, generator: torch.Generator) -> float:
    """A penalty for which the components of a state suffice: twice the largest immediate gain of one more."""
    K = state.num_components
    cost = all_costs(problem, state.centers, state.weights).gather(1, state.assignments.unsqueeze(1)).squeeze(1)
    chosen = candidates(cost - problem.founding, K, problem, generator)
    founders = problem.founders(chosen)
    savings = all_savings(problem, *founders, cost).saved.sum(0, dtype=torch.float64)
    saved, least = all_sum(savings), _LEAST * float(state.objective)
    return _asking(problem, 2 * max(float((saved - problem.charges(*founders)).max()), least), K)


def single_penalty(problem: Problem, num_components: int) -> float:
    """The geometric mean of two savings of a single point by a component of its own.

    The first is the largest saving of any point now. The second is the largest saving if a component were missing, the
    one for which this is least. Components are founded farthest first (docs/derivations/mixtures, "DP-means") and then
    fitted: founders are extreme points, whose distances depend more on the spread of the components than on their
    separation.
    """
    state = init(problem, 0.0)
    centers, weights = problem.founders(farthest_first(problem, num_components))
    least = _LEAST * float(state.objective) / problem.data.total_weight
    state = replace(state, centers=centers, weights=weights)
    for _ in range(_NUM_FITS):
        state, _ = fit_components(assign(state, problem)[0], problem, 1)
    present, missing = _largest_savings(problem, state.centers, state.weights)
    return _asking(problem, (max(present, least) * max(missing, least)) ** 0.5, num_components)


def farthest_first(problem: Problem, num_components: int) -> Tensor:
    """Points [K], each the one that costs most beyond a component of its own given the components of the earlier ones.

    The first is measured from the centre of all points (Kulis & Jordan 2012).
    """
    whole = init(problem, 0.0)
    cost, founders = all_costs(problem, whole.centers, whole.weights)[:, 0], list[Tensor]()
    for _ in range(num_components):
        founders.append(top(cost - problem.founding, 1))
        cost = torch.minimum(cost, all_costs(problem, *problem.founders(founders[-1]))[:, 0])
    return torch.cat(founders)


def _asking(problem: Problem, price: float, num_components: int) -> float:
    """The penalty at which one component beside `num_components` costs `price`; by bisection if prices fall with K."""
    low = high = price
    while problem.next_price(high, num_components) < price * (1 - _PRECISION):
        low, high = high, 2 * high
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if problem.next_price(middle, num_components) < price else (low, middle)
    return high


def _largest_savings(problem: Problem, centers: Tensor, weights: Tensor) -> tuple[float, float]:
    """The largest saving of a point by its own component: now, and without the component where this is least."""
    present, missing = torch.full_like(centers[:1, 0], -torch.inf), torch.full_like(centers[:, 0], -torch.inf)
    for rows in torch.arange(problem.num_data, device=centers.device).split(MOST_ROWS):
        part = problem.rows(rows)
        cost, best = all_costs(part, centers, weights).topk(min(2, len(centers)), largest=False)
        saved = cost - part.founding.unsqueeze(1)
        present = torch.maximum(present, _largest(saved[:, 0]))
        missing = missing.scatter_reduce(0, best[:, 0], saved[:, -1], "amax")
    present, missing = all_largest(present), all_largest(missing)
    return float(present), float(missing[missing > -torch.inf].min())


def _largest(values: Tensor) -> Tensor:
    """The maximum of [n], [1]; -inf if there is none, as on a rank without rows."""
    return torch.cat([values, values.new_full((1,), -torch.inf)]).amax(0, keepdim=True)


MOST_ROWS = 20_000
_NUM_SWEEPS = 8
_NUM_FITS = 3
_LEAST = 1e-6
_PRECISION = 1e-9
