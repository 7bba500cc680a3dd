"""The averaging rule for a truncated mixture of margin classifiers: the loss of the expected score.

    J = KL(q(v) q(theta) q(z) || prior, likelihood) + sum_k |m_k|^2 / (2 nu^2) + sum_n g(sum_k r_nk m_k . a_n)

with g = -log phi convex and q(eta_k) = N(m_k, nu^2 I): only means are learnt (Zhu, Chen & Xing 2011, 2014;
docs/derivations/regbayes.md). A sweep sets sticks, h and q(theta) to their optimum as under the other rule, then the
means by the dual of an SVM with features r_nk a_n, then the responsibilities of each point exactly, by a dual for each
point. A dual that is not fully solved may give a step that raises J; such a step is rejected, so that -J, the recorded
value, never falls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor

from ....models.data import Data
from ....models.mixture import Mixture
from ....models.scores import scores
from ...classifiers.minimum import DualLimits
from ...classifiers.natural import OwnSide, sides_of
from ...classifiers.ridge import Ridge
from ...classifiers.scored import Scored
from ...distributed.collectives import all_sum
from ...running.engine import Draw
from ..allocations import Climb, start
from ..backend import SVI
from ..factors import family_of, kl, log_density, loss_of, update_components
from ..rules import AVERAGING, LAST_GAP, NATURAL, Learned, Rule, by_dual
from ..steps import Steps, StepsByRule
from . import kernel as partition
from .averaging_rows import best_responsibilities, expected
from .factors import VariationalPartition

_MOST_PASSES = 50  # of the dual in one sweep; the next sweep continues from there


class Means(Ridge):
    """N(m_k, nu^2 I) [T]: the covariance is that of the prior."""

    def kl(self, weight_scale: float) -> Tensor:
        """|m_k|^2 / (2 nu^2) [T]."""
        return self.mean.square().sum((1, 2)) / (2 * weight_scale**2)


@dataclass(frozen=True, kw_only=True)
class AveragedPartition(VariationalPartition):
    """Factors as under the other rule, without pseudo-observations and precisions of q(eta); `bound` is -J."""

    tilt: Tensor  # [N, C] dual variables of the classifiers, where their next dual starts
    row_tilt: Tensor  # [N, C] dual variables of the responsibilities, where their next duals start
    duality_gap: Tensor  # [] float64, relative duality gap of the classifiers

    @classmethod
    def started(cls, model: Mixture, data: Data, fields: dict[str, Any]) -> Self:
        """A state whose dual variables are 0."""
        nothing, gap = torch.zeros_like(data.targets), torch.ones_like(fields["bound"])
        own = fields | {"precision_tril": fields["precision_tril"][..., :0, :0]}
        return super().started(model, data, own | {"tilt": nothing, "row_tilt": nothing, "duality_gap": gap})

    @cached_property
    def classifiers(self) -> Means:
        """q(eta_k)."""
        return Means(self.mean, self.precision_tril)


def init(model: Mixture, data: Data, generator: torch.Generator) -> AveragedPartition:
    """Responsibilities from distant seeds, and classifiers at their prior."""
    return start(AveragedPartition, model, data, generator, observes=False)


def update_factors(state: AveragedPartition, data: Data, model: Mixture, tolerance: float = 1e-4) -> AveragedPartition:
    """Update all factors except the responsibilities."""
    return update_classifiers(update_components(state.with_prior(model), data, model), data, model, tolerance)


def points(tolerance: float) -> Climb[AveragedPartition, Data, Mixture]:
    """Coordinate ascent in which the classifiers' dual is solved to a relative gap of `tolerance`."""
    return Climb(partial(update_factors, tolerance=tolerance), update_responsibilities, partition.unions)


# -- updates with the margin -------------------------------------------------------------------------------------------


def update_classifiers(
    state: AveragedPartition, data: Data, model: Mixture, tolerance: float = 1e-4, max_passes: int = _MOST_PASSES
) -> AveragedPartition:
    """Set the means m [T, P, C] by an SVM with features r_nk a_n [N, T P], to a relative duality gap of `tolerance`."""
    features = (state.responsibilities.unsqueeze(2) * data.features.unsqueeze(1)).flatten(1)
    cost = Scored(features, data.targets, model.loss, model.weight_scale, data.weights)
    mean = state.mean.reshape(1, features.shape[1], -1)
    old = Learned(mean, state.precision_tril, state.tilt, state.duality_gap)
    found = by_dual(cost, old, DualLimits(tolerance, max_passes))
    return replace(state, mean=found.mean.view_as(state.mean), tilt=found.tilt, duality_gap=found.gap)


def update_responsibilities(state: AveragedPartition, data: Data, model: Mixture) -> AveragedPartition:
    """Set r_n to maximize sum_k r_nk (E log pi_k + E log p(x_n | theta_k) - log r_nk) - g(sum_k r_nk m_k . a_n)."""
    logits, own = log_weights(state, data, model), scores(data.features, state.mean)
    r, tilt = best_responsibilities(logits, own, data.targets, model.loss, state.row_tilt)
    value, before = (row_values(each, logits, own, data, model) for each in (r, state.responsibilities))
    better = value > before
    r = torch.where(better.unsqueeze(1), r, state.responsibilities)
    bound = all_sum(data.counted(torch.where(better, value, before)).sum()) - kl(state, model)
    return replace(state, responsibilities=r, row_tilt=tilt, weights=data.weights, bound=bound)


def log_weights(state: AveragedPartition, data: Data, model: Mixture) -> Tensor:
    """E log pi_k + E log p(x_n | theta_k) [N, T]."""
    found = log_density(state, data, model)
    return state.expected_log_mixture.to(found) + found


def row_values(r: Tensor, logits: Tensor, own: Tensor, data: Data, model: Mixture) -> Tensor:
    """The points' terms of -J, [N] float64, at responsibilities r, from logits [N, T] and scores [N, T, C]."""
    margin = model.loss.log_factor(expected(r, own), data.targets).sum(1, dtype=torch.float64)
    return (r * logits + torch.special.entr(r)).sum(1, dtype=torch.float64) + margin


# -- for the backend ---------------------------------------------------------------------------------------------------


def summary(state: AveragedPartition, data: Data, model: Mixture) -> Draw:
    """The draw that the posterior keeps: means of the hyperplanes without covariances, and the duality gap."""
    draw = partition.summary(state, data, model)
    del draw["precision_tril"]
    return {**draw, "duality_gap": state.duality_gap}


def averaged_steps(backend: SVI) -> Steps[AveragedPartition, Data, Mixture]:
    """The functions of a fit to all points, with the backend's tolerance."""
    tolerance = min(max(10 * (backend.tolerance or 0.0), _LEAST_GAP), _MOST_GAP)
    return Steps(
        state=AveragedPartition,
        init=init,
        sweep=points(tolerance).sweep,
        complete=update_responsibilities,
        draw=summary,
        polish=partial(update_classifiers, tolerance=LAST_GAP, max_passes=_LAST_PASSES),
    )


def steps_of(backend: SVI, model: Mixture) -> dict[Rule, Steps[Any, Data, Mixture]]:
    """The functions by rule; the averaging rule is for hyperplanes that see their own components alone."""
    steps: dict[Rule, Steps[Any, Data, Mixture]] = {NATURAL: partition.STEPS}
    if sides_of(model) is not OwnSide or loss_of(model) is None:
        return steps
    return steps | {AVERAGING: averaged_steps(backend)}


BY_RULE = StepsByRule(steps_of, family_of, splits=True, splits_sources=True)
_LAST_PASSES = 500  # at the end of a fit
_LEAST_GAP, _MOST_GAP = 1e-9, 1e-4
