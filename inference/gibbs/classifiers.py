"""The draw of the classifiers given the assignments.

A loss that is a Gaussian scale mixture (`augment`) gives pseudo-observations at a draw of omega, and eta | omega is a
weighted ridge; any other loss moves eta by elliptical slice steps. Where components repel see `hyperplanes`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...models.base import Model
from ...models.data import Data
from ...models.losses.base import Loss, PseudoObservation
from ...models.scores import own_scores
from ...models.sparse import group_sums
from ..classifiers.ridge import Ridge, weighted_ridge
from ..distributed.collectives import all_sum, own_stream
from .hyperplanes import draw_hyperplanes
from .moves.elliptical_slice import elliptical_slice
from .state import PartitionState


def draw_weights(state: PartitionState, data: Data, model: Model, generator: torch.Generator) -> Tensor:
    """Classifiers [K, P, C] given the assignments: for each block of scores a fresh omega, then eta | omega."""
    if not state.weights.numel():
        return state.weights
    if model.repels:
        return draw_hyperplanes(data.features, state.assignments, state.weights, model, generator)
    if not model.loss.is_augmented:
        return slide_weights(state, data, model, generator)
    weights = state.weights.clone()
    for columns in model.loss.blocks(data.targets.shape[1]):
        observed = observe(replace(state, weights=weights), data, model, columns, generator)
        weights[..., columns] = weights_posterior(state, data, model, observed).draw(generator)
    return weights


def observe(
    state: PartitionState, data: Data, model: Model, columns: slice, generator: torch.Generator
) -> PseudoObservation:
    """Gaussian pseudo-observations [N, C'] of the scores in these columns, at a draw of omega given all scores."""
    scores = own_scores(data.features, state.weights, state.assignments)
    return observe_scores(scores, data.targets, model.loss, columns, generator)


def observe_scores(
    scores: Tensor, targets: Tensor, loss: Loss, columns: slice, generator: torch.Generator
) -> PseudoObservation:
    """Pseudo-observations [N, C'] of scores [N, C] in these columns, at a draw of omega given all scores."""
    reference = loss.reference(scores, targets, columns)
    observed = loss.augment(scores[:, columns] - reference, targets[:, columns], own_stream(generator))
    return PseudoObservation(observed.precision, observed.shift + observed.precision * reference)


def weights_posterior(state: PartitionState, data: Data, model: Model, observed: PseudoObservation) -> Ridge:
    """N(A_k^-1 B_k, A_k^-1) of the observed scores' classifiers; the prior for an empty component."""
    return weighted_ridge(
        data.features,
        *observed,
        state.assignments,
        num_components=len(state.weights),
        weight_scale=model.weight_scale,
    )


def slide_weights(state: PartitionState, data: Data, model: Model, generator: torch.Generator) -> Tensor:
    """Classifiers [K, P, C] after elliptical slice steps, each component's [P, C] in one piece."""
    place = torch.full((len(state.weights),), -1, device=state.assignments.device)

    def log_likelihood(weights: Tensor, which: Tensor) -> Tensor:
        own = place.index_put((which,), torch.arange(len(which), device=which.device))[state.assignments]
        rows = torch.nonzero(own >= 0).squeeze(1)
        own, some = own[rows], data.rows(rows)
        log_factor = model.log_margin(own_scores(some.features, weights, own), some.targets)
        return all_sum(group_sums(log_factor.double().unsqueeze(1), own, len(which))).squeeze(1)

    return elliptical_slice(state.weights, model.weight_scale, log_likelihood, generator, num_steps=_NUM_STEPS)


_NUM_STEPS = 3  # an ellipse step moves less than a draw given omega
