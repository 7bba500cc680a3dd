"""Fewer features: one goes, or two become one, wherever that, with all others fitted again, lowers F."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...distributed.collectives import all_sum
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
    """The state without each of its features, that of the least use first: what it saves its rows as they are."""
    saved_by, scores = savings_of_bits(state, problem), problem.scores(state)
    columns = enumerate(state.features.T)
    uses = [float(problem.total(column * saved_by(state.features, scores, k))) for k, column in columns]
    return [state.without(k) for k in sorted(range(state.num_features), key=lambda k: uses[k])]


def merged(state: FeatureDescent, problem: FeatureProblem) -> list[FeatureDescent]:
    """Pairs of features as one that every row has that had either; the pairs that most rows share first."""
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
