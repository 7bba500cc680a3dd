"""The penalty at which a wanted number of components pays for itself."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...models.priors.dirichlet_process import farthest_first_penalty
from .assignment import all_costs
from .merge import merge_once
from .partition import fit_components, init, sweep
from .problem import Problem

__all__ = ["joint_penalty", "single_penalty"]


def joint_penalty(problem: Problem, num_components: int, generator: torch.Generator) -> float:
    """Between what the last of `num_components` components saves and what one more would save (geometric mean).

    With L_K the objective of K components without their penalty, K of them are best where
    L_K - L_{K+1} < penalty < L_{K-1} - L_K. Both savings are the costs of merges, down from twice as many components so
    that none is missed. Savings grow in proportion to the number of rows, of which at most 20 000 are looked at.
    """
    sample = problem
    if problem.num_data > _MOST_ROWS:
        noise = torch.rand(problem.num_data, generator=generator, device=problem.X.device)
        sample = problem.rows(noise.topk(_MOST_ROWS).indices)
    state = init(sample, 0.0)
    for _ in range(_NUM_SWEEPS):
        state = sweep(state, sample, generator, most_components=2 * num_components)
        state = replace(state, grows=True, settled=False)
    state, parts = fit_components(state, sample, 1)
    above = below = 0.0
    while (spare := len(state.centers) - num_components) > 0:
        state, parts, gains = merge_once(state, parts, sample, most=max(1, spare // 2), least_gain=-torch.inf)
        above = -gains[-1]
    if len(state.centers) > 1:
        *_, gains = merge_once(state, parts, sample, most=1, least_gain=-torch.inf)
        below = -gains[0]
    least = _LEAST * float(state.objective)
    above, below = max(above, least), max(below, least) if below else 4 * above
    return (above * below) ** 0.5 * problem.num_data / sample.num_data


def single_penalty(problem: Problem, num_components: int) -> float:
    """Between what the last of `num_components` components saves its founder and what one more would (geometric mean).

    Founders are taken farthest first, each with its own classifier (math/dp-mixtures, section 8).
    """
    start = init(problem, 0.0)

    def cost_of(index: int | None) -> Tensor:
        if index is None:
            return all_costs(problem, start.centers, start.weights)[0]
        return all_costs(problem, *problem.founders(torch.tensor([index], device=problem.X.device)))[0]

    last, further = (farthest_first_penalty(cost_of, num_components + more, problem.founding) for more in (0, 1))
    least = _LEAST * float(start.objective)
    return (max(last, least) * max(further, least)) ** 0.5


_MOST_ROWS = 20_000
_NUM_SWEEPS = 8
_LEAST = 1e-6
