"""Newton steps of the primal of SVM duals, for losses whose conjugate is a box with a curvature (squared hinges).

The cost of a point has the slope -t_n at its best tilt t_n, and the second derivative 1 / curvature while t_n is inside
its box. The Hessian of the weights of a score is then (Keerthi & DeCoste 2005)

    H = I / nu^2 + sum_n r_n 1[t_n inside] a_n a_n^T / curvature.

All points take part at once, those of all ranks too, on any device.
"""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import Tensor

from ...models.losses.conjugates import Box
from ..distributed.collectives import all_sum
from .dual_problem import Problem


def climb(problem: Problem, box: Box, tilt: Tensor, tolerance: float, most: int) -> tuple[Tensor, Tensor, float, int]:
    """(weights [P, C], tilts [N, C], gap, steps): the least gap of some tilts [N, C] float64 and of those that so many
    Newton steps from their weights find."""
    features, precision, num_steps = problem.features, problem.weight_scale**-2, 0
    weights = problem.weights(tilt)
    best = weights, tilt, _gap(problem, weights, tilt)
    ridge = precision * torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
    share, found, _ = _answer(problem, box, weights)
    while best[2] > tolerance and num_steps < most:
        inside = (share > box.lower) & (share < box.upper)
        curvatures = problem.count * inside / box.curvature
        hessian = ridge + all_sum(torch.stack([(features.T * own) @ features for own in curvatures.unbind(1)]))
        slope = precision * (weights - found)
        weights = _lower(problem, weights, torch.linalg.solve(hessian, slope.T.unsqueeze(2)).squeeze(2).T)
        share, found, tilt = _answer(problem, box, weights)
        best, num_steps = min(best, (found, tilt, _gap(problem, found, tilt)), key=itemgetter(2)), num_steps + 1
    return *best, num_steps


def _answer(problem: Problem, box: Box, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """At some weights [P, C]: the best tilts [N, C] of a copy of each point, the weights of all copies, their tilts."""
    share = box.best(problem.features @ weights, weights.new_zeros(()))
    tilt = problem.count * share
    return share, problem.weights(tilt), tilt


def _gap(problem: Problem, weights: Tensor, tilt: Tensor) -> float:
    return problem.gaps(problem.features @ weights, tilt)[1]


def _lower(problem: Problem, weights: Tensor, direction: Tensor) -> Tensor:
    """Weights [P, C] less a step of which each column is halved until its primal is not higher."""
    before, step = _primal(problem, weights), weights.new_ones(weights.shape[1])
    for _ in range(_MOST_HALVINGS):
        moved = weights - step * direction
        higher = _primal(problem, moved) > before
        if not higher.any():
            return moved
        step = torch.where(higher, step / 2, step)
    return torch.where(higher, weights, moved)


def _primal(problem: Problem, weights: Tensor) -> Tensor:
    """What the classifier of each score costs, [C]."""
    cost = -problem.count * problem.loss.log_factor(problem.features @ weights, problem.targets)
    return all_sum(cost.sum(0)) + weights.square().sum(0) / (2 * problem.weight_scale**2)


_MOST_HALVINGS = 30
