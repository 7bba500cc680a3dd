"""The collapsed scan of latent features as tensor code: for losses, and devices, that have no compiled one.

It leaves the same target invariant as `collapsed.scan_rows`, some sixty times as slowly: row after row, first the
features that other rows have, bit after bit; then how many features the row has alone, by one Metropolis-Hastings step

    number ~ Poisson(j; alpha / N) E_j,    weights ~ N(0, nu^2 I),    accepted by the ratio of phi(y_n | f_n)

with E_j the evidence of the row's entries for j features whose loadings are integrated out; then these loadings.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ....models.distributions.sampling import draw_categorical, normals, uniforms
from ....models.ilsvm import InfiniteLatentSVM
from ....models.latent_features import FeatureData
from ....models.losses import PseudoObservation
from ...distributed.collectives import own_stream
from .collapsed import log_poisson
from .columns import Columns, keep_columns
from .state import FeatureState, count_rows


def visit_rows(
    state: FeatureState,
    data: FeatureData,
    model: InfiniteLatentSVM,
    observed: PseudoObservation,
    generator: torch.Generator,
) -> FeatureState:
    """One visit of every row, given pseudo-observations of the entries; only features that some row has are left."""
    stream = own_stream(generator)
    precision, shift = (part.expand_as(data.X) * data.counted for part in observed)
    for n in range(data.num_data):
        row, entries = slice(n, n + 1), PseudoObservation(precision[n : n + 1], shift[n : n + 1])
        others = count_rows(state) - state.features[n]
        shared = others > 0
        features = state.features.clone()
        features[n] = _shared_bits(others.double(), state, row, data, model, entries, stream)
        state = replace(state, features=features)
        state = _own_features(n, shared, state, data.rows(row), model, entries, data.num_data, stream)
    return state


def _shared_bits(
    others: Tensor,
    state: FeatureState,
    row: slice,
    data: FeatureData,
    model: InfiniteLatentSVM,
    entries: PseudoObservation,
    stream: torch.Generator,
) -> Tensor:
    """Bits [K] of a row, drawn anew where m = `others` [K] > 0 other rows have the feature, which has prior odds
    m / (N - m)."""
    columns = Columns(replace(state, features=state.features[row]), data.rows(row), model, entries)
    log_odds = (others / (data.num_data - others)).log()
    levels = uniforms(others.shape, stream).logit()
    for k in torch.nonzero(others).flatten().tolist():
        columns.place(k, log_odds[k] + columns.log_ratio(k) > levels[k])
    return columns.bits[:, 0].to(torch.int8)


def _own_features(
    n: int,
    shared: Tensor,
    state: FeatureState,
    row: FeatureData,
    model: InfiniteLatentSVM,
    entries: PseudoObservation,
    num_data: int,
    stream: torch.Generator,
) -> FeatureState:
    """A state with the features that row n has alone, those not `shared` [K], drawn anew, as the last ones."""
    own, kept = torch.nonzero(~shared).squeeze(1), torch.nonzero(shared).squeeze(1)
    rest, present = keep_columns(state, kept), state.weights[own]
    bits, (K, D) = rest.features[n].to(state.loadings), (len(kept), state.loadings.shape[1])
    slope = (entries.shift - entries.precision * (bits @ rest.loadings)).double()  # [1, D] of log p at the rest
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
    return replace(
        rest,
        features=torch.cat([rest.features, fresh], 1),
        loadings=torch.cat([rest.loadings, loadings]),
        weights=torch.cat([rest.weights[:K], weights, rest.weights[K:]]),
    )


def _own_loadings(number: int, slope: Tensor, a: Tensor, prior: Tensor, stream: torch.Generator) -> Tensor:
    """Loadings [number, D] of features that a row has alone: of their prior, then moved so that their sum is as drawn
    given the row, of log density slope . u - a . u^2 / 2 [1, D]."""
    if not number:
        return slope[:0]
    noise = normals((number + 1, slope.shape[1]), stream, slope)
    precision = prior / number + a
    total = slope / precision + noise[:1] * precision.rsqrt()
    drawn = noise[1:] * prior.rsqrt()
    return drawn + (total - drawn.sum(0)) / number
