"""The small-variance limit of multi-label models: DP-means of rows and label sets, and one SVM for each label.

    L = Lambda(K) + scale [sum_n D(x_n, mu_{z_n}) + D(y_n, psi_{z_n}) + sum_k w D(row, psi_k)]
        + sum_c |w_c|^2 / (2 nu^2) - sum_nc log phi(s_nc | w_c^T a_n)

Nothing couples the two lines (math/multilabel, section 6): the first is the descent of partitions, with smoothed label
centres, and the second is minimized before the first sweep.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Self, cast

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ...classifiers.minimum import Estimate
from ...posterior.label_draws import label_draw
from ...running.engine import Draw, Kernel
from .. import partition
from ..backend import SmallVariance
from ..problem import require_divergence
from ..restarts import Restarts, kernel_of
from ..state import Descent
from . import coupled
from .bits import fit_labels


@dataclass(frozen=True, kw_only=True)
class LabelDescent(Descent):
    """A descent of the mixture, beside the classifiers; `objective` is of both."""

    classifiers: Tensor  # [P, C]
    margin_cost: Tensor  # [] float64, what the classifiers add to the objective


def why_not(model: BNMC) -> str:
    """Of the joints it serves those whose shares have a limit of their own."""
    return "" if model.joint != "multinomial" else " for joint='multinomial', but for joint='product' and joint='and'"


def check(backend: SmallVariance, model: BNMC) -> None:
    """Raise on a family without a small-variance limit."""
    require_divergence(model)


def kernel(backend: SmallVariance, model: BNMC) -> Kernel:
    """The descent for a resolved model."""
    if model.is_coupled:
        return coupled.kernel(backend, model)
    return kernel_of(LabelDescent, partial(LabelRestarts.of, backend))


@dataclass(frozen=True, eq=False)
class LabelRestarts(Restarts[LabelDescent]):
    """Restarts of the mixture, beside classifiers that are the same for all of them."""

    model: BNMC
    data: LabelData
    mixture: partition.MixtureRestarts

    @classmethod
    def of(cls, backend: SmallVariance, model: BNMC, data: LabelData) -> Self:
        """Those of a resolved model."""
        return cls(backend, model, data, partition.MixtureRestarts.of(backend, model.mixture, data.points))

    @cached_property
    def classifiers(self) -> tuple[Tensor, Tensor]:
        """The classifiers [P, C] and what they cost []."""
        fit = fit_classifiers(self.data, self.model)
        return fit.weights[0], fit.cost.sum()

    def first(self, generator: torch.Generator) -> LabelDescent:
        return self._beside(self.mixture.first(generator))

    def scattered(self, generator: torch.Generator) -> LabelDescent:
        return self._beside(self.mixture.scattered(generator))

    def _beside(self, start: Descent) -> LabelDescent:
        """A start of the mixture with the classifiers."""
        weights, cost = self.classifiers
        values = {item.name: getattr(start, item.name) for item in fields(start)}
        values["objective"] = start.objective + cost
        return LabelDescent(**values, classifiers=weights, margin_cost=cost)

    def sweep(self, state: LabelDescent, generator: torch.Generator) -> LabelDescent:
        cost = state.margin_cost
        moved = cast(LabelDescent, self.mixture.sweep(replace(state, objective=state.objective - cost), generator))
        return replace(moved, objective=moved.objective + cost)

    def draw(self, state: LabelDescent) -> Draw:
        return draw(state, self.data, self.model)


def fit_classifiers(data: LabelData, model: BNMC) -> Estimate:
    """The classifiers [1, P, C] at their optimum."""
    return fit_labels(data.targets, None, data, model)


def draw(state: LabelDescent, data: LabelData, model: BNMC) -> Draw:
    """What a posterior keeps of a state."""
    return label_draw(partition.draw(state, data.points, model.mixture), state.classifiers, data, model)
