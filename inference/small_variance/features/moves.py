"""Moves that are taken wherever they lower F with everything fitted again: fewer features, or rows that change sides.

One feature goes, or two become one, or rows change sides. Given the loadings each bit is at its best, and given the
bits the loadings are, so that neither moves first. A shift moves many bits at once: the tenth of a feature's rows that
need it least leave it, or the tenth of the other rows that lose least by it join it.
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
    """Drop features, then merge pairs, as long as F falls; some of the likeliest are tried each time."""
    for proposals in (dropped, merged):
        better = True
        while better and state.num_features:
            found = [improved(proposal, problem, generator) for proposal in proposals(state, problem)[:tries]]
            best = min(found, key=lambda proposal: float(proposal.objective), default=state)
            better = bool(best.objective < state.objective)
            state = best if better else state
    return state


def dropped(state: FeatureDescent, problem: FeatureProblem) -> list[FeatureDescent]:
    """The states without one feature each, the least useful one first. The use of a feature is what it saves its rows
    before anything is fitted again."""
    uses = problem.total(state.features * _savings(state, problem))
    return [state.without(k) for k in uses.argsort(stable=True)]


def merged(state: FeatureDescent, problem: FeatureProblem) -> list[FeatureDescent]:
    """The states in which two features are one, which every row has that had either; the pairs that most rows share
    come first."""
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
    """Tries the shifts that cost least before anything is fitted again, and keeps those that lower F."""
    for flips in _cheapest_flips(state, problem)[:tries]:
        if flips.shape[1] != state.num_features:  # a shift before left a feature empty
            break
        proposal = replace(state, features=(state.features - flips.to(state.features)).abs())
        proposal = improved(proposal, problem, generator)
        if proposal.objective < state.objective:
            state = proposal
    return state


def _cheapest_flips(state: FeatureDescent, problem: FeatureProblem) -> list[Tensor]:
    """Bits [N, K] bool to flip together, those of one feature at a time; the least costly first."""
    saved, has, span = _savings(state, problem), state.features > 0, problem.data.span
    cost = torch.where(has, saved, -saved)  # of the flip of each bit
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
