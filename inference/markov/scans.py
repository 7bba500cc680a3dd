"""Hidden state paths in log time: products of step matrices, in pairs, pairs of pairs and so on, on any device.

A recursion over N steps waits N times for a device that could do much more at once. Products of the steps are
associative, and so is the composition of the maps from a state to the state drawn before it. All partial products take
2 log N rounds (Blelloch 1990; Sarkka & Garcia-Fernandez 2021), with K^3 instead of K^2 operations a step. Steps [n, K,
K] are in logs:

    step_t(j, k) = transition(j, k) + emission_t(k),   of a first one start(k) + emission_t(k) for all j

All rows of the step into the first row of a sequence are equal, so that a message keeps only a factor of what came
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...models.distributions.sampling import draw_categorical
from ...models.markov import pad_sequences
from ...models.sums import row_chunks
from .tensors import Paths, Smoothed, require_paths

Sum = Callable[[Tensor, int], Tensor]  # a sum over a dimension, in logs


def pays(paths: Paths) -> bool:
    """Whether the products cost less than a wait for each step of the longest sequence."""
    (N, K), longest = paths.emission.shape, max(paths.lengths, default=0)
    return longest >= _LONG and longest * _NUMBERS >= N * K**3


def filter_in_logs(paths: Paths) -> tuple[Tensor, Tensor]:
    """p(z_t | up to t) [N, K] and log normalizers [B]."""
    messages, log_weights = _messages(paths)
    return messages.exp(), log_weights


def sample_in_logs(paths: Paths, uniforms: Tensor) -> Tensor:
    """States [N] drawn backwards by inverse CDF from uniforms [N]."""
    messages, _ = _messages(paths)

    def draw(weights: Tensor, rows: slice) -> Tensor:
        drawn = draw_categorical(weights.mT, uniforms[rows].unsqueeze(1).expand(-1, weights.shape[2]))
        return drawn.clamp(max=weights.shape[1] - 1)  # relevant only before a state that no transition leads to

    return _followed(paths, messages, draw)


def smooth_in_logs(paths: Paths) -> Smoothed:
    """Marginals [N, K] of every step and expected transition counts."""
    messages, log_weights = _messages(paths)
    marginals, moves = torch.empty_like(messages), torch.zeros_like(paths.transition)
    behind = messages.new_zeros(messages.shape[1])
    lasts = _ends(paths).unsqueeze(1)
    for rows, ahead in _steps_ahead(paths, emits=True):
        steps = ahead.clone()
        steps[-1] = (steps[-1] + behind).logsumexp(1, keepdim=True)
        after = _products(steps.flip(0), lambda later, one: _times(one, later, torch.logsumexp)).flip(0)[:, :, 0]
        marginals[rows] = (messages[rows] + after).softmax(1)
        joint = messages[rows].unsqueeze(2) + ahead + torch.cat([after[1:], behind.unsqueeze(0)]).unsqueeze(1)
        moves += joint.flatten(1).softmax(1).masked_fill(lasts[rows], 0.0).sum(0).view_as(moves)
        behind = after[0]
    return Smoothed(marginals, marginals[_starts(paths)].sum(0), moves, log_weights)


def viterbi_in_logs(paths: Paths) -> tuple[Tensor, Tensor]:
    """Paths [N] of largest weight and their log weights [B]."""
    best = torch.cat([found for found, _ in _filtered(paths, torch.amax)])
    states = _followed(paths, best, lambda weights, _: weights.argmax(1))
    before = states.roll(1)
    step = torch.where(_firsts(paths), paths.start[states], paths.transition[before, states])
    own = step + paths.emission.gather(1, states.unsqueeze(1)).squeeze(1)
    return states, pad_sequences(own, paths.lengths).sum(1)


# -- the recursions ----------------------------------------------------------------------------------------------------


def _messages(paths: Paths) -> tuple[Tensor, Tensor]:
    """log p(z_t | up to t) [N, K] and log normalizers [B]."""
    found, totals = (torch.cat(parts) for parts in zip(*_filtered(paths, torch.logsumexp), strict=True))
    log_weights = pad_sequences(totals, paths.lengths).sum(1)
    require_paths(log_weights)
    return found, log_weights


def _filtered(paths: Paths, add: Sum) -> Iterator[tuple[Tensor, Tensor]]:
    """For each chunk of rows the messages [n, K], normalized in logs, and what each step adds to the log weight [n]."""
    message = paths.start.new_full((1, len(paths.start)), 0.0)
    message = message - add(message, 1)
    for rows in _chunks(paths):
        steps = _steps(paths, rows)
        products = steps.clone()
        products[0] = add(message.T + steps[0], 0)
        found = _products(products, lambda one, later: _times(one, later, add))[:, 0]
        found = found - add(found, 1).unsqueeze(1)
        before = torch.cat([message, found[:-1]])
        yield found, add((before.unsqueeze(2) + steps).flatten(1), 1)
        message = found[-1:]


def _followed(paths: Paths, messages: Tensor, choose: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """States [N], last first. Each is chosen, [n, K], for every state that may come after it.

    choose(log weights [n, K, K] of a state and the next one, rows) makes this choice.
    """
    states = torch.empty(len(messages), dtype=torch.long, device=messages.device)
    after = states.new_zeros(1)
    for rows, ahead in _steps_ahead(paths, emits=False):
        chosen = choose(messages[rows].unsqueeze(2) + ahead, rows)
        chosen[-1] = chosen[-1].gather(0, after)
        states[rows] = _products(chosen.flip(0), lambda later, one: one.gather(1, later)).flip(0)[:, 0]
        after = states[rows][:1]
    return states


def _steps_ahead(paths: Paths, *, emits: bool) -> Iterator[tuple[slice, Tensor]]:
    """Chunks of rows, last first, with the transitions [n, K, K] out of them; 1 at the end of a sequence."""
    lasts = _ends(paths).view(-1, 1, 1)
    for rows in reversed(list(_chunks(paths))):
        following = torch.arange(rows.start, min(rows.stop, len(lasts)), device=lasts.device) + 1
        steps = _steps(paths, following.clamp(max=len(lasts) - 1), emits=emits)
        yield rows, steps.masked_fill(lasts[rows], 0.0)


def _steps(paths: Paths, rows: slice | Tensor, *, emits: bool = True) -> Tensor:
    """Log weights [n, K, K] of the transitions into some rows, including the rows' emissions if `emits`."""
    steps = torch.where(_firsts(paths)[rows].view(-1, 1, 1), paths.start, paths.transition)
    if paths.slices is not None:
        steps = torch.where(steps > paths.slices[rows].view(-1, 1, 1), 0.0, -torch.inf).to(steps)
    return steps + paths.emission[rows].unsqueeze(1) if emits else steps


def _chunks(paths: Paths) -> Iterator[slice]:
    return row_chunks(paths.emission, len(paths.start) ** 2)


def _firsts(paths: Paths) -> Tensor:
    """Whether a row is the first of a sequence, bool [N]."""
    return _ends(paths).roll(1)


def _ends(paths: Paths) -> Tensor:
    """Whether a row is the last of a sequence, bool [N]."""
    ends = torch.zeros(len(paths.emission), dtype=torch.bool)
    ends[torch.tensor(paths.lengths).cumsum(0) - 1] = True
    return ends.to(paths.emission.device)


def _starts(paths: Paths) -> Tensor:
    """Rows [B] that are the first of a sequence."""
    lengths = torch.tensor(paths.lengths)
    return (lengths.cumsum(0) - lengths).to(paths.emission.device)


# -- products ----------------------------------------------------------------------------------------------------------


def _products(each: Tensor, times: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The products [n, ...] of the first t + 1 of n elements [n, ...]; `times` multiplies [m, ...] pairwise."""
    if len(each) == 1:
        return each
    pairs = _products(times(each[:-1:2], each[1::2]), times)
    found = torch.empty_like(each)
    found[:1], found[1::2] = each[:1], pairs
    found[2::2] = times(pairs[: len(found[2::2])], each[2::2])
    return found


def _times(one: Tensor, other: Tensor, add: Sum) -> Tensor:
    """Products of matrices [n, K, K] in logs, scaled so that the largest entry is 0."""
    found = torch.empty_like(one)
    for rows in row_chunks(one, one.shape[1] ** 3):
        found[rows] = add(one[rows].unsqueeze(3) + other[rows].unsqueeze(1), 2)
    return found - found.amax((1, 2), keepdim=True)


_LONG = 64  # steps, from which on products need fewer rounds
_NUMBERS = 2**22  # exponentials that a GPU computes in about the time of a step's few kernels
