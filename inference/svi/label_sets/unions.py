"""Unions of components of a multi-label mixture; without classifiers, their gain follows from sums.

Unions that gain at the present responsibilities (`partition.unions.gain`) need no sweep to test them: they are made at
once, the best first, until half of the components are left. Then sweeps have to follow: without them the next unions
would gain as well, and all points could end in one component.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from ....models import host
from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ..allocations import MERGE_TRIES, pairs
from ..factors import joined
from ..partition.factors import VariationalPartition
from ..partition.unions import gain, is_promising
from .blocks import log_marginal_of_unions

State = TypeVar("State", bound=VariationalPartition)


def promising(state: State, data: LabelData, model: BNMC) -> Iterator[State]:
    """The unions of single pairs that may gain once all factors are updated."""
    tried = pairs(state, model.mixture)
    promise = host.answers((is_promising(state, data.points, model.mixture, *pair) for pair in tried), state.sizes)
    for (kept, absorbed), promises in zip(tried, promise, strict=True):
        if promises:
            yield united(state, model, kept, absorbed)


def gainful(state: State, data: LabelData, model: BNMC) -> Iterator[State]:
    """Make the most promising union that gains, repeatedly, until half are left; yields the result, if any."""
    family, mixture, start, T = model.family, model.mixture, state, model.truncation
    own, left = family.log_marginal(state.hyperparameters), torch.nonzero(state.sizes > 0.5).squeeze(1)
    table = own.new_full((T, T), -torch.inf)  # gain of each pair in log block marginal

    def look(first: Tensor, second: Tensor) -> None:
        both = log_marginal_of_unions(family, state.hyperparameters, first, second)
        table[first, second] = both - own[first] - own[second]

    if len(left) > 1:
        look(*torch.combinations(left).T.contiguous())
    half = len(left) // 2
    while len(left) > half:
        best = table.flatten().topk(min(MERGE_TRIES, T * T))
        tried = [divmod(place, T) for place in best.indices[best.values > -torch.inf].tolist()]
        gains = host.answers((gain(state, data.points, mixture, *pair) > 0 for pair in tried), own)
        pair = next((pair for pair, gained in zip(tried, gains, strict=True) if gained), None)
        if pair is None:
            break
        kept, absorbed = pair
        state, left = united(state, model, kept, absorbed), left[left != absorbed]
        own[kept] = family.log_marginal(state.hyperparameters[kept])
        table[absorbed] = table[:, absorbed] = -torch.inf
        others = left[left != kept]
        look(others.clamp(max=kept), others.clamp(min=kept))
    if state is not start:
        yield state


def united(state: State, model: BNMC, kept: int, absorbed: int) -> State:
    """Merge component `absorbed` into `kept` by adding their sums."""
    chi = state.hyperparameters.clone()
    chi[kept] += chi[absorbed] - model.family.prior()
    chi[absorbed] = model.family.prior()
    if state.statistics is None or state.counts is None:
        return replace(state, hyperparameters=chi, responsibilities=joined(state.responsibilities, kept, absorbed))
    counts = joined(state.counts.unsqueeze(0), kept, absorbed).squeeze(0)
    statistics = joined(state.statistics.T, kept, absorbed).T
    return replace(state, hyperparameters=chi, counts=counts, statistics=statistics)
