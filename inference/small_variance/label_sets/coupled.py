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
from functools import cached_property, partial
from typing import Any, Self, cast

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.distributions.sampling import uniforms
from ....models.label_data import LabelData
from ...distributed.collectives import all_sum
from ...running.engine import Draw, Kernel
from .. import descent, partition
from ..backend import SmallVariance
from ..restarts import Restarts, kernel_of
from ..state import Descent
from .bits import CoupledDescent, draw, explain, fit_classifiers, fit_labels, problem_of, refit, valued
from .moves import step_points, switch_labels


def kernel(backend: SmallVariance, model: BNMC) -> Kernel:
    """The descent for a resolved model."""
    return kernel_of(CoupledDescent, partial(CoupledRestarts.of, backend))


@dataclass(frozen=True, eq=False)
class CoupledRestarts(Restarts[CoupledDescent]):
    """Restarts of the mixture, all absences explained by both; later ones have each label explained by one."""

    model: BNMC
    data: LabelData
    mixture: partition.MixtureRestarts

    @classmethod
    def of(cls, backend: SmallVariance, model: BNMC, data: LabelData) -> Self:
        """Those of a resolved model."""
        return cls(backend, model, data, partition.MixtureRestarts.of(backend, model.mixture, data.points))

    @cached_property
    def ways(self) -> list[Way]:
        """Ways to explain all absences: by both, by the classifiers, by the mixture."""
        return [Way.of(a, b, self.data, self.model) for a, b in ((0, 0), (1, 0), (0, 1))]

    def first(self, generator: torch.Generator) -> CoupledDescent:
        start = self._beside(self.mixture.first(generator))
        return refit(start, self.data, self.model, self.backend.scale)

    def scattered(self, generator: torch.Generator) -> CoupledDescent:
        state = self._beside(self.mixture.scattered(generator))
        draws = uniforms((self.data.targets.shape[1],), generator)
        for label, drawn in enumerate(draws.tolist()):
            state = self.ways[2 if drawn > 0.5 else 1].taken(state, label)
        return refit(state, self.data, self.model, self.backend.scale)

    def _beside(self, start: Descent) -> CoupledDescent:
        """A start of the mixture with the bits and classifiers of the first way; J is not up to date."""
        values: dict[str, Any] = {item.name: getattr(start, item.name) for item in fields(start)}
        return CoupledDescent(**values, **vars(self.ways[0]))

    def sweep(self, state: CoupledDescent, generator: torch.Generator) -> CoupledDescent:
        backend, data, model, before = self.backend, self.data, self.model, state.bits
        scale, options = backend.scale, {"merge": backend.merge, "single": self.mixture.single}
        state = explain(state, data, model, scale)
        problem = problem_of(state, data, model, scale)
        state = replace(state, objective=descent.objective(problem, state))
        moved = descent.sweep(state, problem, generator, tolerance=backend.tolerance, **options)
        state = explain(cast(CoupledDescent, moved), data, model, scale, moves=False)
        state = fit_classifiers(state, data, model)
        if state.settled:
            state = switch_labels(state, data, model, scale, generator)
            state = step_points(state, data, model, scale)
        changed = all_sum((state.bits != before)[~before.isnan()].double().sum())
        if changed > backend.tolerance * before.numel():
            state = replace(state, settled=False, converged=False)
        return valued(state, data, model, scale)

    def draw(self, state: CoupledDescent) -> Draw:
        return draw(state, self.data, self.model)


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
