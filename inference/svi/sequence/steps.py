"""Stochastic natural gradients for the truncated infinite hidden Markov models: minibatches of sequences, or of blocks.

A step moves natural parameters towards the optimum of a minibatch (Hoffman et al. 2013); the updates are those of
`factors`. A block of one long sequence is smoothed with a margin on both sides (Foti et al. 2014).
Source: math/discriminative-clustering, section 12.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....models.sequence import Sequences, StateSpace
from ...distributed.collectives import all_sum, own_stream
from ...markov.paths import filter_states, smooth
from ..allocations import estimated
from ..factors import move
from ..steps import Minibatch
from .factors import (
    VariationalSequence,
    emissions,
    kl,
    observed,
    update_components,
    update_factors,
    update_paths,
)
from .rows import update_rows


def minibatch(data: Sequences, size: int, generator: torch.Generator) -> Minibatch[Sequences]:
    """`size` of several sequences, or one block of `size` steps of a single one with `_BUFFER` more on either side.

    Messages are cut off at the ends of the buffer, where every state may enter; statistics are unbiased otherwise.
    """
    like: dict[str, Any] = {"generator": own_stream(generator), "device": data.X.device}
    num_sequences = len(data.lengths)
    if num_sequences > 1:
        chosen = torch.randperm(num_sequences, **like)[:size].tolist()
        return Minibatch(data.sequences(chosen), num_sequences / len(chosen))
    num_blocks = math.ceil(data.num_data / size)
    return block(data, int(torch.randint(num_blocks, (), **like)), size, _BUFFER)


def block(data: Sequences, index: int, size: int, buffer: int) -> Minibatch[Sequences]:
    """Block number `index` of one sequence."""
    begin, end = index * size, min((index + 1) * size, data.num_data)
    first, last = max(0, begin - buffer), min(data.num_data, end + buffer)
    scale = math.ceil(data.num_data / size)
    return Minibatch(_windows(data, [first], last - first), scale, slice(begin - first, end - first), first == 0)


def update_owned_paths(
    state: VariationalSequence, batch: Minibatch[Sequences], model: StateSpace
) -> VariationalSequence:
    """`update_paths` for the steps that a minibatch owns; all else in the state is as if there were no other steps.

    Owned steps are in copies of the states, of the same weights: the moves into copies are those that count. The log
    normalizer is that of the owned steps given those before them.
    """
    data, (begin, end, _) = batch.data, batch.owned.indices(batch.data.num_data)
    if batch.at_start and (begin, end) == (0, data.num_data):
        return update_paths(state, data, model)
    seen, emission = emissions(state, data, model)
    log_rows, T = state.expected_log_rows, model.truncation
    start, transition = log_rows[-1], log_rows[:-1]
    if not batch.at_start:
        start = torch.zeros_like(start)  # every state may enter
    owned = torch.zeros(data.num_data, dtype=torch.bool, device=emission.device)
    owned[begin:end] = True
    both = [emission.masked_fill(steps.unsqueeze(1), -torch.inf) for steps in (owned, ~owned)]
    smoothed = smooth(start.repeat(2), transition.repeat(2, 2), torch.cat(both, 1), data.lengths)
    moves = smoothed.transitions[:T, T:] + smoothed.transitions[T:, T:]
    counts = torch.cat([moves, smoothed.starts[T:].unsqueeze(0)])
    until, before = (_log_weight(start, transition, emission[:step]) for step in (end, begin))
    log_normalizer = until - before
    kept, r = owned[data.steps], smoothed.marginals[:, T:].to(data.X.dtype)
    bound = all_sum(log_normalizer + seen.rejection[kept].sum(dtype=torch.float64)) - kl(state, model)
    return observed(replace(state, responsibilities=r, counts=all_sum(counts), bound=bound), seen, data, kept)


def stochastic_sweep(
    state: VariationalSequence, batch: Minibatch[Sequences], model: StateSpace, rho: float
) -> VariationalSequence:
    """Natural parameters move by rho towards the optimum of a batch that stands for all.

    For the rows, it is the expected transitions that move; sticks, alpha and gamma then follow as in a full sweep.
    The recorded bound is the batch's estimate at the factors from before the step.
    """
    local, penalty = update_owned_paths(state, batch, model), kl(state, model)
    target = update_components(local.scaled(batch.scale), batch.data, model)
    moved = replace(
        move(local, target, model, rho),
        counts=torch.lerp(state.counts, target.counts, rho),
        bound=estimated(local, batch.scale, penalty),
    )
    return update_rows(moved, model.prior)


def first_steps(data: Sequences, num_steps: int, generator: torch.Generator) -> Sequences:
    """About `num_steps` steps from which a stochastic fit starts: some sequences, or ten windows of a single one."""
    if data.num_data <= num_steps:
        return data
    if len(data.lengths) == 1:
        size = max(1, num_steps // _NUM_WINDOWS)
        begins = torch.linspace(0, data.num_data - size, _NUM_WINDOWS).long().tolist()
        return _windows(data, begins, size)
    order = torch.randperm(len(data.lengths), generator=generator, device=data.X.device).tolist()
    total = torch.tensor([data.lengths[sequence] for sequence in order]).cumsum(0)
    return data.sequences(order[: 1 + int((total < num_steps).sum())])


def extrapolate(
    state: VariationalSequence, first: Sequences, model: StateSpace, num_data: int, num_sequences: float
) -> VariationalSequence:
    """Factors as if the first steps stood for all: where stochastic steps start."""
    scaled, starts = state.scaled(num_data / first.num_data), num_sequences / len(first.lengths)
    scaled = replace(scaled, counts=torch.cat([scaled.counts[:-1], starts * state.counts[-1:]]))
    return update_factors(scaled, first, model).without_rows()


def _log_weight(start: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """log of the total weight of all paths through these steps [], 0 without any."""
    if not len(emission):
        return emission.new_zeros(())
    return filter_states(start, transition, emission, [len(emission)])[1].sum()


def _windows(data: Sequences, begins: list[int], size: int) -> Sequences:
    """Windows of `size` steps of one sequence, as sequences of their own; they may overlap."""
    begin = torch.tensor(begins, device=data.steps.device)
    first, last = torch.searchsorted(data.steps, begin), torch.searchsorted(data.steps, begin + size)
    kept = torch.cat([torch.arange(*pair, device=begin.device) for pair in zip(first, last, strict=True)])
    offset = size * torch.arange(len(begins), device=begin.device) - begin
    steps = data.steps[kept] + offset.repeat_interleave(last - first)
    return Sequences(data.points.rows(kept), steps, [size] * len(begins))


_BUFFER = 20  # steps before and after a block: messages that start there are exact to about 6e-10
_NUM_WINDOWS = 10
