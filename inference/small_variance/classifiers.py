"""The classifiers of all components at fixed assignments; each scores the points of its own component."""

from __future__ import annotations

from torch import Tensor

from ...models import host
from ..classifiers.duals import joint_hinge
from ..classifiers.minimum import DualLimits, Estimate, estimate, has_quick_dual, minimum
from .problem import Problem


def fit_classifiers(
    problem: Problem,
    assignments: Tensor,
    weights: Tensor,
    duals: Tensor,
    num_steps: int,
    scores: Tensor | None = None,
) -> Estimate:
    """Classifiers that cost no more than `weights` [K, P, C], from dual variables [N, C], and scores [N, C] if known.

    A joint hinge is always fitted by its dual. Other hinges are fitted by theirs if points are few and the dual is
    compiled: with many points, majorizer steps come as close in less time.
    """
    margins, limits = problem.margins(assignments, len(weights)), None
    if joint_hinge(margins.loss) is not None:
        limits = DualLimits(_GAP, _PASSES * num_steps)
    elif has_quick_dual(margins) and num_steps > 1 and host.on_cpu(problem.X):
        limits = _SOLVED if problem.data.span[1] <= _MOST_ROWS else None
    return minimum(margins, estimate(margins, weights, duals, scores), limits, num_steps)


_GAP, _PASSES = 1e-3, 25  # per step
_SOLVED = DualLimits(1e-10, 500)
_MOST_ROWS = 2000
