"""Features of a few more or a few fewer rows, wherever that, with everything fitted again, lowers F.

A bit alone is at its best given the loadings, which are at their best given the bits: neither would move first. Of each
feature, the tenth of its rows that need it least leave it, or the tenth of the others that miss least join it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...distributed.collectives import all_count
from ...distributed.picked import own_of, top
from .births import improved
from .bits import savings_of_bits
from .problem import FeatureDescent, FeatureProblem


def shift_features(
    state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator, *, tries: int = 8
) -> FeatureDescent:
    """The state after each shift, of those that cost least as they are, that lowers F."""
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
