"""Moves that are accepted if they lower F after all other variables are fitted again.

A feature is removed, two features are merged, or rows gain or lose a feature. Given the loadings each bit is at its
best, and given the bits the loadings are, so neither changes first by itself. A shift changes many bits at once: the
tenth of a feature's rows that need it least lose it, or the tenth of the other rows that lose least by it gain it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...distributed.collectives import all_sum, all_sums
from ...distributed.picked import own_of, tops
from .births import improved
from .bits import savings_of_bits
from .problem import FeatureDescent, FeatureProblem


def simplify(
    state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator, *, tries: int = 4
) -> FeatureDescent:
    """Remove features, then merge pairs, as long as F falls; each time the `tries` most promising ones are tried."""
    for proposals in (dropped, merged):
        better = True
        while better and state.num_features:
            found = [improved(proposal, problem, generator) for proposal in proposals(state, problem)[:tries]]
            best = min(found, key=lambda proposal: float(proposal.objective), default=state)
            better = bool(best.objective < state.objective)
            state = best if better else state
    return state


def dropped(state: FeatureDescent, problem: FeatureProblem) -> list[FeatureDescent]:
    """The states without one feature each, the least useful first: use is the saving before any refit."""
    uses = problem.total(state.features * _savings(state, problem))
    return [state.without(k) for k in uses.argsort(stable=True)]


def merged(state: FeatureDescent, problem: FeatureProblem) -> list[FeatureDescent]:
    """The states in which two features are merged (their union of rows), pairs with the largest overlap first."""
    weighted = problem.data.row_weights * state.features
    shared, counts = all_sums(state.features.T @ weighted, weighted.sum(0))
    alike = shared / (counts.unsqueeze(1) + counts - shared)
    first, second = torch.combinations(torch.arange(state.num_features, device=alike.device)).unbind(1)
    order = alike[first, second].argsort(descending=True, stable=True)[:_MOST_PAIRS]
    return [_union(state, first[index], second[index]) for index in order]


def _union(state: FeatureDescent, keep: Tensor, drop: Tensor) -> FeatureDescent:
    features = state.features.clone()
    features[:, keep] = torch.maximum(features[:, keep], features[:, drop])
    return replace(state, features=features).without(drop)


_MOST_PAIRS = 8


def shift_features(
    state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator, *, tries: int = 8
) -> FeatureDescent:
    """Try the shifts that cost least before anything is fitted again, and keep those that lower F."""
    for flips in _cheapest_flips(state, problem)[:tries]:
        if flips.shape[1] != state.num_features:  # an earlier shift emptied a feature
            break
        proposal = replace(state, features=(state.features - flips.to(state.features)).abs())
        proposal = improved(proposal, problem, generator)
        if proposal.objective < state.objective:
            state = proposal
    return state


def _cheapest_flips(state: FeatureDescent, problem: FeatureProblem) -> list[Tensor]:
    """Bits [N, K] bool to flip together, of one feature at a time, sorted by their cost, least first."""
    saved, has, span = _savings(state, problem), state.features > 0, problem.data.span
    cost = torch.where(has, saved, -saved)  # of flipping each bit
    sides = torch.stack([has, ~has], 2).flatten(1)  # [N, 2 K]
    numbers, k = all_sum(sides.sum(0)), torch.arange(2 * state.num_features, device=cost.device) // 2
    some = torch.nonzero(numbers).flatten()
    k, sides, counts = k[some], sides[:, some], [max(1, number // _PART) for number in numbers[some].tolist()]
    flips = torch.zeros_like(sides)
    for column, least in enumerate(tops(torch.where(sides, -cost[:, k], -torch.inf), counts, span)):
        flips[own_of(least, len(cost), span), column] = True
    order = problem.total(cost[:, k] * flips).argsort(stable=True)
    every = torch.arange(state.num_features, device=cost.device)
    return [flips[:, column : column + 1] & (every == k[column]) for column in order.tolist()]


def _savings(state: FeatureDescent, problem: FeatureProblem) -> Tensor:
    """What each feature saves each row, whether it has it or not, [N, K], before anything is fitted again."""
    saved_by, scores = savings_of_bits(state, problem), problem.scores(state)
    saved = [saved_by(state.features, scores, k) for k in range(state.num_features)]
    return torch.stack(saved, 1) if saved else state.features


_PART = 10
