"""Starts of chains of latent features: features are opened one by one, each from what a row leaves unexplained.

If bits start at random, or all features open at once, many features share what a few could explain, and a chain that
moves one bit at a time hardly ever leaves such a state.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ....models.distributions.sampling import uniforms
from ....models.ilsvm import InfiniteLatentSVM
from ....models.latent_features import FeatureData
from ...distributed.collectives import all_any, all_largest, own_stream
from ...distributed.picked import taken, top
from .columns import scan_blocked
from .parameters import draw_columns, draw_entries, observe_entries
from .state import FeatureState, Given, count_rows, keep_columns, num_rows


def start_bits(model: InfiniteLatentSVM, data: FeatureData, generator: torch.Generator, *, start: str) -> FeatureState:
    """A state with K = truncation features whose bits grow ("one") or are random ("random"); some may be empty."""
    K, N = model.truncation, len(data.X)
    state = FeatureState(
        features=data.X.new_zeros((N, K), dtype=torch.int8),
        loadings=data.X.new_zeros(K, data.X.shape[1]),
        weights=data.X.new_zeros(K + data.inputs.shape[1], data.targets.shape[1]),
        probabilities=None,
        hyper=model.prior.start(data.X),
        entries=model.likelihood.start(data.X),
    )
    if start == "random":
        state = replace(state, features=(uniforms((N, K), own_stream(generator)) < 0.5).to(torch.int8))
        return draw_columns(state, observe_entries(state, data, model, generator), generator)
    return grow(state, data, model, generator)


def by_size(state: FeatureState) -> FeatureState:
    """Sort the features by the number of rows that have them, largest first."""
    return keep_columns(state, count_rows(state).argsort(descending=True, stable=True))


def in_use(state: FeatureState) -> FeatureState:
    """Keep the features that some row has."""
    return keep_columns(state, torch.nonzero(count_rows(state)).squeeze(1))


def grow(state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator) -> FeatureState:
    """Open the features one after another; sweeps follow each feature that some rows take."""
    for k in range(len(state.loadings)):
        given = observe_entries(state, data, model, generator)
        state = _open(k, state, given, generator)
        for _ in range(_NUM_SETTLING):
            share = (count_rows(state) + 1).double() / (num_rows(data) + 2)
            share[k + 1 :] = torch.finfo(share.dtype).tiny  # not open yet
            state = scan_blocked(replace(state, probabilities=share), given, generator)
            if not all_any(state.features[:, k]):
                break
            state = draw_entries(draw_columns(state, given, generator), data, model, generator)
            given = observe_entries(state, data, model, generator)
    return replace(state, probabilities=None)


def _open(k: int, state: FeatureState, given: Given, generator: torch.Generator) -> FeatureState:
    """Set the loadings of feature k to suit one random row, likelier one that gains much; its weights become 0."""
    data, model, observed = given
    prior = model.likelihood.loading_precision(state.entries, data.X.shape[1]).to(state.loadings)
    precision = observed.precision.expand_as(data.X) * data.counted
    mean = state.features.to(state.loadings) @ state.loadings
    slope = observed.shift * data.counted - precision * mean
    gain = (slope.square() / (prior + precision) - torch.log1p(precision / prior)).sum(1)
    level = -torch.log1p(-uniforms(gain.shape, own_stream(generator))).to(gain)
    row = top((gain + all_largest(-gain.amin()) + _LEAST) / level, 1)  # a categorical draw by exponential clocks
    loadings, weights = state.loadings.clone(), state.weights.clone()
    loadings[k], weights[k] = taken(slope / (prior + precision), row)[0], 0.0
    return replace(state, loadings=loadings, weights=weights)


_NUM_SETTLING = 5  # sweeps after each new feature
_LEAST = 1e-3  # nats added to every gain
