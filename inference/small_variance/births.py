"""Openings of new components: where they open, best first, and which points move there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..distributed.collectives import all_sum, once, own_exponentials
from ..distributed.picked import own_of, taken, top
from .assignment import Savings, all_savings
from .problem import Problem
from .state import Descent


def open_components(
    state: Descent,
    cost: Tensor,
    problem: Problem,
    generator: torch.Generator,
    *,
    single: bool = False,
    most_components: int | None = None,
) -> Descent:
    """Open components at some points, best first, while their gain is positive.

    gain(i) = sum_n r_n [Q_n(z_n) - Q_n(component of i alone)]_+ - Lambda(K + 1) + Lambda(K) - |eta_i|^2 / 2 nu^2 - ...

    with the weights r_n of the points (1 by default). Savings are computed from the costs [N] that remain after the
    components opened before, which K includes. With `single`, only points for which a component of their own would pay
    are candidates.
    """
    K = state.num_components
    most = problem.data.span[1] if most_components is None else most_components - K
    excess = cost - problem.founding
    chosen = once(lambda: candidates(excess, K, problem, generator))
    if single:
        chosen = chosen[taken(excess, chosen, problem.data.span) > problem.next_price(state.penalty, K)]
    if not len(chosen):
        return replace(state, grows=False)
    centers, weights = once(lambda: problem.founders(chosen))
    savings = all_savings(problem, centers, weights, cost)
    charges, assignments = problem.charges(centers, weights), state.assignments.clone()

    def price(num_opened: int) -> Tensor | float:
        return problem.next_price(state.penalty, K + num_opened)

    opened = _best_first(savings, charges, price, most, assignments, K)
    if not opened:
        return replace(state, grows=False)
    state = replace(
        state,
        assignments=assignments,
        centers=torch.cat([state.centers, centers[opened]]),
        weights=torch.cat([state.weights, weights[opened]]),
        grows=True,
    )
    return state.occupied()


def candidates(excess: Tensor, num_components: int, problem: Problem, generator: torch.Generator) -> Tensor:
    """The numbers [M] of points that may found a component: the dearest ones, and a weighted random sample.

    A point's cost counts beyond that of a component of its own, `excess` [N].
    """
    span, weights = problem.data.span, problem.data.weights
    N = span[1]
    most = max(4, min(max(16, num_components), _GAIN_NUMBERS // max(N, problem.X.shape[1])))
    count = min(most, (N + 1) // 2)
    dearest = top(excess, max(1, count // 4), span)
    noise = own_exponentials(excess, generator, span)
    weight = excess.clamp(min=torch.finfo(excess.dtype).tiny) / noise
    if weights is not None:
        weight *= weights.to(weight)
    weight[own_of(dearest, len(weight), span)] = 0.0
    return torch.cat([dearest, top(weight, count - len(dearest), span)])


def _best_first(
    savings: Savings,
    charges: Tensor,
    price: Callable[[int], Tensor | float],
    most: int,
    assignments: Tensor,
    first_label: int,
) -> list[int]:
    """Open candidates in the order of their gains and return them; `assignments` [N] and `savings` change in place.

    A candidate that has lost more than half of its savings to other candidates waits for a later sweep: after the
    centres have moved to their means, it often does not pay.
    """
    points, saved = savings
    total = all_sum(saved.sum(0, dtype=torch.float64))
    first_total, opened = total.clone(), list[int]()
    while len(opened) < most:
        gain, best = torch.where(total >= first_total / 2, total - charges, -torch.inf).max(0)
        if gain <= price(len(opened)):
            break
        movers = torch.nonzero(saved[:, best] > 0).squeeze(1)
        assignments[points[movers]] = first_label + len(opened)
        opened.append(int(best))
        lost = torch.zeros_like(total)
        for part in movers.split(max(1, _LEFT_NUMBERS // len(total))):
            old = saved[part]
            left = (old - old[:, best, None]).relu_()
            saved[part] = left
            lost += (old - left).sum(0, dtype=torch.float64)
        total -= all_sum(lost)
    return opened


_GAIN_NUMBERS = 2**25
_LEFT_NUMBERS = 2**17
