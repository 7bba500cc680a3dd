"""Filtering, sampling, smoothing and decoding of Markov chains of hidden states, for all backends.

    w(z) = start(z_1) e_1(z_1) prod_{t > 1} transition(z_{t-1}, z_t) e_t(z_t)

for each sequence; weights need not be normalized. The rows of all sequences are stacked, and nothing is N x K x K.
Compiled on a CPU with scaled probabilities (in logs where they underflow); elsewhere batched over the sequences in
logs.

Sources: Rabiner (1989); Scott (2002) for the sampler; Van Gael et al. (2008) for its slices
(math/discriminative-clustering, sections 11 to 13).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..models.markov import log_normalizers, pad_sequences

__all__ = ["Chain", "Smoothed", "filter_states", "log_normalizers", "sample_paths", "smooth", "viterbi"]


class Smoothed(NamedTuple):
    """Posterior expectations of the states of B sequences."""

    marginals: Tensor  # [N, K] p(z_t | all steps)
    starts: Tensor  # [K] expected number of sequences that start in a state
    transitions: Tensor  # [K, K] expected number of moves
    log_normalizers: Tensor  # [B]


class Chain(NamedTuple):
    """Log weights of paths, all in double precision; -inf forbids."""

    start: Tensor  # [K]
    transition: Tensor  # [K, K], from row to column
    emission: Tensor  # [N, K]
    lengths: list[int]
    slices: Tensor | None  # [N] a step is allowed if its log weight is larger, and then weighs 1

    @classmethod
    def of(
        cls, start: Tensor, transition: Tensor, emission: Tensor, lengths: list[int], slices: Tensor | None = None
    ) -> Chain:
        """The chain in double precision, shapes checked."""
        if sum(lengths) != len(emission):
            raise ValueError(f"lengths add up to {sum(lengths)}, but there are {len(emission)} rows of emissions.")
        if min(lengths, default=0) < 1:
            raise ValueError(f"lengths has {min(lengths, default=0)}; every sequence needs at least one row.")
        K = emission.shape[1]
        _require_shape("log_start", start, (K,))
        _require_shape("log_transition", transition, (K, K))
        if slices is not None:
            _require_shape("log_slices", slices, (len(emission),))
            slices = slices.detach().double()
        start, transition, emission = (tensor.detach().double() for tensor in (start, transition, emission))
        return cls(start, transition, emission, lengths, slices)


def filter_states(
    log_start: Tensor, log_transition: Tensor, log_emission: Tensor, lengths: list[int], *, compiled: bool | None = None
) -> tuple[Tensor, Tensor]:
    """p(z_t | steps up to t) [N, K] and log normalizers [B].

    Parameters
    ----------
    log_start, log_transition, log_emission : [K], [K, K] from row to column, [N, K]
    lengths : rows of each of the B sequences
    compiled : None: on a CPU

    Raises
    ------
    FloatingPointError    if no path of a sequence has a positive weight.
    """
    chain = Chain.of(log_start, log_transition, log_emission, lengths)
    filtered, log_weights = _filtered(chain, compiled)
    return filtered.to(log_emission), log_weights.to(log_emission)


def sample_paths(
    log_start: Tensor,
    log_transition: Tensor,
    log_emission: Tensor,
    lengths: list[int],
    uniforms: Tensor,
    log_slices: Tensor | None = None,
    *,
    compiled: bool | None = None,
) -> Tensor:
    """States [N] drawn from p(z) prop. to w(z): filtered forwards, drawn backwards by inverse CDF from uniforms [N].

    With log_slices [N] only steps whose log weight is larger are allowed, and they weigh 1 (beam sampling). At the
    first row of a sequence the step is log_start. Other arguments as in `filter_states`.
    """
    chain = Chain.of(log_start, log_transition, log_emission, lengths, log_slices)
    _require_shape("uniforms", uniforms, (len(log_emission),))
    if not _use_compiled(chain, compiled):
        return _sample_in_logs(chain, uniforms.double())
    from . import _numba_markov

    filtered, _, _ = _forward(chain)
    states = np.empty(len(log_emission), np.int64)
    log_columns, columns = _transposed(chain.transition), _transposed(_scaled(chain.transition, chain))
    values = np.ascontiguousarray(uniforms.double().numpy())
    _numba_markov.backward_sample(log_columns, columns, filtered, _bounds(lengths), _slices(chain), values, states)
    return torch.from_numpy(states)


def smooth(
    log_start: Tensor, log_transition: Tensor, log_emission: Tensor, lengths: list[int], *, compiled: bool | None = None
) -> Smoothed:
    """Marginals of every step and expected numbers of moves; arguments as in `filter_states`."""
    chain = Chain.of(log_start, log_transition, log_emission, lengths)
    if not _use_compiled(chain, compiled):
        result = _smooth_in_logs(chain)
    else:
        from . import _numba_markov

        filtered, marginals, log_weights = _forward(chain, smooth=True)
        transition, bounds = _scaled(chain.transition, chain).contiguous().numpy(), _bounds(lengths)
        products, moves = np.zeros_like(transition), np.zeros_like(transition)
        _numba_markov.smooth(_transposed(chain.transition), transition, filtered, bounds, marginals, products, moves)
        moves += products * transition
        table, starts = torch.from_numpy(marginals), marginals[bounds[:-1]].sum(0)
        result = Smoothed(table, torch.from_numpy(starts), torch.from_numpy(moves), torch.from_numpy(log_weights))
    return Smoothed(*(tensor.to(log_emission) for tensor in result))


def viterbi(
    log_start: Tensor, log_transition: Tensor, log_emission: Tensor, lengths: list[int], *, compiled: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Paths [N] of largest weight and their log weights [B]; arguments as in `filter_states`."""
    chain = Chain.of(log_start, log_transition, log_emission, lengths)
    if _use_compiled(chain, compiled):
        from . import _numba_markov

        paths, scores = np.empty(len(log_emission), np.int64), np.empty(len(lengths))
        start, emission = (np.ascontiguousarray(table.numpy()) for table in (chain.start, chain.emission))
        _numba_markov.viterbi(start, _transposed(chain.transition), emission, _bounds(lengths), paths, scores)
        best, log_scores = torch.from_numpy(paths), torch.from_numpy(scores)
    else:
        best, log_scores = _viterbi_tensors(chain)
    _require_paths(log_scores)
    return best, log_scores.to(log_emission)


# -- compiled ----------------------------------------------------------------------------------------------------------


def _use_compiled(chain: Chain, compiled: bool | None) -> bool:
    return chain.emission.device.type == "cpu" if compiled is None else compiled


def _bounds(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths])


def _slices(chain: Chain) -> np.ndarray:
    return np.empty(0) if chain.slices is None else np.ascontiguousarray(chain.slices.numpy())


def _transposed(table: Tensor) -> np.ndarray:
    return np.ascontiguousarray(table.numpy().T)


def _scaled(log_weights: Tensor, chain: Chain) -> Tensor:
    """exp relative to the largest step: weights may be of any size."""
    return (log_weights - _largest_step(chain)).exp()


def _largest_step(chain: Chain) -> float:
    largest = float(torch.maximum(chain.transition.max(), chain.start.max()))
    return largest if np.isfinite(largest) else 0.0


def _forward(chain: Chain, smooth: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p(z_t | up to t) [N, K], p(z_t | before t) [N, K] if smooth, log normalizers [B]; see _numba_markov."""
    from . import _numba_markov

    log_weights = np.empty(len(chain.lengths))
    log_steps = torch.cat([chain.transition, chain.start.unsqueeze(0)])
    if chain.slices is None:  # the same for all steps of all paths; added to the normalizers again
        log_steps = log_steps - _largest_step(chain)
    rough = chain.slices is None and bool(((log_steps < _numba_markov.LEAST_STEP) & (log_steps > -torch.inf)).any())
    tops = chain.emission.amax(1)
    filtered = (chain.emission - tops.unsqueeze(1)).exp_().contiguous().numpy()
    predicted = np.empty(filtered.shape if smooth else (0, 0))
    _numba_markov.forward(
        log_steps.numpy(),
        log_steps.exp().numpy(),
        np.ascontiguousarray(chain.emission.numpy()),
        tops.numpy(),
        _bounds(chain.lengths),
        _slices(chain),
        rough,
        filtered,
        predicted,
        log_weights,
    )
    if chain.slices is None:
        log_weights += _largest_step(chain) * np.asarray(chain.lengths)
    _require_paths(torch.from_numpy(log_weights))
    return filtered, predicted, log_weights


def _filtered(chain: Chain, compiled: bool | None) -> tuple[Tensor, Tensor]:
    if not _use_compiled(chain, compiled):
        messages, log_weights = _messages(chain)
        return _unpad(messages.exp(), chain.lengths), log_weights
    table, _, weights = _forward(chain)
    np.exp(table, out=table, where=table < 0.0)
    return torch.from_numpy(table), torch.from_numpy(weights)


# -- in logs, on any device; [B, longest, ...] -------------------------------------------------------------------------


def _messages(chain: Chain) -> tuple[Tensor, Tensor]:
    """log p(z_t | up to t) [B, L, K] (the last one of a sequence is repeated after its end) and log normalizers [B]."""
    emission = pad_sequences(chain.emission, chain.lengths)
    last = _last(chain)
    start, slices = chain.start.expand(len(last), -1), None
    if chain.slices is not None:
        slices = pad_sequences(chain.slices, chain.lengths)
        start = _allowed(start, slices[:, :1])
    message = start + emission[:, 0]
    total = message.logsumexp(1, keepdim=True)
    # small numbers keep their digits: totals apart from the messages
    messages, log_weights = [message - total], total.squeeze(1)
    for t in range(1, emission.shape[1]):
        inside = (t <= last).unsqueeze(1)
        message = torch.logsumexp(messages[-1].unsqueeze(2) + _step(chain, slices, t), 1) + emission[:, t]
        total = message.logsumexp(1, keepdim=True)
        messages.append(torch.where(inside, message - total, messages[-1]))
        log_weights = log_weights + torch.where(inside, total, 0.0).squeeze(1)
    _require_paths(log_weights)
    return torch.stack(messages, 1), log_weights


def _sample_in_logs(chain: Chain, uniforms: Tensor) -> Tensor:
    messages, _ = _messages(chain)
    levels, last = pad_sequences(uniforms, chain.lengths), _last(chain)
    slices = None if chain.slices is None else pad_sequences(chain.slices, chain.lengths)
    states = torch.zeros(levels.shape, dtype=torch.long, device=levels.device)
    for t in range(levels.shape[1] - 1, -1, -1):
        log_weights = messages[:, t]
        if t + 1 < levels.shape[1]:
            table = _step(chain, slices, t + 1).expand(len(last), -1, -1)
            column = table.gather(2, states[:, t + 1, None, None].expand(-1, table.shape[1], 1)).squeeze(2)
            log_weights = torch.where((t < last).unsqueeze(1), log_weights + column, log_weights)
        cumulative = log_weights.softmax(1).cumsum(1)
        total = cumulative[:, -1:]
        # below the total even after rounding, so that no state of weight zero is ever chosen
        level = torch.minimum(levels[:, t : t + 1] * total, torch.nextafter(total, torch.zeros_like(total)))
        states[:, t] = torch.searchsorted(cumulative, level, right=True).squeeze(1)
    return _unpad(states, chain.lengths)


def _smooth_in_logs(chain: Chain) -> Smoothed:
    messages, log_weights = _messages(chain)
    emission, last = pad_sequences(chain.emission, chain.lengths), _last(chain)
    K = len(chain.start)
    behind = emission.new_zeros(len(last), K)
    marginals = [messages[:, -1].softmax(1)]
    moves = emission.new_zeros(K, K)
    for t in range(emission.shape[1] - 2, -1, -1):
        inside = (t < last).view(-1, 1)
        ahead = (emission[:, t + 1] + behind).unsqueeze(1) + chain.transition
        joint = (messages[:, t].unsqueeze(2) + ahead).flatten(1).softmax(1).view_as(ahead)
        moves += torch.where(inside.unsqueeze(2), joint, 0.0).sum(0)
        message = ahead.logsumexp(2)
        total = (messages[:, t] + message).logsumexp(1, keepdim=True)
        behind = torch.where(inside, message - total, behind)
        marginals.append((messages[:, t] + behind).softmax(1))
    table = torch.stack(marginals[::-1], 1)
    return Smoothed(_unpad(table, chain.lengths), table[:, 0].sum(0), moves, log_weights)


def _viterbi_tensors(chain: Chain) -> tuple[Tensor, Tensor]:
    emission, last = pad_sequences(chain.emission, chain.lengths), _last(chain)
    best = chain.start + emission[:, 0]
    origins: list[Tensor] = []
    itself = torch.arange(len(chain.start), device=best.device).expand(len(last), -1)
    for t in range(1, emission.shape[1]):
        value, origin = (best.unsqueeze(2) + chain.transition).max(1)
        inside = (t <= last).unsqueeze(1)
        best = torch.where(inside, value + emission[:, t], best)
        origins.append(torch.where(inside, origin, itself))
    scores, state = best.max(1)
    path = [state]
    for origin in reversed(origins):
        path.append(origin.gather(1, path[-1].unsqueeze(1)).squeeze(1))
    return _unpad(torch.stack(path[::-1], 1), chain.lengths), scores


def _step(chain: Chain, slices: Tensor | None, t: int) -> Tensor:
    """Log weights of the step into t, [K, K], or [B, K, K] with slices."""
    return chain.transition if slices is None else _allowed(chain.transition, slices[:, t, None, None])


def _allowed(log_weights: Tensor, log_slices: Tensor) -> Tensor:
    return torch.where(log_weights > log_slices, 0.0, -torch.inf).to(log_slices)


def _last(chain: Chain) -> Tensor:
    return torch.tensor(chain.lengths, device=chain.emission.device) - 1


def _unpad(table: Tensor, lengths: list[int]) -> Tensor:
    return torch.cat([row[:length] for row, length in zip(table, lengths, strict=True)])


def _require_paths(log_weights: Tensor) -> None:
    if impossible := torch.nonzero(~log_weights.isfinite()).flatten().tolist():
        raise FloatingPointError(
            f"No path of sequence {impossible[0]} has a positive finite weight. "
            "Standardize X, or check for forbidden steps."
        )


def _require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}.")
