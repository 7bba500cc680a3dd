"""Moves that are taken wherever they lower F with everything fitted again: fewer features, or rows that change sides.

One feature goes, or two become one, or rows change sides. Given the loadings each bit is at its best, and given the
bits the loadings are, so that neither moves first. A shift moves many bits at once: the tenth of a feature's rows that
need it least leave it, or the tenth of the other rows that lose least by it join it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...distributed.collectives import all_count, all_sum
from ...distributed.picked import own_of, top
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
    saved_by, scores = savings_of_bits(state, problem), problem.scores(state)
    columns = enumerate(state.features.T)
    uses = [float(problem.total(column * saved_by(state.features, scores, k))) for k, column in columns]
    return [state.without(k) for k in sorted(range(state.num_features), key=lambda k: uses[k])]


def merged(state: FeatureDescent, problem: FeatureProblem) -> list[FeatureDescent]:
    """The states in which two features are one, which every row has that had either; the pairs that most rows share
    come first."""
    weighted = problem.data.row_weights * state.features
    shared, counts = all_sum(state.features.T @ weighted), all_sum(weighted.sum(0))
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
        proposal = replace(state, features=(state.features - flips.to(state.features)).abs()).occupied()
        proposal = improved(proposal, problem, generator)
        if proposal.objective < state.objective:
            state = proposal
    return state


def _cheapest_flips(state: FeatureDescent, problem: FeatureProblem) -> list[Tensor]:
    """Bits [N, K] bool to flip together, those of one feature at a time; the least costly first."""
    saved_by, scores, found = savings_of_bits(state, problem), problem.scores(state), list[tuple[float, Tensor]]()
    for k, column in enumerate(state.features.T):
        saved = saved_by(state.features, scores, k)
        cost = torch.where(column > 0, saved, -saved)  # of the flip of each row
        for side in (column > 0, column == 0):
            number = all_count(int(side.sum()))
            if not number:
                continue
            least = top(torch.where(side, -cost, -torch.inf), max(1, number // _PART))
            flips = torch.zeros_like(state.features, dtype=torch.bool)
            flips[own_of(least, len(cost)), k] = True
            found.append((float(problem.total(cost * flips[:, k])), flips))
    return [flips for _, flips in sorted(found, key=lambda pair: pair[0])]


_PART = 10
