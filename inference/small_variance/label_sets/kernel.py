"""The small-variance limit of multi-label models: DP-means of rows and label sets, and one SVM for each label.

    L = Lambda(K) + scale [sum_n D(x_n, mu_{z_n}) + D(y_n, psi_{z_n}) + sum_k w D(row, psi_k)]
        + sum_c |w_c|^2 / (2 nu^2) - sum_nc log phi(s_nc | w_c^T a_n)

Nothing couples the two lines (math/multilabel, section 6): the first is the descent of partitions, with smoothed label
centres, and the second is minimized before the first sweep.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache

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
    inner = partition.kernel(backend, model.mixture)

    @cache
    def classifiers(data: LabelData) -> tuple[Tensor, Tensor]:
        """The same ones for all restarts."""
        fit = fit_classifiers(data, model)
        return fit.weights[0], fit.cost.sum()

    def init(model: BNMC, data: LabelData, generator: torch.Generator) -> LabelDescent:
        start, (weights, cost) = inner.init(model.mixture, data.points, generator), classifiers(data)
        values = {item.name: getattr(start, item.name) for item in fields(start)}
        values["objective"] = start.objective + cost
        return LabelDescent(**values, classifiers=weights, margin_cost=cost)

    def sweep(state: LabelDescent, data: LabelData, model: BNMC, generator: torch.Generator, step: int) -> LabelDescent:
        cost = state.margin_cost
        mixture = replace(state, objective=state.objective - cost)
        moved: LabelDescent = inner.sweep(mixture, data.points, model.mixture, generator, step)
        return replace(moved, objective=moved.objective + cost)

    return Kernel(LabelDescent, init, sweep, value=lambda state, data, model: state.objective, draw=draw)


def fit_classifiers(data: LabelData, model: BNMC) -> Estimate:
    """The classifiers [1, P, C] at their optimum."""
    return fit_labels(data.targets, None, data, model)


def draw(state: LabelDescent, data: LabelData, model: BNMC) -> Draw:
    """What a posterior keeps of a state."""
    return label_draw(partition.draw(state, data.points, model.mixture), state.classifiers, data, model)
