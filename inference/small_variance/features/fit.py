"""Loadings and classifiers that lower F at fixed features.

Loadings are a ridge regression, exact if the divergence is quadratic and otherwise the minimum of the majorizing
quadratic at the present means. Classifiers are an SVM over all rows (docs/derivations/latent-features, "Small-variance
limit", steps 3 and 4).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...bits.loadings import solve_loadings, sum_rows
from ...classifiers.minimum import DualLimits, are_few, estimate, has_quick_dual, minimum
from .problem import FeatureDescent, FeatureProblem


def refit(state: FeatureDescent, problem: FeatureProblem, *, thorough: bool = False) -> FeatureDescent:
    """Improve the loadings, then the classifiers, and compute F; `thorough`: until they hardly improve."""
    state = fit_loadings(state, problem, _POLISH if thorough else 1)
    told = problem.entries_later(state)
    state, margin = fit_classifiers(state, problem, thorough=thorough)
    return replace(state, objective=problem.objective(state, margin, told))


def fit_loadings(state: FeatureDescent, problem: FeatureProblem, num_steps: int = 1) -> FeatureDescent:
    """Set the loadings [K, D] by regressions on the features, and remove features without rows."""
    data, likelihood = problem.data, problem.model.likelihood
    for step in range(num_steps):
        if not state.num_features:
            break
        observed = likelihood.majorize(data.X, state.features @ state.loadings)
        sums = sum_rows(state.features, data, observed)
        if not step and len(some := torch.nonzero(sums.counts).squeeze(1)) < state.num_features:
            state, sums = state.only(some), sums.only(some)
            if not len(some):
                break
        found = solve_loadings(sums, problem.prior_precision).mean
        moved, state = (found - state.loadings).abs().max(), replace(state, loadings=found)
        if len(observed.precision) == 1 or float(moved) <= _STILL * float(found.abs().max()):
            break
    return state


def fit_classifiers(
    state: FeatureDescent, problem: FeatureProblem, *, thorough: bool = False
) -> tuple[FeatureDescent, Tensor]:
    """Improve the classifiers [K + P, C] and their tilts; also return their cost []."""
    margins = problem.margins(state.features)
    start = estimate(margins, state.weights.unsqueeze(0), state.tilt)
    limits, num_steps = (_FINE, _STEPS) if thorough else (_COARSE, _FEW_STEPS)
    quick = has_quick_dual(margins)
    if not thorough and not are_few(margins):  # each pass of a dual would need an exchange of ranks
        quick, num_steps = False, _LEAST_STEPS
    fit = minimum(margins, start, limits if quick else None, num_steps)
    return replace(state, weights=fit.weights[0], tilt=fit.tilt), fit.cost.sum()


_POLISH = 20
_STILL = 1e-5
_STEPS, _FEW_STEPS, _LEAST_STEPS = 40, 4, 1
_COARSE, _FINE = DualLimits(1e-3, 10), DualLimits(1e-6, 1000)
