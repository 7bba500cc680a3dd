"""Filtering, sampling, smoothing and decoding of Markov chains of hidden states, for all backends.

    w(z) = start(z_1) e_1(z_1) prod_{t > 1} transition(z_{t-1}, z_t) e_t(z_t)

for each sequence; weights need not be normalized. The rows of all sequences are stacked, and no array is N x K x K. On
a CPU compiled code uses scaled probabilities (logs where they underflow). Elsewhere tensor code works in logs, step by
step for all sequences at once (`tensors`) or, for few long sequences, by products of transition matrices in log time
(`scans`).

Sources: Rabiner (1989); Scott (2002) for the sampler; Van Gael et al. (2008) for its slices.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models import host
from ..compiled.trusted import require_shape
from . import scans, tensors
from .tensors import Paths, Smoothed, require_paths


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
    paths = Paths.of(log_start, log_transition, log_emission, lengths)
    filtered, log_weights = _filtered(paths, compiled)
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
    in_place: bool = False,
) -> Tensor:
    """States [N] drawn from p(z) prop. to w(z): filtered forwards, drawn backwards by inverse CDF from uniforms [N].

    With log_slices [N], only transitions of larger log weight are allowed, with weight 1 (beam sampling). The
    transition into the first row of a sequence is log_start. `in_place` overwrites log_emission. Other arguments are as
    in `filter_states`.
    """
    paths = Paths.of(log_start, log_transition, log_emission, lengths, log_slices)
    require_shape("uniforms", uniforms, (len(log_emission),))
    if not _use_compiled(paths, compiled):
        return _in_logs(paths).sample_in_logs(paths, uniforms.double())
    from . import _numba_paths

    filtered, _, _ = _forward(paths, in_place=in_place)
    states = np.empty(len(log_emission), np.int64)
    log_columns, columns = _transposed(paths.transition), _transposed(_scaled(paths.transition, paths))
    values, room = np.ascontiguousarray(uniforms.double().numpy()), np.empty(len(columns))
    _numba_paths.backward_sample(log_columns, columns, filtered, _bounds(lengths), _slices(paths), values, states, room)
    return torch.from_numpy(states)


def smooth(
    log_start: Tensor, log_transition: Tensor, log_emission: Tensor, lengths: list[int], *, compiled: bool | None = None
) -> Smoothed:
    """Marginals [N, K] of every step and expected transition counts; arguments as in `filter_states`."""
    paths = Paths.of(log_start, log_transition, log_emission, lengths)
    if not _use_compiled(paths, compiled):
        result = _in_logs(paths).smooth_in_logs(paths)
    else:
        from . import _numba_paths

        filtered, marginals, log_weights = _forward(paths, smooth=True)
        transition, bounds = _scaled(paths.transition, paths), _bounds(lengths)
        K, columns = len(transition), _in_eights(transition.T).numpy()
        products, moves = np.zeros((K, len(columns))), np.zeros((K, K))
        log_columns, room = _transposed(paths.transition), _zeros(len(columns), len(columns), K, K)
        _numba_paths.smooth(log_columns, columns, filtered, bounds, marginals, products, moves, room)
        table, starts = torch.from_numpy(marginals), torch.from_numpy(marginals[bounds[:-1]].sum(0))
        expected = torch.from_numpy(moves) + torch.from_numpy(products[:, :K]) * transition
        result = Smoothed(table, starts, expected, torch.from_numpy(log_weights))
    return Smoothed(*(tensor.to(log_emission) for tensor in result))


def viterbi(
    log_start: Tensor, log_transition: Tensor, log_emission: Tensor, lengths: list[int], *, compiled: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Paths [N] of largest weight and their log weights [B]; arguments as in `filter_states`."""
    paths = Paths.of(log_start, log_transition, log_emission, lengths)
    if _use_compiled(paths, compiled):
        from . import _numba_paths

        states, scores = np.empty(len(log_emission), np.int64), np.empty(len(lengths))
        start, emission = (np.ascontiguousarray(table.numpy()) for table in (paths.start, paths.emission))
        _numba_paths.viterbi(start, _transposed(paths.transition), emission, _bounds(lengths), states, scores)
        best, log_scores = torch.from_numpy(states), torch.from_numpy(scores)
    else:
        best, log_scores = _in_logs(paths).viterbi_in_logs(paths)
    require_paths(log_scores)
    return best, log_scores.to(log_emission)


def _in_logs(paths: Paths) -> ModuleType:
    return scans if scans.pays(paths) else tensors


# -- compiled ----------------------------------------------------------------------------------------------------------


def _use_compiled(paths: Paths, compiled: bool | None) -> bool:
    return host.on_cpu(paths.emission) if compiled is None else compiled


def _bounds(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths])


def _slices(paths: Paths) -> np.ndarray:
    return np.empty(0) if paths.slices is None else np.ascontiguousarray(paths.slices.numpy())


def _transposed(table: Tensor) -> np.ndarray:
    return np.ascontiguousarray(table.numpy().T)


def _in_eights(table: Tensor) -> Tensor:
    """The table with rows and columns of 0, so that the columns are a multiple of 8."""
    added = -table.shape[1] % 8
    return pad(table, (0, added, 0, added)).contiguous()


def _zeros(*sizes: int) -> tuple[np.ndarray, ...]:
    return tuple(map(np.zeros, sizes))


def _scaled(log_weights: Tensor, paths: Paths) -> Tensor:
    """exp of log weights relative to the largest transition, since weights may be of any size."""
    return (log_weights - _largest_step(paths)).exp()


def _largest_step(paths: Paths) -> float:
    largest = float(torch.maximum(paths.transition.max(), paths.start.max()))
    return largest if np.isfinite(largest) else 0.0


def _forward(
    paths: Paths, *, smooth: bool = False, in_place: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p(z_t | up to t) [N, K], p(z_t | before t) [N, K] if `smooth`, and log normalizers [B]; see _numba_paths."""
    from . import _numba_paths

    K, log_weights = len(paths.start), np.empty(len(paths.lengths))
    log_steps = torch.cat([paths.transition, paths.start.unsqueeze(0)])
    if paths.slices is None:  # one factor for all steps; the normalizers get it back below
        log_steps = log_steps - _largest_step(paths)
    emission = np.ascontiguousarray(paths.emission.numpy())
    alone = paths.slices is None and log_steps.min() > _numba_paths.LEAST_STEP
    filtered = emission if in_place and alone else np.empty_like(emission)
    predicted = np.empty(filtered.shape if smooth else (0, 0))
    steps, block = _in_eights(log_steps.exp()), _numba_paths.BLOCK
    Q = steps.shape[1]
    floor = np.where(np.arange(Q) < K, _numba_paths.TINY, 0.0)
    room = *_zeros(Q, Q, block * K, block * K + 8, block), floor
    rest = emission, _bounds(paths.lengths), _slices(paths), filtered, predicted, log_weights
    _numba_paths.forward(log_steps.numpy(), steps.numpy(), *rest, room)
    if np.isnan(log_weights).any():
        _numba_paths.forward_in_logs(log_steps.numpy(), *rest, _zeros(K, K, K))
    if paths.slices is None:
        log_weights += _largest_step(paths) * np.asarray(paths.lengths)
    require_paths(torch.from_numpy(log_weights))
    return filtered, predicted, log_weights


def _filtered(paths: Paths, compiled: bool | None) -> tuple[Tensor, Tensor]:
    if not _use_compiled(paths, compiled):
        return _in_logs(paths).filter_in_logs(paths)
    table, _, weights = _forward(paths)
    with np.errstate(under="ignore"):
        np.exp(table, out=table, where=table < 0.0)
    return torch.from_numpy(table), torch.from_numpy(weights)
