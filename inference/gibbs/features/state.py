"""The state of the Gibbs samplers of latent features, its log joint density, and its draw for the posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ....models.ilsvm import InfiniteLatentSVM
from ....models.latent_features import FeatureData
from ....models.losses import PseudoObservation
from ....models.priors import Hyper
from ...bits.loadings import log_bits
from ...classifiers.scored import Scored
from ...distributed.collectives import all_sum, all_sums
from ...posterior.draws import FeatureDraw, drawn
from ...running.chains import OfRows
from ...running.engine import Draw


@dataclass(frozen=True)
class FeatureState:
    """One draw of a latent feature model with N rows, D columns, K features, P inputs and C scores.

    It has no augmentation variables, nor feature probabilities of the infinite model: a sweep draws and drops them.
    """

    features: OfRows  # [N, K] int8 bits; infinite scans: of features that some row has
    loadings: Tensor  # [K, D]
    weights: Tensor  # [K + P, C], first those of the features, then those of the inputs
    probabilities: Tensor | None  # [K] float64 of the truncated model; None: integrated out
    hyper: Hyper  # hyperparameters of the prior, each [] float64
    entries: Hyper  # hyperparameters of the likelihood, each [] float64


class Given(NamedTuple):
    """What updates of the bits condition on: data, model, and pseudo-observations of the entries."""

    data: FeatureData
    model: InfiniteLatentSVM
    observed: PseudoObservation  # of the linear predictors: precision [1, D] or [N, D], shift [N, D]


def keep_columns(state: FeatureState, index: Tensor) -> FeatureState:
    """Keep the features with numbers `index` [K'], in this order."""
    inputs = torch.arange(len(state.loadings), len(state.weights), device=index.device)
    weights = state.weights[torch.cat([index, inputs])]
    return replace(state, features=state.features[:, index], loadings=state.loadings[index], weights=weights)


def join_columns(state: FeatureState, bits: Tensor, loadings: Tensor, weights: Tensor) -> FeatureState:
    """Append J features with bits [N, J], loadings [J, D] and weights [J, C]."""
    K = len(state.loadings)
    return replace(
        state,
        features=torch.cat([state.features, bits], 1),
        loadings=torch.cat([state.loadings, loadings]),
        weights=torch.cat([state.weights[:K], weights, state.weights[K:]]),
    )


def inside(probabilities: Tensor) -> Tensor:
    """Clamp probabilities [K] float64 away from 0 and 1, where logits are infinite."""
    return probabilities.clamp(1e-300, 1 - 2**-53)


def count_rows(state: FeatureState) -> Tensor:
    """The number of rows [K] int64 that have each feature, over all ranks."""
    return all_sum(own_counts(state))


def own_counts(state: FeatureState) -> Tensor:
    """The number of rows [K] of this rank that have each feature."""
    return state.features.sum(0, dtype=torch.int64)


def num_rows(data: FeatureData) -> int:
    """The number of rows of all ranks."""
    return int(data.total_weight)


def scored(state: FeatureState, data: FeatureData, model: InfiniteLatentSVM) -> Scored:
    """The rows that the weights score: bits and inputs [N, K + P]."""
    design = torch.cat([state.features.to(state.weights), data.inputs], 1)
    return Scored(design, data.targets, model.loss, model.weight_scale)


def log_joint(state: FeatureState, data: FeatureData, model: InfiniteLatentSVM) -> Tensor:
    """log density [] of all variables of the state, the entries and the margin factors.

    For the truncated model these are bits, probabilities, loadings, weights and hyperparameters. For the infinite model
    the probabilities are integrated out, and the features are those that some row has, up to the number of their
    orders.
    """
    mean = state.features.to(state.loadings) @ state.loadings
    precision = model.likelihood.loading_precision(state.entries, data.X.shape[1])
    weights, margin = state.weights.unsqueeze(0), scored(state, data, model)
    entries = (data.counted * model.likelihood.log_density(data.X, mean, state.entries)).double().sum()
    counts, told, entries = all_sums(own_counts(state), margin.told(weights), entries)
    parts = [
        _log_features(state, counts.double(), data, model) + model.prior.log_density(state.hyper),
        _log_normal(state.loadings, precision),
        margin.log_density(weights, told),
        entries,
    ]
    laws = model.likelihood.hyperpriors(precision)
    parts += [law.log_prob(state.entries[name]) for name, law in laws.items() if law is not None]
    return torch.stack(parts).sum()


def draw(state: FeatureState, data: FeatureData, model: InfiniteLatentSVM) -> Draw:
    """The draw that the posterior keeps of a state.

    log_odds are the log odds that a new row has each feature: logit pi_k, or for the infinite model those of m / (N +
    1).
    """
    num_features = state.features.shape[1]
    if state.probabilities is None:
        counts = count_rows(state).double()
        log_odds = counts.log() - (num_rows(data) + 1 - counts).log()
    else:
        log_odds = state.probabilities.logit()
    return drawn(
        FeatureDraw(
            features=state.features,
            log_odds=log_odds,
            loadings=state.loadings,
            weights=state.weights[:num_features],
            input_weights=state.weights[num_features:],
            log_joint=log_joint(state, data, model),
        ),
        state.entries,
        state.hyper,
    )


def _log_features(state: FeatureState, counts: Tensor, data: FeatureData, model: InfiniteLatentSVM) -> Tensor:
    """log p(Z, pi | h) [], or log p(Z | h) of the infinite model, from the counts [K] float64 of rows."""
    if state.probabilities is None:
        return model.prior.log_infinite(counts, num_rows(data), state.hyper)
    pi = state.probabilities
    return log_bits(counts, num_rows(data), pi) + model.prior.log_probabilities(pi, state.hyper)


def _log_normal(values: Tensor, precision: Tensor) -> Tensor:
    """log N(values [M, D]; 0, 1 / precision [D]) []."""
    square = (precision * values.double().square()).sum()
    return (len(values) * (precision / (2 * math.pi)).log().expand(values.shape[1]).sum() - square) / 2
