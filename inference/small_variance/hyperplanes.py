"""One-versus-rest classifiers of all components over all points, at fixed assignments.

    SVM_k(eta) = |eta|^2 / (2 nu^2) - sum_n r_n log phi(y_nk | eta^T a_n),     y_nk = +1 if z_n = k, else -1

r_n is the weight of a point, 1 without. R0 is the least cost of one that rejects every point, what a component without
points costs (math/discriminative-clustering, section 8).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.base import Model
from ...models.losses import PseudoObservation
from ...models.scores import scores as scores_of
from ..collectives import all_sum
from ..ridge import soft_means


def hyperplane_costs(
    features: Tensor, assignments: Tensor, weights: Tensor, model: Model, row_weights: Tensor | None = None
) -> Tensor:
    """SVM_k [K] of weights [K, P, 1] over features [N, P], in double precision; any label [N] below 0 is of none.

    A point counts `row_weights` [N] times; None: once.
    """
    if not weights.numel():
        return torch.zeros(len(weights), dtype=torch.float64, device=features.device)
    scores = scores_of(features, weights).squeeze(-1)
    log_factors = model.loss.log_factor(scores, _sides(assignments, scores))
    if row_weights is not None:
        log_factors = log_factors * row_weights.to(log_factors).unsqueeze(1)
    losses = -log_factors.sum(0, dtype=torch.float64)
    return all_sum(losses) + weights.double().square().sum((1, 2)) / (2 * model.weight_scale**2)


def fit_hyperplanes(
    features: Tensor,
    assignments: Tensor,
    weights: Tensor,
    model: Model,
    *,
    num_steps: int,
    row_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights [K, P, 1] that cost no component more than those given, and their costs [K]; assignments [N].

    A step minimizes the quadratic that majorizes the loss at the present scores; it is halved as long as it costs more.
    """
    cost = hyperplane_costs(features, assignments, weights, model, row_weights)
    before = cost
    for step in range(num_steps if weights.numel() else 0):
        scores = scores_of(features, weights).squeeze(-1)
        precision, shift = (part.unsqueeze(-1) for part in _majorizer(model, scores, assignments, step))
        each = torch.ones_like(scores) if row_weights is None else row_weights.to(scores).unsqueeze(1).expand_as(scores)
        target = soft_means(features, precision.expand(*scores.shape, 1), shift, each, weight_scale=model.weight_scale)
        share = weights.new_ones(len(weights), 1, 1)
        for _ in range(_HALVINGS):
            moved = torch.lerp(weights, target, share)
            moved_cost = hyperplane_costs(features, assignments, moved, model, row_weights)
            worse = moved_cost > cost
            if not worse.any():
                break
            share = torch.where(worse.view(-1, 1, 1), share / 2, share)
        weights = torch.where(worse.view(-1, 1, 1), weights, moved)
        cost = torch.where(worse, cost, moved_cost)
        if (step + 1) % len(_WIDTHS) == 0:  # all widths had their turn
            if (before - cost).sum() <= _NEGLIGIBLE * cost.sum():
                break
            before = cost
    return weights, cost


def _majorizer(model: Model, scores: Tensor, assignments: Tensor, step: int) -> PseudoObservation:
    """The quadratic around scores [N, K], blurred at first so that no point holds its hyperplane on a hinge's kink."""
    sides = _sides(assignments, scores)
    if not model.loss.has_expectation:
        return model.loss.majorize(scores, sides)
    return model.loss.expect(scores, torch.full_like(scores, _WIDTHS[step % len(_WIDTHS)] ** 2), sides)


def _sides(assignments: Tensor, scores: Tensor) -> Tensor:
    labels = torch.arange(scores.shape[1], device=scores.device)
    return torch.where(assignments.unsqueeze(1) == labels, 1.0, -1.0).to(scores)


_HALVINGS = 10
_WIDTHS = (0.3, 0.1, 0.03, 0.0)
_NEGLIGIBLE = 1e-6
