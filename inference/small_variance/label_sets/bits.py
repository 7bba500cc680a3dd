"""The bits y = a b of labels in a descent of the mixture of (x, a): the objective J, and the updates of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.data import Data
from ....models.label_data import LabelData
from ....models.likelihoods import ExponentialFamily
from ....models.likelihoods.product import join_columns
from ....models.sums import row_chunks
from ...classifiers.minimum import DualLimits, Estimate, are_few, estimate, minimum
from ...classifiers.scored import Scored
from ...running.chains import OfRows
from .. import descent
from ..assignment import component_sums
from ..problem import Problem
from ..state import Descent


@dataclass(frozen=True, kw_only=True)
class LabelDescent(Descent):
    """The state: a descent of the mixture of (x, a), and the classifiers of b; `objective` is J."""

    bits: OfRows  # [N, C] a, NaN where a label is missing
    signs: OfRows  # [N, C] 2 b - 1, NaN where a label is missing
    classifiers: Tensor  # [P, C]
    tilt: OfRows  # [N, C] dual variables, where the next duals start


@dataclass(frozen=True, eq=False)
class LabelProblem:
    """The objective of a model on its data."""

    model: BNMC
    data: LabelData
    scale: float

    @property
    def family(self) -> ExponentialFamily:
        """The likelihood of the bits a."""
        return cast(ExponentialFamily, self.model.label_likelihood)

    def mixture(self, bits: Tensor) -> Problem:
        """The problem of the mixture of (x, a), from bits a [N, C]."""
        data = self.data
        points = Data(join_columns([data.inputs.X, bits]), data.points.features, data.points.targets, data.weights)
        return Problem.of(self.model.mixture, points.placed(*data.span), self.scale)

    def margins(self, signs: Tensor) -> Scored:
        """The rows for classifiers of labels with signs 2 b - 1 [N, c]; each classifier scores all rows."""
        data, model = self.data, self.model
        return Scored(data.features, signs, model.loss, model.weight_scale, data.weights, source=data)

    def margin_cost(self, signs: Tensor, classifiers: Tensor) -> Tensor:
        """|w|^2 / (2 nu^2) - sum_n log phi(2 b_n - 1 | f_n), [] float64, of classifiers [P, C] at signs [N, C]."""
        return self.margins(signs).value(classifiers.unsqueeze(0)).sum()

    def fit(
        self,
        signs: Tensor,
        classifiers: Tensor | None = None,
        tilt: Tensor | None = None,
        *,
        thorough: bool = True,
    ) -> Estimate:
        """Fit classifiers [1, P, c] to labels with signs [N, c], from classifiers [P, c] and tilts [N, c], or from 0.

        If several ranks have many rows, a single step is taken unless the fit is `thorough`.
        """
        margins = self.margins(signs)
        start = self.data.features.new_zeros(margins.features.shape[1], signs.shape[1])
        start = start if classifiers is None else classifiers
        limits = (_LIMITS, _NUM_STEPS) if thorough or are_few(margins) else (None, 1)
        return minimum(margins, estimate(margins, start.unsqueeze(0), tilt), *limits)

    def bit_costs(self, targets: Tensor, scores: Tensor, means: Tensor) -> Tensor:
        """The costs [4, N, K, C] of the bits (0, 0), (0, 1), (1, 0), (1, 1), given means [K, C] or [N, K, C].

        inf where a b is not y; 0 for a missing label.
        """
        one, zero = (-self.scale * values for values in (means.log(), torch.log1p(-means)))
        ones = torch.ones_like(scores)
        yes, no = (-self.model.loss.log_factor(scores, sign * ones).unsqueeze(1) for sign in (1, -1))
        present, missing = (targets > 0).unsqueeze(1), targets.isnan().unsqueeze(1)
        absent = torch.stack([zero + no, zero + yes, one + no])
        both = torch.where(present, one + yes, torch.inf).unsqueeze(0)
        return torch.where(missing, 0.0, torch.cat([torch.where(present, torch.inf, absent), both]))

    def cheapest_bits(self, targets: Tensor, scores: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """The bits a and signs 2 b - 1 [N, C] of least cost, given the means [N, C] of each point's component."""
        best, missing = self.bit_costs(targets, scores, means.unsqueeze(1)).argmin(0).squeeze(1), targets.isnan()
        bits = (best == _ONLY_A).to(scores) + (best == _BOTH).to(scores)
        signs = torch.where((best == _ONLY_B) | (best == _BOTH), 1.0, -1.0).to(scores)
        return bits.masked_fill(missing, torch.nan), signs.masked_fill(missing, torch.nan)

    def label_sums(self, state: LabelDescent) -> tuple[Tensor, Tensor]:
        """Sums [K, .] of the bits a in coordinates, and numbers of rows [K], including the pseudo-observation."""
        (row, weight), rows = self.family.pseudo_observation(), self.family.coordinates(state.bits)
        sums, counts = component_sums(rows, state.assignments, state.num_components, self.data.weights)
        return (sums, counts) if row is None else (sums + weight * row, counts + weight)

    def label_means(self, state: LabelDescent) -> Tensor:
        """The best means psi [K, C] of the bits a."""
        return self.family.from_coordinates(self.family.centers(*self.label_sums(state)))

    def label_cost(self, state: LabelDescent) -> Tensor:
        """The terms of J that depend on bits and classifiers, at fixed assignments, []."""
        sums, counts = self.label_sums(state)
        slope, offset = self.family.divergence_terms(self.family.centers(sums, counts))
        shares = (counts * offset).sum() - (sums * slope).sum()
        return self.scale * shares + self.margin_cost(state.signs, state.classifiers)

    def mixture_later(self, state: LabelDescent) -> Callable[[], Tensor]:
        """A function that returns L of the mixture in J, []; among ranks it joins the next exchange."""
        return descent.objective_later(self.mixture(state.bits), state)

    def valued(self, state: LabelDescent) -> LabelDescent:
        """Update the objective J of a state."""
        told = self.mixture_later(state)
        margin = self.margin_cost(state.signs, state.classifiers)
        return replace(state, objective=told() + margin)


# -- updates of a sweep ------------------------------------------------------------------------------------------------


def explain(state: LabelDescent, problem: LabelProblem, *, moves: bool = True) -> LabelDescent:
    """Set the bits of every point, and with `moves` its component, to the cheapest; empty components are kept."""
    data, model = problem.data, problem.model
    (inputs, centers), (labels, shares) = model.family.own_centers(state.centers)
    means = labels.from_coordinates(shares)
    scores = data.features @ state.classifiers
    parts = []
    for rows in row_chunks(data.features, len(means) * data.targets.shape[1]):
        some, f, z = data.rows(rows), scores[rows], state.assignments[rows]
        if moves:
            costs = problem.bit_costs(some.targets, f, means).amin(0).sum(-1)
            z = (costs + problem.scale * inputs.divergence(inputs.coordinates(some.inputs.X), centers)).argmin(1)
        parts.append((z, *problem.cheapest_bits(some.targets, f, means[z])))
    z, bits, signs = (torch.cat(values) for values in zip(*parts, strict=True))
    return replace(state, assignments=z, bits=bits, signs=signs)


def fit_classifiers(state: LabelDescent, problem: LabelProblem) -> tuple[LabelDescent, Tensor]:
    """Improve the classifiers of b; also return their cost []."""
    fit = problem.fit(state.signs, state.classifiers, state.tilt, thorough=state.settled)
    return replace(state, classifiers=fit.weights[0], tilt=fit.tilt), fit.cost.sum()


def refit(state: LabelDescent, problem: LabelProblem) -> LabelDescent:
    """Set the centres to the best ones for these assignments and bits, and compute J."""
    mixture = problem.mixture(state.bits)
    sums = component_sums(mixture.X, state.assignments, state.num_components, problem.data.weights)
    return problem.valued(replace(state, centers=mixture.centers(*sums)))


_ONLY_B, _ONLY_A, _BOTH = 1, 2, 3  # indices of the bits (a, b) in `bit_costs`
_LIMITS, _NUM_STEPS = DualLimits(1e-4, 1000), 400
