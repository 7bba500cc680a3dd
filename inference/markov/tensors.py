"""Hidden state paths in tensor code: log weights, batched over the sequences, [B, longest, ...], on any device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...models.distributions.sampling import draw_categorical
from ...models.markov import pad_sequences
from ..compiled.trusted import require_shape


class Smoothed(NamedTuple):
    """Posterior expectations of the states of B sequences."""

    marginals: Tensor  # [N, K] p(z_t | all steps)
    starts: Tensor  # [K] expected number of sequences that start in a state
    transitions: Tensor  # [K, K] expected transition counts
    log_normalizers: Tensor  # [B]


class Paths(NamedTuple):
    """The log weights of paths, all in double precision; -inf forbids a state or a transition."""

    start: Tensor  # [K]
    transition: Tensor  # [K, K], from row to column
    emission: Tensor  # [N, K]
    lengths: list[int]
    slices: Tensor | None  # [N] a transition is allowed if its log weight is above the slice, and then has weight 1

    @classmethod
    def of(
        cls, start: Tensor, transition: Tensor, emission: Tensor, lengths: list[int], slices: Tensor | None = None
    ) -> Paths:
        """The log weights start [K], transition [K, K], emission [N, K] in double precision, shapes checked."""
        if sum(lengths) != len(emission):
            raise ValueError(f"lengths add up to {sum(lengths)}, but there are {len(emission)} rows of emissions.")
        if min(lengths, default=1) < 1:
            raise ValueError(f"lengths has {min(lengths)}; every sequence needs at least one row.")
        K = emission.shape[1]
        require_shape("log_start", start, (K,))
        require_shape("log_transition", transition, (K, K))
        if slices is not None:
            require_shape("log_slices", slices, (len(emission),))
            slices = slices.detach().double()
        start, transition, emission = (tensor.detach().double() for tensor in (start, transition, emission))
        return cls(start, transition, emission, lengths, slices)


def filter_in_logs(paths: Paths) -> tuple[Tensor, Tensor]:
    """p(z_t | up to t) [N, K] and log normalizers [B]."""
    messages, log_weights = _messages(paths)
    return _unpad(messages.exp(), paths.lengths), log_weights


def sample_in_logs(paths: Paths, uniforms: Tensor) -> Tensor:
    """States [N] drawn backwards by inverse CDF from uniforms [N]."""
    messages, _ = _messages(paths)
    levels, last = pad_sequences(uniforms, paths.lengths), _last(paths)
    slices = None if paths.slices is None else pad_sequences(paths.slices, paths.lengths)
    states = torch.zeros(levels.shape, dtype=torch.long, device=levels.device)
    for t in range(levels.shape[1] - 1, -1, -1):
        log_weights = messages[:, t]
        if t + 1 < levels.shape[1]:
            table = _step(paths, slices, t + 1).expand(len(last), -1, -1)
            column = table.gather(2, states[:, t + 1, None, None].expand(-1, table.shape[1], 1)).squeeze(2)
            log_weights = torch.where((t < last).unsqueeze(1), log_weights + column, log_weights)
        states[:, t] = draw_categorical(log_weights, levels[:, t])
    return _unpad(states, paths.lengths)


def smooth_in_logs(paths: Paths) -> Smoothed:
    """Marginals [N, K] of every step and expected transition counts."""
    messages, log_weights = _messages(paths)
    emission, last = pad_sequences(paths.emission, paths.lengths), _last(paths)
    K = len(paths.start)
    behind = emission.new_zeros(len(last), K)
    marginals = [messages[:, -1].softmax(1)]
    moves = emission.new_zeros(K, K)
    for t in range(emission.shape[1] - 2, -1, -1):
        inside = (t < last).view(-1, 1)
        ahead = (emission[:, t + 1] + behind).unsqueeze(1) + paths.transition
        joint = (messages[:, t].unsqueeze(2) + ahead).flatten(1).softmax(1).view_as(ahead)
        moves += torch.where(inside.unsqueeze(2), joint, 0.0).sum(0)
        message = ahead.logsumexp(2)
        total = (messages[:, t] + message).logsumexp(1, keepdim=True)
        behind = torch.where(inside, message - total, behind)
        marginals.append((messages[:, t] + behind).softmax(1))
    table = torch.stack(marginals[::-1], 1)
    return Smoothed(_unpad(table, paths.lengths), table[:, 0].sum(0), moves, log_weights)


def viterbi_in_logs(paths: Paths) -> tuple[Tensor, Tensor]:
    """Paths [N] of largest weight and their log weights [B]."""
    emission, last = pad_sequences(paths.emission, paths.lengths), _last(paths)
    best = paths.start + emission[:, 0]
    origins: list[Tensor] = []
    itself = torch.arange(len(paths.start), device=best.device).expand(len(last), -1)
    for t in range(1, emission.shape[1]):
        value, origin = (best.unsqueeze(2) + paths.transition).max(1)
        inside = (t <= last).unsqueeze(1)
        best = torch.where(inside, value + emission[:, t], best)
        origins.append(torch.where(inside, origin, itself))
    scores, state = best.max(1)
    path = [state]
    for origin in reversed(origins):
        path.append(origin.gather(1, path[-1].unsqueeze(1)).squeeze(1))
    return _unpad(torch.stack(path[::-1], 1), paths.lengths), scores


def _messages(paths: Paths) -> tuple[Tensor, Tensor]:
    """log p(z_t | up to t) [B, L, K] (the last one of a sequence is repeated after its end) and log normalizers [B]."""
    emission = pad_sequences(paths.emission, paths.lengths)
    last = _last(paths)
    start, slices = paths.start.expand(len(last), -1), None
    if paths.slices is not None:
        slices = pad_sequences(paths.slices, paths.lengths)
        start = _allowed(start, slices[:, :1])
    message = start + emission[:, 0]
    total = message.logsumexp(1, keepdim=True)
    # normalized messages and separate totals, to lose no digits
    messages, log_weights = [message - total], total.squeeze(1)
    for t in range(1, emission.shape[1]):
        inside = (t <= last).unsqueeze(1)
        message = torch.logsumexp(messages[-1].unsqueeze(2) + _step(paths, slices, t), 1) + emission[:, t]
        total = message.logsumexp(1, keepdim=True)
        messages.append(torch.where(inside, message - total, messages[-1]))
        log_weights = log_weights + torch.where(inside, total, 0.0).squeeze(1)
    require_paths(log_weights)
    return torch.stack(messages, 1), log_weights


def _step(paths: Paths, slices: Tensor | None, t: int) -> Tensor:
    """Log weights of the transitions into step t, [K, K], or [B, K, K] with slices."""
    return paths.transition if slices is None else _allowed(paths.transition, slices[:, t, None, None])


def _allowed(log_weights: Tensor, log_slices: Tensor) -> Tensor:
    return torch.where(log_weights > log_slices, 0.0, -torch.inf).to(log_slices)


def _last(paths: Paths) -> Tensor:
    return torch.tensor(paths.lengths, device=paths.emission.device) - 1


def _unpad(table: Tensor, lengths: list[int]) -> Tensor:
    return torch.cat([row[:length] for row, length in zip(table, lengths, strict=True)])


def require_paths(log_weights: Tensor) -> None:
    """Raise FloatingPointError unless every log weight [B] is finite."""
    if impossible := torch.nonzero(~log_weights.isfinite()).flatten().tolist():
        raise FloatingPointError(
            f"No path of sequence {impossible[0]} has a positive finite weight. "
            "Standardize X, or check for forbidden steps."
        )
