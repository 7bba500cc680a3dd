"""Loadings and classifiers at fixed features: what is best, or better, for F.

Loadings are a ridge regression, exact where the divergence is quadratic and else the minimum of the quadratic above it
at the present means. Classifiers are an SVM over all rows (docs/derivations/latent-features, "Small-variance limit",
steps 3 and 4).
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ...bits.loadings import regress
from ...classifiers.minimum import DualLimits, estimate, has_quick_dual, minimum
from .problem import FeatureDescent, FeatureProblem


def refit(state: FeatureDescent, problem: FeatureProblem, *, thorough: bool = False) -> FeatureDescent:
    """Better loadings, then better classifiers, and F; `thorough`: until they are as good as they get."""
    state = fit_loadings(state, problem, _POLISH if thorough else 1)
    state, margin = fit_classifiers(state, problem, thorough=thorough)
    return problem.evaluated(state, margin)


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


def fit_classifiers(
    state: FeatureDescent, problem: FeatureProblem, *, thorough: bool = False
) -> tuple[FeatureDescent, Tensor]:
    """The state with classifiers [K + P, C] that cost no more and their tilts, and what they cost []."""
    margins = problem.margins(state.features)
    start = estimate(margins, state.weights.unsqueeze(0), state.tilt)
    limits, num_steps = (_FINE, _STEPS) if thorough else (_COARSE, _FEW_STEPS)
    fit = minimum(margins, start, limits if has_quick_dual(margins) else None, num_steps)
    return replace(state, weights=fit.weights[0], tilt=fit.tilt), fit.cost.sum()


_POLISH = 20
_STILL = 1e-5
_STEPS, _FEW_STEPS = 40, 4
_COARSE, _FINE = DualLimits(1e-3, 10), DualLimits(1e-6, 1000)
