"""The classifiers of all components at fixed assignments: minimize |eta_k|^2 / (2 nu^2) - sum_{z_n = k} r_n log phi.

One step minimizes the quadratic that majorizes the loss at the present scores (math/dp-mixtures, section 7). Majorizers
keep the slack of a hinge away from zero, so the step itself may rise by a little: it is halved until it does not.
Classes whose scores meet in one factor stall under such steps; they have the joint dual of `duals`. r_n are the points'
weights, 1 without.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...models.losses import Loss
from ..classifiers.duals import joint_hinge, solve
from ..classifiers.ridge import ridge_means, segments
from .assignment import component_sums, own_scores
from .problem import Problem


def fit_classifiers(
    problem: Problem, assignments: Tensor, weights: Tensor, duals: Tensor, num_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Classifiers [K, P, C] that cost no component more than `weights`; dual variables; summed losses [K]."""
    scores = own_scores(problem.data.features, weights, assignments)
    losses = summed_losses(problem, assignments, scores, len(weights))
    hinge, exact = joint_hinge(problem.model.loss), num_steps > 1 and _has_quick_dual(problem)
    for step in range(num_steps if weights.numel() else 0):
        before = losses
        if hinge is not None or (exact and not step):
            loss, limits = (problem.model.loss, _SOLVED) if hinge is None else (hinge, _STEP)
            candidate, duals = _dual_step(problem, loss, assignments, duals, len(weights), limits)
            weights, scores, losses = descend(problem, assignments, weights, candidate, scores, losses)
        else:
            for columns in problem.model.loss.blocks(weights.shape[2]):
                width = _WIDTHS[step % len(_WIDTHS)]
                candidate = majorizer_step(problem, assignments, weights, scores, columns, width)
                weights, scores, losses = descend(problem, assignments, weights, candidate, scores, losses)
        if step + 1 >= len(_WIDTHS) and (before - losses).sum() <= _NEGLIGIBLE * losses.sum():
            break
    return weights, duals, losses


def majorizer_step(
    problem: Problem, assignments: Tensor, weights: Tensor, scores: Tensor, columns: slice, width: float = 0.0
) -> Tensor:
    """Classifiers [K, P, C] with `columns` at the minimum of the quadratic majorizer around the scores.

    `width` blurs the scores, in units of the targets, if the loss has an expectation: a point on the kink of a
    hinge has a majorizer so steep that it would hold its component there, and the founder of one often does.
    """
    loss, data = problem.model.loss, problem.data
    targets = data.targets
    reference = loss.reference(scores, targets, columns)
    shifted, target = scores[:, columns] - reference, targets[:, columns]
    if width and loss.has_expectation:
        observed = loss.expect(shifted, (width * problem.target_size).square().expand_as(shifted), target)
    else:
        observed = loss.majorize(shifted, target)
    candidate = weights.clone()
    candidate[:, :, columns] = ridge_means(
        data.features,
        data.counted(observed.precision),
        data.counted(observed.shift + observed.precision * reference),
        assignments,
        num_components=len(weights),
        weight_scale=problem.model.weight_scale,
    )
    return candidate


def descend(
    problem: Problem, assignments: Tensor, weights: Tensor, candidate: Tensor, scores: Tensor, losses: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Move each component's classifiers [K, P, C] towards the candidate, by half as far as long as it would cost more.

    They come back with their scores [N, C] and summed losses [K].
    """
    step = weights.new_ones(len(weights))
    move = own_scores(problem.data.features, candidate, assignments) - scores
    cost = losses + problem.ridge(weights)
    for _ in range(_HALVINGS):
        moved = torch.lerp(weights, candidate, step[:, None, None])
        moved_scores = scores + step[assignments].unsqueeze(1) * move
        moved_losses = summed_losses(problem, assignments, moved_scores, len(weights))
        worse = moved_losses + problem.ridge(moved) > cost
        if not worse.any():
            return moved, moved_scores, moved_losses
        step = torch.where(worse, step / 2, step)
    stay = worse[assignments].unsqueeze(1)
    return (
        torch.where(worse[:, None, None], weights, moved),
        torch.where(stay, scores, moved_scores),
        torch.where(worse, losses, moved_losses),
    )


def summed_losses(problem: Problem, assignments: Tensor, scores: Tensor, num_components: int) -> Tensor:
    """-log phi summed over the points of each component, [K], in double precision."""
    if not scores.shape[1]:
        return torch.zeros(num_components, dtype=torch.float64, device=scores.device)
    loss = problem.data.counted(-problem.log_margin(scores, problem.data.targets))
    return component_sums(loss.unsqueeze(1), assignments, num_components)[0].squeeze(1)


def _has_quick_dual(problem: Problem) -> bool:
    """Whether the dual of the loss is compiled, and of few points: of many, majorizers come as near in less time."""
    compiled = problem.X.device.type == "cpu" and problem.model.loss.box(problem.data.targets) is not None
    return compiled and problem.num_data <= _MOST_ROWS


def _dual_step(
    problem: Problem, loss: Loss, assignments: Tensor, duals: Tensor, num_components: int, limits: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Classifiers [K, P, C] after some steps of the dual, and the dual variables [N, C], 0 without a label."""
    data, (order, bounds) = problem.data, segments(assignments, num_components)
    labelled = ~data.targets.isnan().any(1)
    duals, columns = duals.clone(), []
    for first, last in pairwise(bounds):
        own = order[first:last]
        own = own[labelled[own]]
        points, scale = data.rows(own), problem.model.weight_scale
        weights, duals[own], *_ = solve(
            points.features,
            points.targets,
            loss,
            scale,
            row_weights=points.weights,
            start=duals[own],
            **limits,
        )
        columns.append(weights)
    return torch.stack(columns), duals


_HALVINGS = 10
_STEP = {"tolerance": 1e-3, "max_passes": 25}  # of the joint dual, which later steps take further
_SOLVED = {"tolerance": 1e-10, "max_passes": 500}
_MOST_ROWS = 2000
_WIDTHS = (0.3, 0.1, 0.03, 0.0)
_NEGLIGIBLE = 1e-5
