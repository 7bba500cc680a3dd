"""The averaging rule for a truncated mixture of margin classifiers: the loss of the expected score.

    J = KL(q(v) q(theta) q(z) || prior, likelihood) + sum_k |m_k|^2 / (2 nu^2) + sum_n g(sum_k r_nk m_k . a_n)

with g = -log phi convex and q(eta_k) = N(m_k, nu^2 I): only means are learnt (Zhu, Chen & Xing 2011, 2014;
docs/derivations/regbayes.md). A sweep sets sticks, h and the family to their optimum as under the other rule, then the
means by the dual of an SVM with features r_nk a_n, then the responsibilities of each point exactly, by a dual of its
own. Where duals are solved in part only, a step may end above the last J. It is then not taken, so that -J, the
recorded value, never falls.
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

_MOST_PASSES = 50  # of the dual in one sweep; the next one goes on from there


class Means(Ridge):
    """N(m_k, nu^2 I) [T], with the spread of the prior."""

    def kl(self, weight_scale: float) -> Tensor:
        """|m_k|^2 / (2 nu^2) [T]."""
        return self.mean.square().sum((1, 2)) / (2 * weight_scale**2)


@dataclass(frozen=True, kw_only=True)
class AveragedPartition(VariationalPartition):
    """As under the other rule, with no pseudo-observations and factors of precisions; `bound` is -J."""

    tilt: Tensor  # [N, C] of the classifiers, which starts their next dual
    row_tilt: Tensor  # [N, C] of the responsibilities, which starts theirs
    duality_gap: Tensor  # [] float64, of the classifiers, as a fraction of their objective

    @classmethod
    def started(cls, model: Mixture, data: Data, fields: dict[str, Any]) -> Self:
        """With tilts of 0."""
        nothing, gap = torch.zeros_like(data.targets), torch.ones_like(fields["bound"])
        own = fields | {"precision_tril": fields["precision_tril"][..., :0, :0]}
        return super().started(model, data, own | {"tilt": nothing, "row_tilt": nothing, "duality_gap": gap})

    @cached_property
    def classifiers(self) -> Means:
        """q(eta_k)."""
        return Means(self.mean, self.precision_tril)


def init(model: Mixture, data: Data, generator: torch.Generator) -> AveragedPartition:
    """Responsibilities from seeds that are far apart, classifiers at their prior."""
    return start(AveragedPartition, model, data, generator, observes=False)


def update_factors(state: AveragedPartition, data: Data, model: Mixture, tolerance: float = 1e-4) -> AveragedPartition:
    """All factors but the responsibilities."""
    return update_classifiers(update_components(state.with_prior(model), data, model), data, model, tolerance)


def points(tolerance: float) -> Climb[AveragedPartition, Data, Mixture]:
    """Coordinate ascent with classifiers whose dual is solved to a relative gap of `tolerance`."""
    return Climb(partial(update_factors, tolerance=tolerance), update_responsibilities, partition.unions)


# -- blocks with the margin --------------------------------------------------------------------------------------------


def update_classifiers(
    state: AveragedPartition, data: Data, model: Mixture, tolerance: float = 1e-4, max_passes: int = _MOST_PASSES
) -> AveragedPartition:
    """The means m [T, P, C] of an SVM with features r_nk a_n [N, T P], to a relative duality gap of `tolerance`."""
    features = (state.responsibilities.unsqueeze(2) * data.features.unsqueeze(1)).flatten(1)
    cost = Scored(features, data.targets, model.loss, model.weight_scale, data.weights)
    mean = state.mean.reshape(1, features.shape[1], -1)
    old = Learned(mean, state.precision_tril, state.tilt, state.duality_gap)
    found = by_dual(cost, old, DualLimits(tolerance, max_passes))
    return replace(state, mean=found.mean.view_as(state.mean), tilt=found.tilt, duality_gap=found.gap)


def update_responsibilities(state: AveragedPartition, data: Data, model: Mixture) -> AveragedPartition:
    """r_n maximizes sum_k r_nk (E log pi_k + E log p(x_n | theta_k) - log r_nk) - g(sum_k r_nk m_k . a_n); and -J."""
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
    """What the points add to -J, [N] float64, from responsibilities, logits [N, T] and scores [N, T, C]."""
    margin = model.loss.log_factor(expected(r, own), data.targets).sum(1, dtype=torch.float64)
    return (r * logits + torch.special.entr(r)).sum(1, dtype=torch.float64) + margin


# -- what the backend asks ---------------------------------------------------------------------------------------------


def summary(state: AveragedPartition, data: Data, model: Mixture) -> Draw:
    """What the posterior keeps: hyperplanes without a spread, which this rule does not learn, and the duality gap."""
    draw = partition.summary(state, data, model)
    del draw["precision_tril"]
    return {**draw, "duality_gap": state.duality_gap}


def averaged_steps(backend: SVI) -> Steps[AveragedPartition, Data, Mixture]:
    """The functions of a fit to all points, with its tolerance."""
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
    """The averaging rule needs hyperplanes that see their own components alone."""
    steps: dict[Rule, Steps[Any, Data, Mixture]] = {NATURAL: partition.STEPS}
    if sides_of(model) is not OwnSide or loss_of(model) is None:
        return steps
    return steps | {AVERAGING: averaged_steps(backend)}


BY_RULE = StepsByRule(steps_of, family_of, splits=True, splits_sources=True)
_LAST_PASSES = 500  # at the end of a fit
_LEAST_GAP, _MOST_GAP = 1e-9, 1e-4
