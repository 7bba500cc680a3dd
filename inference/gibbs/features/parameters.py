"""Draws of the loadings, the weights and the likelihood's precisions of a latent feature model given its bits."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.distributions import Gamma

from ....models.ilsvm import InfiniteLatentSVM
from ....models.latent_features import FeatureData
from ...bits.loadings import Loadings, draw_precisions, precision_posterior, regress
from ...distributed.collectives import all_sums, own_stream
from .state import FeatureState, Given, scored


def observe_entries(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator
) -> Given:
    """Pseudo-observations of the entries, at a draw of their augmentation variables."""
    mean = state.features.to(state.loadings) @ state.loadings
    return Given(data, model, model.likelihood.augment(data.X, mean, state.entries, own_stream(generator)))


def draw_columns(state: FeatureState, given: Given, generator: torch.Generator) -> FeatureState:
    """Draw loadings, then weights, given the bits."""
    state = replace(state, loadings=loadings_posterior(state, given).draw(generator))
    return replace(state, weights=draw_weights(state, given.data, given.model, generator))


def loadings_posterior(state: FeatureState, given: Given) -> Loadings:
    """Gaussians of the loadings [K, D] given the bits and the observed entries."""
    data, model, observed = given
    precision = model.likelihood.loading_precision(state.entries, data.X.shape[1])
    return regress(state.features.to(state.loadings), data, observed, precision)


def draw_weights(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator
) -> Tensor:
    """Draw weights [K + P, C] given the bits."""
    return scored(state, data, model).draw(state.weights.unsqueeze(0), generator).squeeze(0)


def precision_laws(state: FeatureState, data: FeatureData, model: InfiniteLatentSVM) -> dict[str, Gamma]:
    """The gamma law of each precision of the likelihood given all else, [] float64."""
    W, mean = state.loadings, state.features.to(state.loadings) @ state.loadings
    squares = torch.cat([W.square().sum(0), W.new_tensor([float(len(W))])])
    X, square, counted = data.X, mean.square(), data.counted
    own = model.likelihood.evidence(X, mean, square, torch.zeros_like(squares), counted)
    shared = model.likelihood.evidence(X[:0], mean[:0], square[:0], squares, counted[:0])
    sums = zip(shared.items(), all_sums(*(torch.stack(own[name]) for name in shared)), strict=True)
    seen = {name: of_rows + torch.stack(part) for (name, part), of_rows in sums}
    return precision_posterior(model.likelihood, {name: (part[0], part[1]) for name, part in seen.items()}, W)


def draw_entries(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator
) -> FeatureState:
    """Draw the likelihood's hyperparameters given all else."""
    return replace(state, entries=state.entries | draw_precisions(precision_laws(state, data, model), generator))
