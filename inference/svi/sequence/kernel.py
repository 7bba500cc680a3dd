"""Variational inference for the truncated infinite hidden Markov models: coordinate ascent, or stochastic steps.

The updates are those of `factors` and `allocations`, with a chain as the law of z. This file adds minibatches of
sequences, or of blocks of a single one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ....models.sequence import Sequences, StateSpace
from ...distributed.collectives import all_count, all_rows, span
from ...distributed.picked import own_of
from ...distributed.stream import stream_sequences
from ...posterior.draws import SequenceDraw, drawn
from ...running.engine import Draw
from ..allocations import Climb, extrapolate, pairs, start, stochastic_sweep
from ..factors import allocate, family_of, union, update_factors
from ..rules import NATURAL
from ..steps import Minibatch, Steps, StepsByRule, Stochastic
from .factors import Block, VariationalSequence


def unions(state: VariationalSequence, data: Sequences, model: StateSpace) -> Iterator[VariationalSequence]:
    """The unions of the most promising pairs of states."""
    return (union(state, data, model, *pair) for pair in pairs(state, model))


init = partial(start, VariationalSequence)
PATHS = Climb(update_factors, allocate, unions)
sweep, ascend = PATHS.sweep, PATHS.ascend


# -- for the backend ---------------------------------------------------------------------------------------------------


def summary(state: VariationalSequence, data: object, model: StateSpace) -> Draw:
    """The draw that the posterior keeps."""
    r = state.responsibilities
    unseen = state.rows.new_full((model.truncation + 1, 1), -torch.inf)
    log_rows = torch.cat([(state.rows / state.rows.sum(1, keepdim=True)).log(), unseen], 1).to(r)
    share = (state.sizes / state.sizes.sum()).log().to(r)
    return drawn(
        SequenceDraw(
            assignments=r.argmax(1),
            responsibilities=r,
            hyperparameters=state.hyperparameters,
            log_mixture=torch.cat([share, share.new_tensor([-torch.inf])]),
            log_start=log_rows[-1],
            log_transitions=log_rows[:-1],
            weights=state.mean,
            precision_tril=state.precision_tril,
        ),
        {"concentration": state.expected_concentration, "top_concentration": state.expected_top_concentration},
    )


# -- minibatches -------------------------------------------------------------------------------------------------------


def minibatch(data: Sequences, size: int, generator: torch.Generator) -> Minibatch[Sequences]:
    """Draw `size` of several sequences, or a block of `size` steps of a single one with `_BUFFER` more on either side.

    Messages start at the ends of the buffer, where every state may be first; apart from that, statistics are unbiased.
    """
    like: dict[str, Any] = {"generator": generator, "device": data.X.device}
    first, num_sequences = span(number := len(data.lengths))
    if num_sequences > 1:
        chosen = torch.randperm(num_sequences, **like)[:size]
        own = [index - first for index in chosen.tolist() if first <= index < first + number]
        return Minibatch(data.sequences(own), num_sequences / len(chosen))
    num_blocks = math.ceil(data.num_data / size)
    return block(data, int(torch.randint(num_blocks, (), **like)), size, _BUFFER)


def block(data: Sequences, index: int, size: int, buffer: int) -> Minibatch[Sequences]:
    """Block number `index` of one sequence, with its buffer."""
    begin, end = index * size, min((index + 1) * size, data.num_data)
    first, last = max(0, begin - buffer), min(data.num_data, end + buffer)
    seen = _windows(data, [first], last - first)
    owned = (seen.steps >= begin - first) & (seen.steps < end - first)
    points = replace(seen.points, weights=None if owned.all() else owned.to(seen.points.features))
    part = Block(points, seen.steps, seen.lengths, slice(begin - first, end - first), first == 0)
    return Minibatch(part, math.ceil(data.num_data / size))


def first_steps(data: Sequences, num_steps: int, generator: torch.Generator) -> Sequences:
    """The about `num_steps` steps on which a stochastic fit starts: some sequences, or ten windows of a single one."""
    number = all_count(len(data.lengths))
    if all_count(data.num_data) <= num_steps:
        return data
    if number == 1:
        size = max(1, num_steps // _NUM_WINDOWS)
        begins = torch.linspace(0, data.num_data - size, _NUM_WINDOWS).long().tolist()
        return _windows(data, begins, size)
    order = torch.randperm(number, generator=generator, device=data.X.device)
    total = all_rows(torch.tensor(data.lengths, device=order.device))[order].cumsum(0)
    chosen = order[: 1 + int((total < num_steps).sum())]
    return data.sequences(own_of(chosen, len(data.lengths)).tolist())


def _windows(data: Sequences, begins: list[int], size: int) -> Sequences:
    """Windows of `size` steps of one sequence, as separate sequences; they may overlap."""
    begin = torch.tensor(begins, device=data.steps.device)
    first, last = torch.searchsorted(data.steps, begin), torch.searchsorted(data.steps, begin + size)
    kept = torch.cat([torch.arange(*pair, device=begin.device) for pair in zip(first, last, strict=True)])
    offset = size * torch.arange(len(begins), device=begin.device) - begin
    steps = data.steps[kept] + offset.repeat_interleave(last - first)
    return Sequences(data.points.rows(kept), steps, [size] * len(begins))


STEPS = Steps(
    state=VariationalSequence,
    init=init,
    sweep=sweep,
    complete=allocate,
    draw=summary,
    stochastic=Stochastic(
        first=first_steps,
        count=lambda data: all_count(len(data.lengths)),
        extrapolate=extrapolate,
        minibatch=minibatch,
        sweep=stochastic_sweep,
        read=stream_sequences,
    ),
)
BY_RULE = StepsByRule(lambda backend, model: {NATURAL: STEPS}, family_of, splits=True)
_BUFFER = 20  # steps before and after a block: the error of messages that start there is about 6e-10
_NUM_WINDOWS = 10
