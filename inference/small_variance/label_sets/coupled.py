"""The small-variance limit of the multi-label joint "and": the bits y = a b of every label are a minimum, not a sum.

    J = Lambda(K) + scale [sum_n D(x_n, mu_{z_n}) + sum_kc w D(row, psi_kc)] + sum_c |w_c|^2 / (2 nu^2)
        + sum_nc min over a b = y_nc of [scale d(a, psi_{z_n c}) - log phi(2 b - 1 | f_nc)],
    d(a, psi) = -a log psi - (1 - a) log(1 - psi)

A label that is absent is charged to the cheaper explanation: the component does not have it, the classifier says no, or
both. At fixed bits J is the objective of joint "product" with labels a for the mixture and b for the classifiers, so a
sweep has components and bits together, then the descent of partitions at these bits, then the bits, then the SVMs by
duals. Nothing raises J, and it starts from the optimum of the SVMs at a = b = y. As one explanation bears each absence
in full, often both, psi sigma(f) comes out too low for a probability: choose labels by `thresholds`, or by rank.

Source: math/multilabel, section 6.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.distributions.sampling import uniforms
from ....models.label_data import LabelData
from ...distributed.collectives import all_sum
from ...running.engine import Kernel
from .. import descent, partition
from ..backend import SmallVariance
from .bits import CoupledDescent, draw, explain, fit_classifiers, fit_labels, problem_of, refit, valued
from .moves import step_points, switch_labels


def kernel(backend: SmallVariance, model: BNMC) -> Kernel:
    """The descent for a resolved model."""
    inner = partition.kernel(backend, model.mixture)

    @cache
    def ways(data: LabelData) -> list[Way]:
        """The same ones for all restarts."""
        return [Way.of(a, b, data, model) for a, b in ((0, 0), (1, 0), (0, 1))]

    def init(model: BNMC, data: LabelData, generator: torch.Generator) -> CoupledDescent:
        start, (both, *alone) = inner.init(model.mixture, data.points, generator), ways(data)
        values: dict[str, Any] = {item.name: getattr(start, item.name) for item in fields(start)}
        state = CoupledDescent(**values, **vars(both))
        if not backend.is_first(generator):
            draws = uniforms((data.targets.shape[1],), generator)
            for label, draw in enumerate(draws.tolist()):
                state = alone[draw > 0.5].taken(state, label)
        return refit(state, data, model, backend.scale)

    def sweep(
        state: CoupledDescent, data: LabelData, model: BNMC, generator: torch.Generator, step: int
    ) -> CoupledDescent:
        before, scale = state.bits, backend.scale
        state = explain(state, data, model, scale)
        problem = problem_of(state, data, model, scale)
        state = replace(state, objective=descent.objective(problem, state))
        options: dict[str, Any] = {"tolerance": backend.tolerance, "merge": backend.merge}
        moved: Any = descent.sweep(state, problem, generator, single=backend.creation == "single", **options)
        state = fit_classifiers(explain(moved, data, model, scale, moves=False), data, model)
        if state.settled:
            state = switch_labels(state, data, model, scale, generator)
            state = step_points(state, data, model, scale)
        changed = all_sum((state.bits != before)[~before.isnan()].double().sum())
        if changed > backend.tolerance * before.numel():
            state = replace(state, settled=False, converged=False)
        return valued(state, data, model, scale)

    return Kernel(CoupledDescent, init, sweep, value=lambda state, data, model: state.objective, draw=draw)


@dataclass(frozen=True)
class Way:
    """Bits that explain every absence in one way, and the classifiers of such b."""

    bits: Tensor  # [N, C]
    signs: Tensor  # [N, C]
    classifiers: Tensor  # [P, C]
    tilt: Tensor  # [N, C]

    @classmethod
    def of(cls, a: float, b: float, data: LabelData, model: BNMC) -> Way:
        """The bits (a, b) of labels that are absent, (1, 1) of those that are present."""
        present, missing = data.targets > 0, data.targets.isnan()
        bits, signs = torch.full_like(data.targets, a), torch.full_like(data.targets, 2 * b - 1)
        bits, signs = (each.masked_fill(present, 1.0).masked_fill(missing, torch.nan) for each in (bits, signs))
        fit = fit_labels(signs, None, data, model)
        return cls(bits, signs, fit.weights[0], fit.tilt)

    def taken(self, state: CoupledDescent, label: int) -> CoupledDescent:
        """A state with these bits, and this classifier, of a label; J is not up to date."""
        columns = {}
        for item in fields(self):
            column = columns[item.name] = getattr(state, item.name).clone()
            column[:, label] = getattr(self, item.name)[:, label]
        return replace(state, **columns)
