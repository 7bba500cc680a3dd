"""The collapsed scan of latent features: each row in turn, their probabilities integrated out (compiled, on a CPU).

    z_nk = 1      with log odds  log m - log(N - m) + (what entries and margin say),    m > 0 other rows have feature k
    features that row n has alone:  their number ~ Poisson(alpha / N), loadings and weights from their priors

The second line is a block of its own with the loadings integrated out, by Metropolis-Hastings steps; then the loadings
are drawn. The entries speak through pseudo-observations, which hold for the whole scan; the margin is the factor
itself. Sources: Griffiths & Ghahramani (2011); math/latent-features, section 3, infinite model (a).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...models.distributions.sampling import uniforms
from ...models.ilsvm import InfiniteLatentSVM
from ...models.latent_features import FeatureData
from ...models.losses import (
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    Loss,
    Masked,
    OneVsRest,
    PseudoObservation,
    SquaredHinge,
    StudentT,
)
from ..collectives import own_stream
from . import _numba_features as compiled
from .feature_state import FeatureState, count_rows

_KINDS: dict[type[Loss], tuple[int, tuple[str, str]]] = {
    Hinge: (compiled.HINGE, ("strength", "margin")),
    SquaredHinge: (compiled.SQUARED_HINGE, ("strength", "margin")),
    Logistic: (compiled.LOGISTIC, ("", "")),
    EpsilonInsensitive: (compiled.EPSILON_INSENSITIVE, ("strength", "epsilon")),
    StudentT: (compiled.STUDENT_T, ("df", "scale")),
    CrammerSinger: (compiled.CRAMMER_SINGER, ("strength", "margin")),
}


def compiled_loss(loss: Any) -> tuple[int, float, float] | None:
    """What compiled code knows a loss by; None of a loss that it does not know."""
    while type(loss) in (Masked, OneVsRest):
        loss = loss.loss
    if type(loss) not in _KINDS:
        return None
    kind, names = _KINDS[type(loss)]
    first, second = (float(getattr(loss, name)) if name else 0.0 for name in names)
    return kind, first, second


def scan_rows(
    state: FeatureState,
    data: FeatureData,
    model: InfiniteLatentSVM,
    observed: PseudoObservation,
    generator: torch.Generator,
) -> FeatureState:
    """One visit of every row, given pseudo-observations of the entries; only features that some row has are left."""
    room, num_scores = _room(float(state.hyper["concentration"]) / data.num_data), state.weights.shape[1]
    place = np.array([0, len(state.loadings), 0, 0])
    rows = _arrays(state, data, model, observed, len(state.loadings) + 2 * room)
    stream = own_stream(generator)
    while place[0] < data.num_data:
        if place[1] + room > len(rows.counts):
            rows = _widened(rows, 2 * len(rows.counts))
        rest, width = data.num_data - int(place[0]), int(place[1]) + 4
        needed = 2 * room * num_scores + (width + room) * data.X.shape[1]  # normals that one row may take
        level = uniforms((min(max(_POOL, 2 * width), rest * (width + _SPARE)),), stream).numpy()
        noise = torch.randn(_FEW + 2 * needed, generator=stream, dtype=torch.float64).numpy()
        place[2:] = 0
        compiled.scan(rows, level, noise, place)
    K = int(place[1])
    features = torch.from_numpy(rows.bits[:K].T.copy())
    loadings, weights = (torch.from_numpy(values[:K]).to(state.loadings) for values in (rows.loadings, rows.weights))
    weights = torch.cat([weights, state.weights[len(state.loadings) :]])
    return replace(state, features=features, loadings=loadings, weights=weights)


def _arrays(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, observed: PseudoObservation, capacity: int
) -> compiled.Rows:
    """What compiled code visits, all in double precision, with room for `capacity` features."""
    N, K = state.features.shape
    precision, shift = observed
    if data.observed is not None:
        precision, shift = precision * data.observed, shift * data.observed
    others = torch.arange(N, dtype=torch.float64)
    rate = state.hyper["concentration"] / N
    number = torch.arange(_room(float(rate)), dtype=torch.float64)
    log_number = number * rate.log() - rate - torch.lgamma(number + 1)
    return compiled.Rows(
        bits=_padded(state.features.T, capacity, np.int8),
        counts=_padded(count_rows(state), capacity, np.int64),
        loadings=_padded(state.loadings, capacity, np.float64),
        weights=_padded(state.weights[:K], capacity, np.float64),
        precision=_doubles(precision),
        shift=_doubles(shift),
        scores=_doubles(data.inputs @ state.weights[K:]),
        targets=_doubles(data.targets),
        log_odds=_doubles(others.log() - (N - others).log()),
        log_number=_doubles(log_number),
        cumulative=_doubles(log_number.exp().cumsum(0)),
        loading_precision=_doubles(model.likelihood.loading_precision(state.entries, data.X.shape[1])),
        weight_scale=float(model.weight_scale),
        loss=compiled_loss(model.loss) or (-1, 0.0, 0.0),
    )


def _room(rate: float) -> int:
    """Numbers 0..room - 1 beyond which a Poisson law of this rate has no mass within rounding."""
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
_SPARE = 8  # more features than now, of each row
_FEW = 1 << 11  # normal numbers beyond those of two rows
