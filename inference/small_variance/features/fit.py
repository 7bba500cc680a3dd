"""Loadings and classifiers at fixed features: what is best, or better, for F.

Loadings are a ridge regression, exact where the divergence is quadratic and else the minimum of the quadratic above it
at the present means. Classifiers are an SVM: its dual where the loss is made of lines and parabolas, else steps to the
minimum of the quadratic above the loss, halved until they do not cost more (math/latent-features, section 5, steps 3
and 4).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...bits.loadings import regress
from ...classifiers.duals import joint_hinge, solve
from ...classifiers.ridge import ridge_means
from .problem import FeatureDescent, FeatureProblem


def refit(state: FeatureDescent, problem: FeatureProblem, *, thorough: bool = False) -> FeatureDescent:
    """Better loadings, then better classifiers, and F; `thorough`: until they are as good as they get."""
    state = fit_loadings(state, problem, _POLISH if thorough else 1)
    state = fit_classifiers(state, problem, thorough=thorough)
    return problem.evaluated(state)


def fit_loadings(state: FeatureDescent, problem: FeatureProblem, num_steps: int = 1) -> FeatureDescent:
    """Loadings [K, D] after some regressions on the features; one is enough where the divergence is quadratic."""
    data, likelihood = problem.data, problem.model.likelihood
    if not state.num_features:
        return state
    for _ in range(num_steps):
        observed = likelihood.majorize(data.X, state.features @ state.loadings)
        found = regress(state.features, data, observed, problem.prior_precision).mean
        moved, state = (found - state.loadings).abs().max(), replace(state, loadings=found)
        if len(observed.precision) == 1 or float(moved) <= _STILL * float(found.abs().max()):
            break
    return state


def fit_classifiers(state: FeatureDescent, problem: FeatureProblem, *, thorough: bool = False) -> FeatureDescent:
    """Classifiers [K + P, C] that cost no more than those of the state, and their tilts."""
    if not state.weights.numel():
        return state
    seen = torch.cat([state.features, problem.data.inputs], 1)
    if joint_hinge(problem.model.loss) is None and problem.model.loss.box(problem.data.targets) is None:
        return _majorized(state, problem, seen, _STEPS if thorough else len(_WIDTHS))
    model, data = problem.model, problem.data
    dual = solve(
        seen,
        data.targets,
        model.loss,
        model.weight_scale,
        row_weights=data.weights,
        start=state.tilts,
        tolerance=_FINE if thorough else _COARSE,
        max_passes=_MOST_PASSES if thorough else _FEW_PASSES,
    )
    weights, _ = _descend(problem, seen, state.weights, dual.weights, seen @ state.weights)
    return replace(state, weights=weights, tilts=dual.tilt)


def slopes(scores: Tensor, problem: FeatureProblem) -> Tensor:
    """d log phi / d f [N, C] at scores [N, C]: which way, and how hard, the margin pulls each score of a row."""
    if not scores.shape[1]:
        return scores
    with torch.enable_grad():
        leaf = scores.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(-problem.losses(leaf).sum(), leaf)
    return slope


def _majorized(state: FeatureDescent, problem: FeatureProblem, seen: Tensor, num_steps: int) -> FeatureDescent:
    """Steps to the minima of quadratics above the loss, for a block of scores after the other.

    The scores are blurred at first, in turns, if the loss has an expectation: a row on a kink has a quadratic so steep
    that it would hold the classifier there.
    """
    loss, targets, counted = problem.model.loss, problem.data.targets, problem.data.row_weights
    weights, scores = state.weights, seen @ state.weights
    together = torch.zeros(len(seen), dtype=torch.int64, device=seen.device)
    cost = problem.margin_cost(scores, weights)
    for step in range(num_steps):
        for columns in loss.blocks(weights.shape[1]):
            reference = loss.reference(scores, targets, columns)
            shifted, target = scores[:, columns] - reference, targets[:, columns]
            width = _WIDTHS[step % len(_WIDTHS)]
            if width and loss.has_expectation:
                observed = loss.expect(shifted, torch.full_like(shifted, width**2), target)
            else:
                observed = loss.majorize(shifted, target)
            precision, shift = counted * observed.precision, counted * (observed.shift + observed.precision * reference)
            options = {"num_components": 1, "weight_scale": problem.model.weight_scale}
            candidate = weights.clone()
            candidate[:, columns] = ridge_means(seen, precision, shift, together, **options)[0]
            weights, scores = _descend(problem, seen, weights, candidate, scores)
        if step % len(_WIDTHS) == len(_WIDTHS) - 1:  # all widths had their turn
            before, cost = cost, problem.margin_cost(scores, weights)
            if before - cost <= _NEGLIGIBLE * cost:
                break
    return replace(state, weights=weights)


def _descend(
    problem: FeatureProblem, seen: Tensor, weights: Tensor, candidate: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor]:
    """The classifiers moved towards the candidate, half as far as long as that would cost more; and their scores."""
    cost, share, move = problem.margin_cost(scores, weights), 1.0, seen @ candidate - scores
    for _ in range(_HALVINGS):
        moved, moved_scores = weights + share * (candidate - weights), scores + share * move
        if problem.margin_cost(moved_scores, moved) <= cost:
            return moved, moved_scores
        share /= 2
    return weights, scores


_POLISH = 20
_STILL = 1e-5
_WIDTHS = (0.3, 0.1, 0.03, 0.0)
_STEPS = 40
_NEGLIGIBLE = 1e-6
_HALVINGS = 10
_COARSE, _FINE = 1e-3, 1e-6
_FEW_PASSES, _MOST_PASSES = 10, 1000
