"""The small-variance limit of multi-label models: DP-means of rows and label sets, and one SVM for each label.

    J = Lambda(K) + scale [sum_n D(x_n, mu_{z_n}) + sum_kc w D(row, psi_kc)] + sum_c |w_c|^2 / (2 nu^2)
        + sum_nc min over bits a, b of [scale d(a, psi_{z_n c}) - log phi(2 b - 1 | f_nc)],
    d(a, psi) = -a log psi - (1 - a) log(1 - psi)

Joint "product": a = b = y, and mixture and classifiers are independent. The mixture has the descent of partitions, with
smoothed label centres; the classifiers reach their minimum before the first sweep.

Joint "and": a b = y. An absent label is explained in the cheapest way: the component does not have it (a = 0), the
classifier rejects it (b = 0), or both. At fixed bits J is the objective of the joint "product" with labels a for the
mixture and b for the classifiers. A sweep updates components and bits together, then the mixture by the descent of
partitions at these bits, then the bits, then the SVMs by duals. Nothing raises J, and the start is the optimum of the
SVMs at a = b = y.

As one explanation, often both, accounts for each absence, psi sigma(f) is too low for a probability: choose labels by
`thresholds`, or by rank.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.distributions.sampling import uniforms
from ....models.label_data import LabelData
from ...distributed.collectives import Later
from ...posterior.label_draws import label_draw
from ...running.engine import Draw, Kernel
from .. import descent
from ..backend import SmallVariance
from ..partition import MixtureRestarts
from ..problem import require_divergence
from ..restarts import Restarts, kernel_of
from ..state import Descent
from .bits import LabelDescent, LabelProblem, explain, fit_classifiers, refit
from .moves import step_points, switch_labels


def why_not(model: BNMC) -> str:
    """Return "" if the joint has a small-variance limit, otherwise the joints that have one."""
    return "" if model.joint != "multinomial" else " for joint='multinomial', but for joint='product' and joint='and'"


def check(backend: SmallVariance, model: BNMC) -> None:
    """Raise NotImplementedError on a likelihood without a small-variance limit."""
    require_divergence(model)


def row_cost(model: BNMC) -> int:
    """The cost of a row, in rows of a mixture; in the joint "and" each switch of an explanation fits an SVM."""
    return 4 if model.is_coupled else 1


def alone(backend: SmallVariance, model: BNMC) -> str:
    """What to change so that ranks can share the rows; "" if nothing."""
    return "leave init out" if isinstance(backend.init, Tensor) else ""


def kernel(backend: SmallVariance, model: BNMC) -> Kernel:
    """The kernel of a resolved model."""
    return kernel_of(LabelDescent, partial(LabelRestarts.of, backend))


class Way(NamedTuple):
    """One explanation of all absent labels: bits, and the classifiers fitted to b."""

    bits: Tensor  # [N, C]
    signs: Tensor  # [N, C]
    classifiers: Tensor  # [P, C]
    tilt: Tensor  # [N, C]

    @classmethod
    def of(cls, a: float, b: float, problem: LabelProblem) -> Way:
        """The explanation with bits (a, b) for all absent labels, (1, 1) for present ones."""
        targets = problem.data.targets
        bits, signs = (
            torch.full_like(targets, absent).masked_fill(targets > 0, 1.0).masked_fill(targets.isnan(), torch.nan)
            for absent in (a, 2 * b - 1)
        )
        fit = problem.fit(signs)
        return cls(bits, signs, fit.weights[0], fit.tilt)

    def taken(self, state: LabelDescent, label: int) -> LabelDescent:
        """Give label number `label` of a state these bits and this classifier; J is not updated."""
        columns = {name: getattr(state, name).clone() for name in self._fields}
        for name, column in columns.items():
            column[:, label] = getattr(self, name)[:, label]
        return replace(state, **columns)


@dataclass(frozen=True, eq=False)
class LabelRestarts(Restarts[LabelDescent]):
    """Restarts of the mixture with a = b = y; in the joint "and" later ones explain each label by one bit."""

    problem: LabelProblem
    mixture: MixtureRestarts

    @classmethod
    def of(cls, backend: SmallVariance, model: BNMC, data: LabelData) -> Self:
        """The restarts of a resolved model."""
        mixture = MixtureRestarts.of(backend, model.mixture, data.points)
        return cls(backend, LabelProblem(model, data, backend.scale), mixture)

    @cached_property
    def both(self) -> Way:
        """Absent labels explained by both bits."""
        return Way.of(0, 0, self.problem)

    @cached_property
    def one(self) -> list[Way]:
        """Absent labels explained by the classifiers, or by the mixture."""
        return [Way.of(1, 0, self.problem), Way.of(0, 1, self.problem)]

    @cached_property
    def margin_cost(self) -> Tensor:
        """The cost [] float64 of the classifiers of b = y."""
        return self.problem.margin_cost(self.both.signs, self.both.classifiers)

    def first(self, generator: torch.Generator) -> LabelDescent:
        return self._beside(self.mixture.first(generator))

    def scattered(self, generator: torch.Generator) -> LabelDescent:
        state = self._beside(self.mixture.scattered(generator))
        if not self.problem.model.is_coupled:
            return state
        draws = uniforms((self.problem.data.targets.shape[1],), generator)
        for label, drawn in enumerate(draws.tolist()):
            state = self.one[int(drawn > 0.5)].taken(state, label)
        return refit(state, self.problem)

    def _beside(self, start: Descent) -> LabelDescent:
        """Add the classifiers of y to the start of a mixture of (x, y)."""
        values: dict[str, Any] = {item.name: getattr(start, item.name) for item in fields(start)}
        values["objective"] = start.objective + self.margin_cost
        return LabelDescent(**values, **self.both._asdict())

    def sweep(self, state: LabelDescent, generator: torch.Generator) -> LabelDescent:
        if self.problem.model.is_coupled:
            return self._sweep_coupled(state, generator)
        start = replace(state, objective=state.objective - self.margin_cost)
        moved = cast(LabelDescent, self.mixture.sweep(start, generator))
        return replace(moved, objective=moved.objective + self.margin_cost)

    def _sweep_coupled(self, state: LabelDescent, generator: torch.Generator) -> LabelDescent:
        backend, problem, before = self.backend, self.problem, state.bits
        state = explain(state, problem)
        mixture, options = problem.mixture(state.bits), {"merge": backend.merge, "single": self.mixture.single}
        value = descent.objective_later(mixture, state)
        moved = descent.sweep(state, mixture, generator, tolerance=backend.tolerance, value=value, **options)
        state = explain(cast(LabelDescent, moved), problem, moves=False)
        changed, value = _changed_later(before, state.bits), problem.mixture_later(state)
        state, margin = fit_classifiers(state, problem)
        state = replace(state, objective=value() + margin)
        if state.settled:
            state = switch_labels(state, problem, generator)
            state = step_points(state, problem)
            changed = _changed_later(before, state.bits)
        if changed() > backend.tolerance * problem.data.span[1] * before.shape[1]:
            state = replace(state, settled=False, converged=False)
        return state

    def draw(self, state: LabelDescent) -> Draw:
        return label_draw(self.mixture.draw(state), state.classifiers, self.problem.data, self.problem.model)


def _changed_later(before: Tensor, bits: Tensor) -> Later:
    """The number of bits [N, C] that changed, [] float64, as a sum that joins the next exchange of ranks."""
    return Later((bits != before)[~before.isnan()].double().sum())
