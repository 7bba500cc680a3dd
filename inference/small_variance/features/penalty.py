"""The penalty for which a wanted number of features is best."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...distributed.collectives import all_largest
from ..restarts import sampled
from .births import alone, improved, label_columns, open_feature
from .moves import dropped
from .problem import FeatureDescent, FeatureProblem


def natural_penalty(problem: FeatureProblem, num_features: int, generator: torch.Generator) -> float:
    """The geometric mean of the bounds between which a penalty makes K = `num_features` features best:

        max_{j > K} (F_K - F_j) / (j - K)    and    min_{j < K} (F_j - F_K) / (K - j)

    with F_j the least value found, without prices, for j features. Features are added one at a time, by a residual or
    by labels, whichever is better, up to two more than wanted; then the least useful ones are removed. F grows in
    proportion to the rows; at most 5 000 are used.
    """
    sample = sampled(problem, _MOST_ROWS, generator)
    state = sample.start(0.0)
    least = {0: float(state.objective)}
    while state.num_features < num_features + 2:
        grown = _grown(state, sample, generator)
        if not grown.objective < state.objective or grown.num_features <= state.num_features:
            break
        state = grown
        least[state.num_features] = float(state.objective)
    while state.num_features > max(1, num_features - 1):
        state = _least_dropped(state, sample, generator)
        number = state.num_features
        least[number] = min(float(state.objective), least.get(number, torch.inf))
    return _between(least, num_features) * problem.data.total_weight / sample.data.total_weight


def single_penalty(problem: FeatureProblem, num_features: int, generator: torch.Generator) -> float:
    """The geometric mean of the largest saving by an own feature with `num_features` features, and with one less.

    The features are opened one at a time, without a price, and fitted.
    """
    state, savings = problem.start(0.0), list[float]()
    for _ in range(num_features):
        savings.append(_most_alone(state, problem))
        state = improved(open_feature(state, problem, generator), problem, generator)
    least = _LEAST * max(float(state.objective) / problem.data.total_weight, torch.finfo(torch.float64).tiny)
    present = max(least, _most_alone(state, problem))
    return float((present * max(present, savings[-1])) ** 0.5)


def _most_alone(state: FeatureDescent, problem: FeatureProblem) -> float:
    """The largest saving of any row by a feature of its own."""
    saved = alone(state, problem)
    return float(all_largest(torch.cat([saved, saved.new_zeros(1)]).max()))


def _between(least: dict[int, float], num_features: int) -> float:
    """The penalty for K features, or for the largest K found, from the least F of each number of features."""
    K = min(num_features, max(least))
    floor = _LEAST * max(least[0], torch.finfo(torch.float64).tiny)
    above = max([floor, *((least[K] - value) / (j - K) for j, value in least.items() if j > K)])
    below = max(floor, min(((value - least[K]) / (K - j) for j, value in least.items() if j < K), default=4 * above))
    return float((above * below) ** 0.5)


def _grown(state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator) -> FeatureDescent:
    """The best state with one more feature."""
    nothing = torch.zeros_like(problem.data.X[0])
    proposals = [state.joined(members, nothing) for members in label_columns(state, problem)[:_TRIES]]
    opened = open_feature(state, problem, generator)
    proposals += [opened] if opened.grows else []
    found = [improved(replace(proposal, grows=True), problem, generator) for proposal in proposals]
    return min(found, key=lambda proposal: float(proposal.objective), default=state)


def _least_dropped(state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator) -> FeatureDescent:
    """The best of the states without one of the least useful features."""
    found = [improved(proposal, problem, generator) for proposal in dropped(state, problem)[:_TRIES]]
    return min(found, key=lambda proposal: float(proposal.objective))


_MOST_ROWS = 5_000
_TRIES = 4
_LEAST = 1e-6
