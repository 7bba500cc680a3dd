"""The collapsed scan of latent features in tensor code, for losses and devices without compiled code.

It leaves the same target invariant as `collapsed.scan_rows` and takes some sixty times as long. For each row, it draws
the bits of the features that other rows have, one after another. Then one Metropolis-Hastings step draws how many
features the row alone has:

    number ~ Poisson(j; alpha / N) E_j,    weights ~ N(0, nu^2 I),    accepted by the ratio of phi(y_n | f_n)

E_j is the evidence of the row's entries for j features with loadings integrated out. Last come these loadings.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ....models.distributions.sampling import draw_categorical, normals, uniforms
from ....models.losses import PseudoObservation
from ...distributed.collectives import own_stream
from .collapsed import log_poisson
from .columns import visit_columns
from .state import FeatureState, Given, count_rows, join_columns, keep_columns


def visit_rows(state: FeatureState, given: Given, generator: torch.Generator) -> FeatureState:
    """Visit every row once; afterwards every feature is one that some row has."""
    stream = own_stream(generator)
    for n in range(given.data.num_data):
        others = count_rows(state) - state.features[n]
        state = _shared_bits(n, others, state, given, stream)
        state = _own_features(n, others > 0, state, given, stream)
    return state


def _row(n: int, given: Given) -> Given:
    """The data and pseudo-observations of row n alone."""
    (data, model, observed), own = given, slice(n, n + 1)
    precision, shift = (part.expand_as(data.X)[own] * data.counted[own] for part in observed)
    return Given(data.rows(own), model, PseudoObservation(precision, shift))


def _shared_bits(n: int, others: Tensor, state: FeatureState, given: Given, stream: torch.Generator) -> FeatureState:
    """Draw the bits of row n for features that m = `others` [K] > 0 other rows have, at prior odds m / (N - m)."""
    row, kept, features = replace(state, features=state.features[n : n + 1]), others == 0, state.features.clone()
    levels = uniforms(others.shape, stream).logit()
    log_odds = others.double().log() - (given.data.num_data - others).double().log()

    def choose(k: int, own: Tensor) -> Tensor:
        return row.features[:, k] > 0 if kept[k] else own > levels[k]

    features[n] = visit_columns(row, _row(n, given), log_odds, choose).features[0]
    return replace(state, features=features)


def _own_features(n: int, shared: Tensor, state: FeatureState, given: Given, stream: torch.Generator) -> FeatureState:
    """Replace the features that row n alone has, those not `shared` [K], by newly drawn ones, which come last."""
    own, kept = torch.nonzero(~shared).squeeze(1), torch.nonzero(shared).squeeze(1)
    rest, present, num_data = keep_columns(state, kept), state.weights[own], given.data.num_data
    row, model, entries = _row(n, given)
    bits, (K, D) = rest.features[n].to(state.loadings), (len(kept), state.loadings.shape[1])
    slope = (entries.shift - entries.precision * (bits @ rest.loadings)).double()  # [1, D] gradient of log p
    a, prior = entries.precision.double(), model.likelihood.loading_precision(state.entries, D)

    log_number = log_poisson(float(state.hyper["concentration"]) / num_data).to(slope.device)
    ratio = torch.arange(len(log_number), device=slope.device).unsqueeze(1) / prior
    log_evidence = (slope.square() * ratio / (1 + a * ratio) - torch.log1p(a * ratio)).sum(1) / 2
    levels = uniforms((2,), stream)
    number = int(draw_categorical(log_number + log_evidence, levels[0]))
    proposed = model.weight_scale * normals((number, state.weights.shape[1]), stream, state.weights)
    scores = bits.to(present) @ rest.weights[:K] + row.inputs @ rest.weights[K:]
    before, after = (model.log_margin(scores + part.sum(0), row.targets).double() for part in (present, proposed))
    weights = proposed if torch.log1p(-levels[1]) < after - before else present

    loadings = _own_loadings(len(weights), slope, a, prior, stream).to(state.loadings)
    fresh = state.features.new_zeros(len(state.features), len(weights))
    fresh[n] = 1
    return join_columns(rest, fresh, loadings, weights)


def _own_loadings(number: int, slope: Tensor, a: Tensor, prior: Tensor, stream: torch.Generator) -> Tensor:
    """Draw loadings [number, D] of features that only this row has: prior draws, shifted to have a drawn sum."""
    if not number:
        return slope[:0]
    noise = normals((number + 1, slope.shape[1]), stream, slope)
    precision = prior / number + a
    total = slope / precision + noise[:1] * precision.rsqrt()
    drawn = noise[1:] * prior.rsqrt()
    return drawn + (total - drawn.sum(0)) / number
