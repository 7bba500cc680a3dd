"""Starts of variational latent features: they are opened one by one while the bound rises, or drawn at random.

A new feature starts in a direction in which much of the entries is unexplained; it is given to the rows on one side of
the midpoint. Random features are for models with labels only: without labels they would use the whole truncation, with
a bound far below.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ....models.distributions.sampling import normals
from ....models.latent_features import FeatureData, FeatureModel
from ...distributed.collectives import all_sum, own_draws
from .factors import VariationalFeatures, expected_hyper, generative_bound, update_features, update_globals


def grown(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, generator: torch.Generator
) -> VariationalFeatures:
    """Open features one by one as long as the bound rises, with all other factors at their optimum."""
    K, used = state.features.shape[1], 0
    state = _settled(replace(state, features=torch.zeros_like(state.features)), data, model, num_sweeps=0)
    while used < K:
        bits = _bits(state, data, model, generator).unsqueeze(1)
        opened = [_settled(_with_bits(state, used, side), data, model) for side in (bits, ~bits)]
        found = max(opened, key=lambda each: float(each.bound))
        if not found.bound > state.bound:
            break
        state, used = found, used + 1
    return state


def scattered(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, generator: torch.Generator
) -> VariationalFeatures:
    """Take a few sweeps from random features, as many as the truncation allows, for classifiers to choose from."""
    (N, K), device = state.features.shape, state.features.device
    bits = own_draws(N, lambda n, stream: torch.randint(2, (n, K), generator=stream, device=device), generator)
    return _settled(_with_bits(state, 0, bits), data, model, num_sweeps=5)


def _with_bits(state: VariationalFeatures, first: int, bits: Tensor) -> VariationalFeatures:
    """Set features `first`, `first` + 1, ... to 0.9 where bits [N, J] are True, else to 0.1."""
    features = state.features.clone()
    features[:, first : first + bits.shape[1]] = 0.1 + 0.8 * bits.to(features)
    return replace(state, features=features)


def _settled(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, num_sweeps: int = 3
) -> VariationalFeatures:
    """Take some sweeps without labels and compute the bound."""
    for _ in range(num_sweeps):
        state, _ = update_globals(state, data, model)
        state = update_features(state, data, model, None)
    state, sums = update_globals(state, data, model)
    return replace(state, bound=generative_bound(state, data, model, sums)())


def _bits(state: VariationalFeatures, data: FeatureData, model: FeatureModel, generator: torch.Generator) -> Tensor:
    """The rows [N] on one side of the midpoint of a direction, found by power iteration on standardized residuals."""
    h, (mean, square) = expected_hyper(state, model), state.loading_moments.predictor(state.features)
    precision, shift = model.likelihood.expect(data.X, square, h, mean)
    left = data.counted.sign() * (shift - precision * mean) / precision.sqrt()
    direction = normals((left.shape[1],), generator, left)
    for _ in range(_NUM_POWERS):
        direction = all_sum(left.T @ (data.row_weights.squeeze(1) * (left @ direction)))
        direction = direction / direction.norm()
    places, weights = (left @ direction).double(), data.row_weights.squeeze(1).double()
    return places > _middle(places, weights)


def _middle(places: Tensor, weights: Tensor) -> Tensor:
    """The midpoint [] between two clusters of weighted numbers [N], by 2-means from the overall mean."""
    number, total = all_sum(torch.stack([weights.sum(), (weights * places).sum()]))
    middle = total / number
    for _ in range(_NUM_MEANS):
        above = weights * (places > middle)
        size, part = all_sum(torch.stack([above.sum(), (above * places).sum()]))
        middle = (part / size + (total - part) / (number - size)) / 2
    return middle


_NUM_POWERS = 5  # few, so that restarts end in different ones of the leading directions
_NUM_MEANS = 10
