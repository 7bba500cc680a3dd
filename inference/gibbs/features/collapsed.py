"""The collapsed scan of latent features: each row in turn, feature probabilities integrated out (compiled, on a CPU).

    z_nk = 1      with log odds  log m - log(N - m) + (log ratios of entries and margin),    m > 0 other rows have
    feature k
    features that row n alone has:  their number ~ Poisson(alpha / N), loadings and weights from their priors

The second line is updated as one block by Metropolis-Hastings steps with the loadings integrated out; then the loadings
are drawn. The entries enter through pseudo-observations that stay the same throughout the scan. The margin enters
through its factor itself. Source: Griffiths & Ghahramani (2011).

`scan_bits` visits the bits of the truncated model in the same way, given the probabilities of the features.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....models import host
from ....models.compiled import compiled_loss
from ....models.distributions.sampling import uniforms
from ....models.ilsvm import InfiniteLatentSVM
from ....models.latent_features import FeatureData
from ...compiled.decorators import entry_of
from ...distributed.collectives import own_stream
from . import _numba_collapsed as compiled
from .state import FeatureState, Given, count_rows


def is_compiled(model: InfiniteLatentSVM, data: FeatureData) -> bool:
    """Whether compiled code can visit these rows: data on a CPU, and a loss with a compiled form."""
    return host.on_cpu(data.X) and compiled_loss(model.loss) is not None


def scan_rows(state: FeatureState, given: Given, generator: torch.Generator) -> FeatureState:
    """Visit every row once; afterwards every feature is one that some row has."""
    data = given.data
    N, K, place = data.num_data, len(state.loadings), np.array([0, len(state.loadings), 0, 0])
    room, stream = _room(float(state.hyper["concentration"]) / N), own_stream(generator)
    rows, level, noise, few = _arrays(state, given, K + 2 * room), np.empty(0), np.empty(0), _FEW
    visit = entry_of(compiled.scan, rows.loss)
    while place[0] < N:
        width = int(place[1]) + 4  # random numbers are drawn anew only when they run out
        if place[1] + room > len(rows.counts):
            rows = _widened(rows, 2 * len(rows.counts))
        if place[2] + width > len(level):
            left = N - int(place[0])
            level = uniforms((min(max(_POOL, 2 * width), left * (width + _SPARE)),), stream).numpy()
            place[2] = 0
        needed = 2 * room * rows.scores.shape[1] + (width + room) * data.X.shape[1]  # the most that one row needs
        if place[3] + needed > len(noise):
            noise = torch.randn(few + needed, generator=stream, dtype=torch.float64).numpy()
            place[3], few = 0, min(2 * few, max(_POOL, needed))
        visit(rows, compiled.Scratch.of(rows), level, noise, place)
    number = int(place[1])
    loadings, weights = (torch.from_numpy(own[:number]).to(state.loadings) for own in (rows.loadings, rows.weights))
    features = torch.from_numpy(rows.bits[:number].T.copy())
    return replace(state, features=features, loadings=loadings, weights=torch.cat([weights, state.weights[K:]]))


def scan_bits(state: FeatureState, given: Given, levels: Tensor) -> FeatureState:
    """Visit every row of the truncated model once, with uniform numbers [K, N]."""
    rows = _arrays(state, given, len(levels))
    entry_of(compiled.scan_truncated, rows.loss)(rows, compiled.Scratch.of(rows), _doubles(levels.T).ravel())
    return replace(state, features=torch.from_numpy(rows.bits.T.copy()))


def _arrays(state: FeatureState, given: Given, capacity: int) -> compiled.Rows:
    """The arguments of compiled code in double precision, with space for `capacity` features."""
    N, K = state.features.shape
    data, model, (precision, shift) = given
    if data.observed is not None:
        precision, shift = precision * data.observed, shift * data.observed
    if state.probabilities is None:
        log_number, log_odds = log_poisson(float(state.hyper["concentration"]) / N), _log_odds(N)
    else:  # rows have no own features
        log_number, log_odds = log_poisson(0.0), state.probabilities.logit()
    return compiled.Rows(
        bits=_padded(state.features.T, capacity, np.int8),
        counts=_padded(count_rows(state), capacity, np.int64),
        loadings=_padded(state.loadings, capacity, np.float64),
        weights=_padded(state.weights[:K], capacity, np.float64),
        precision=_doubles(precision),
        shift=_doubles(shift),
        scores=_doubles(data.inputs @ state.weights[K:]),
        targets=_doubles(data.targets),
        log_odds=_doubles(log_odds),
        log_number=_doubles(log_number),
        cumulative=_doubles(log_number.exp().cumsum(0)),
        loading_precision=_doubles(model.likelihood.loading_precision(state.entries, data.X.shape[1])),
        weight_scale=float(model.weight_scale),
        loss=compiled_loss(model.loss),
    )


def _log_odds(num_data: int) -> Tensor:
    """log m - log(N - m) [N] for m = 0..N - 1."""
    others = torch.arange(num_data, dtype=torch.float64)
    return others.log() - (num_data - others).log()


def log_poisson(rate: float) -> Tensor:
    """Log probabilities [room] of 0..room - 1 under a Poisson law."""
    number = torch.arange(_room(rate), dtype=torch.float64)
    return torch.xlogy(number, number.new_tensor(rate)) - rate - torch.lgamma(number + 1)


def _room(rate: float) -> int:
    """A number above which a Poisson law of this rate has no mass within rounding."""
    return int(rate + 12 * math.sqrt(rate) + 24)


def _padded(values: Tensor, capacity: int, dtype: Any) -> np.ndarray:
    result = np.zeros((capacity, *values.shape[1:]), dtype)
    result[: len(values)] = values.numpy()
    return result


def _widened(rows: compiled.Rows, capacity: int) -> compiled.Rows:
    wider: dict[str, Any] = {}
    for name in ("bits", "counts", "loadings", "weights"):
        old = getattr(rows, name)
        wider[name] = np.zeros((capacity, *old.shape[1:]), old.dtype)
        wider[name][: len(rows.counts)] = old
    return rows._replace(**wider)


def _doubles(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.double().numpy())


_POOL = 1 << 16  # uniform numbers drawn at a time
_SPARE = 2  # how many more features than now are allowed for in each row
_FEW = 1 << 10  # normal numbers drawn beyond those of one row, at first
