"""One-versus-rest classifiers of all components over all points, at fixed assignments.

    SVM_k(eta) = |eta|^2 / (2 nu^2) - sum_n r_n log phi(y_nk | eta^T a_n),     y_nk = +1 if z_n = k, else -1

r_n is the weight of a point, 1 without. R0 is the least cost of one that rejects every point, what a component without
points costs (math/discriminative-clustering, section 8).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ...models.base import Model
from ...models.losses import PseudoObservation
from ...models.scores import scores as scores_of
from ..classifiers.ridge import soft_means
from ..distributed.collectives import all_sum


def hyperplane_costs(
    features: Tensor, assignments: Tensor, weights: Tensor, model: Model, row_weights: Tensor | None = None
) -> Tensor:
    """SVM_k [K] of weights [K, P, 1] over features [N, P], in double precision; any label [N] below 0 is of none.

    A point counts `row_weights` [N] times; None: once.
    """
    if not weights.numel():
        return torch.zeros(len(weights), dtype=torch.float64, device=features.device)
    scores = scores_of(features, weights).squeeze(-1)
    return _costs(weights, scores, _sides(assignments, scores), model, row_weights)


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

    A step minimizes the quadratic that majorizes the loss at the present scores, or goes part of the way there.
    """
    cost = before = hyperplane_costs(features, assignments, weights, model, row_weights)
    scores = scores_of(features, weights).squeeze(-1)
    sides = _sides(assignments, scores)
    costs = partial(_costs, sides=sides, model=model, row_weights=row_weights)
    for step in range(num_steps if weights.numel() else 0):
        precision, shift = (part.unsqueeze(-1) for part in _majorizer(model, scores, sides, step))
        each = torch.ones_like(scores) if row_weights is None else row_weights.to(scores).unsqueeze(1).expand_as(scores)
        target = soft_means(features, precision.expand(*scores.shape, 1), shift, each, weight_scale=model.weight_scale)
        reach = scores_of(features, target).squeeze(-1)
        weights, scores, cost = _descended((weights, scores), (target, reach), cost, costs)
        num_rounds, rest = divmod(step + 1, len(_WIDTHS))
        if not rest:  # all widths had their turn; the host looks ever less often
            is_power = not num_rounds & (num_rounds - 1)
            if is_power and step + 1 < num_steps and (before - cost).sum() <= _NEGLIGIBLE * cost.sum():
                break
            before = cost
    return weights, cost


def _descended(
    start: tuple[Tensor, Tensor], end: tuple[Tensor, Tensor], cost: Tensor, costs: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest share of the way between two ends that costs no component more than `cost` [K], and what it costs.

    Ends are weights [K, P, 1] and their scores [N, K]. Shares are 1, 1/4, 1/16 and 1/64.
    """
    (weights, scores), found = start, torch.zeros_like(cost, dtype=torch.bool)
    for power in range(_NUM_SHARES):
        moved, moved_scores = (torch.lerp(one, other, 0.25**power) for one, other in zip(start, end, strict=True))
        moved_cost = costs(moved, moved_scores)
        lower = ~found & (moved_cost <= cost)  # not so where a target is not finite
        weights, scores = torch.where(lower.view(-1, 1, 1), moved, weights), torch.where(lower, moved_scores, scores)
        cost, found = torch.where(lower, moved_cost, cost), found | lower
        if _all_found(found):
            break
    return weights, scores, cost


def _costs(weights: Tensor, scores: Tensor, sides: Tensor, model: Model, row_weights: Tensor | None) -> Tensor:
    """SVM_k [K] of weights [K, P, 1] and their scores [N, K], whose targets are `sides` [N, K]."""
    log_factors = model.loss.log_factor(scores, sides)
    if row_weights is not None:
        log_factors = log_factors * row_weights.to(log_factors).unsqueeze(1)
    losses = -log_factors.sum(0, dtype=torch.float64)
    return all_sum(losses) + weights.double().square().sum((1, 2)) / (2 * model.weight_scale**2)


def _all_found(found: Tensor) -> bool:
    """Whether all are true, as far as the host knows without waiting for a device."""
    return found.is_cpu and bool(found.all())


def _majorizer(model: Model, scores: Tensor, sides: Tensor, step: int) -> PseudoObservation:
    """The quadratic around scores [N, K], blurred at first so that no point holds its hyperplane on a hinge's kink."""
    if not model.loss.has_expectation:
        return model.loss.majorize(scores, sides)
    return model.loss.expect(scores, torch.full_like(scores, _WIDTHS[step % len(_WIDTHS)] ** 2), sides)


def _sides(assignments: Tensor, scores: Tensor) -> Tensor:
    """The targets [N, K] of all components, in the dtype of scores [..., K]."""
    labels = torch.arange(scores.shape[1], device=scores.device)
    return torch.where(assignments.unsqueeze(1) == labels, 1.0, -1.0).to(scores)


_NUM_SHARES = 4
_WIDTHS = (0.3, 0.1, 0.03, 0.0)
_NEGLIGIBLE = 1e-6
