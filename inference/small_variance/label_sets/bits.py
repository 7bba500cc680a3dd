"""The bits y = a b of labels beside a descent of the mixture of (x, a): J of such a state, and blocks of a sweep."""

from __future__ import annotations

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
from ...classifiers.minimum import DualLimits, Estimate, estimate, minimum
from ...classifiers.scored import Scored
from ...posterior.label_draws import label_draw
from ...running.engine import Draw
from .. import descent, partition
from ..assignment import component_sums
from ..problem import Problem
from ..state import Descent


@dataclass(frozen=True, kw_only=True)
class CoupledDescent(Descent):
    """A descent of the mixture of (x, a), beside the classifiers of b; `objective` is J."""

    bits: Tensor  # [N, C] a, NaN where a label is missing
    signs: Tensor  # [N, C] 2 b - 1, NaN where a label is missing
    classifiers: Tensor  # [P, C]
    tilt: Tensor  # [N, C] of the duals, which starts their next solution


# -- the blocks of a sweep ---------------------------------------------------------------------------------------------


def explain(state: CoupledDescent, data: LabelData, model: BNMC, scale: float, *, moves: bool = True) -> CoupledDescent:
    """The cheapest bits of every point, and with `moves` its cheapest component, the bits of each being cheapest."""
    (inputs, centers), (labels, shares) = model.family.own_centers(state.centers)
    means = labels.from_coordinates(shares)
    scores = data.features @ state.classifiers
    parts = []
    for rows in row_chunks(data.features, len(means) * data.targets.shape[1]):
        some, f, z = data.rows(rows), scores[rows], state.assignments[rows]
        if moves:
            costs = _bit_costs(some.targets, f, means, model, scale).amin(0).sum(-1)
            z = (costs + scale * inputs.divergence(inputs.coordinates(some.inputs.X), centers)).argmin(1)
        parts.append((z, *cheapest_bits(some.targets, f, means[z], model, scale)))
    z, bits, signs = (torch.cat(values) for values in zip(*parts, strict=True))
    return replace(state, assignments=z, bits=bits, signs=signs).occupied()


def cheapest_bits(targets: Tensor, scores: Tensor, means: Tensor, model: BNMC, scale: float) -> tuple[Tensor, Tensor]:
    """The bits a and the signs 2 b - 1 [N, C] that cost least, for means [N, C] of each point's component."""
    best, missing = _bit_costs(targets, scores, means.unsqueeze(1), model, scale).argmin(0).squeeze(1), targets.isnan()
    bits = (best == _ONLY_A).to(scores) + (best == _BOTH).to(scores)
    signs = torch.where((best == _ONLY_B) | (best == _BOTH), 1.0, -1.0).to(scores)
    return bits.masked_fill(missing, torch.nan), signs.masked_fill(missing, torch.nan)


def _bit_costs(targets: Tensor, scores: Tensor, means: Tensor, model: BNMC, scale: float) -> Tensor:
    """What the bits (0, 0), (0, 1), (1, 0), (1, 1) of labels cost, [4, N, K, C], for means [K, C] or [N, K, C]: inf
    where they do not give y, and 0 for a missing label."""
    one, zero = (-scale * values for values in (means.log(), torch.log1p(-means)))
    ones = torch.ones_like(scores)
    yes, no = (-model.loss.log_factor(scores, sign * ones).unsqueeze(1) for sign in (1, -1))
    present, missing = (targets > 0).unsqueeze(1), targets.isnan().unsqueeze(1)
    absent = torch.stack([zero + no, zero + yes, one + no])
    both = torch.where(present, one + yes, torch.inf).unsqueeze(0)
    return torch.where(missing, 0.0, torch.cat([torch.where(present, torch.inf, absent), both]))


def fit_classifiers(state: CoupledDescent, data: LabelData, model: BNMC) -> CoupledDescent:
    """Better classifiers of b."""
    fit = fit_labels(state.signs, state, data, model)
    return replace(state, classifiers=fit.weights[0], tilt=fit.tilt)


def fit_labels(
    signs: Tensor, start: CoupledDescent | None, data: LabelData, model: BNMC, columns: slice = slice(None)
) -> Estimate:
    """Classifiers [1, P, c] of some labels with signs 2 b - 1 [N, c], from those of a state or from zero."""
    margins = label_margins(signs, data, model)
    if start is None:
        fit = estimate(margins, data.features.new_zeros(1, data.features.shape[1], signs.shape[1]))
    else:
        fit = estimate(margins, start.classifiers[None, :, columns], start.tilt[:, columns])
    return minimum(margins, fit, _LIMITS, _NUM_STEPS)


def label_margins(signs: Tensor, data: LabelData, model: BNMC) -> Scored:
    """What classifiers of labels with signs 2 b - 1 [N, c] cost, each of which sees all rows."""
    return Scored(data.features, signs, model.loss, model.weight_scale, data.weights)


def margin_cost(state: CoupledDescent, data: LabelData, model: BNMC) -> Tensor:
    """|w|^2 / (2 nu^2) - sum_n log phi(2 b_n - 1 | f_n), [] float64."""
    return label_margins(state.signs, data, model).value(state.classifiers.unsqueeze(0)).sum()


def problem_of(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> Problem:
    """The problem of the mixture of (x, a)."""
    points = Data(join_columns([data.inputs.X, state.bits]), data.points.features, data.points.targets, data.weights)
    return Problem.of(model.mixture, points, scale)


def draw(state: CoupledDescent, data: LabelData, model: BNMC) -> Draw:
    """What a posterior keeps of a state."""
    return label_draw(partition.draw(state, data.points, model.mixture), state.classifiers, data, model)


def refit(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> CoupledDescent:
    """The best centres at these assignments and bits, and J."""
    problem = problem_of(state, data, model, scale)
    sums = component_sums(problem.X, state.assignments, state.num_components, data.weights)
    return valued(replace(state, centers=problem.centers(*sums)), data, model, scale)


def valued(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> CoupledDescent:
    """The state with its J."""
    mixture = descent.objective(problem_of(state, data, model, scale), state)
    return replace(state, objective=mixture + margin_cost(state, data, model))


def label_means(state: CoupledDescent, data: LabelData, model: BNMC) -> Tensor:
    """The best shares psi [K, C] of the bits a."""
    family = _label_family(model)
    return family.from_coordinates(family.centers(*_label_sums(state, data, model)))


def _label_family(model: BNMC) -> ExponentialFamily:
    return cast(ExponentialFamily, model.label_likelihood)


def _label_sums(state: CoupledDescent, data: LabelData, model: BNMC) -> tuple[Tensor, Tensor]:
    """Sums [K, .] of the bits a in coordinates and numbers of rows [K], with the pseudo-observation."""
    family = _label_family(model)
    (row, weight), rows = family.pseudo_observation(), family.coordinates(state.bits)
    sums, counts = component_sums(rows, state.assignments, state.num_components, data.weights)
    return (sums, counts) if row is None else (sums + weight * row, counts + weight)


def label_cost(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> Tensor:
    """What depends on bits and classifiers in J at given assignments, []."""
    family, (sums, counts) = _label_family(model), _label_sums(state, data, model)
    slope, offset = family.divergence_terms(family.centers(sums, counts))
    shares = (counts * offset).sum() - (sums * slope).sum()
    return scale * shares + margin_cost(state, data, model)


_ONLY_B, _ONLY_A, _BOTH = 1, 2, 3  # places of the bits (a, b)
_LIMITS, _NUM_STEPS = DualLimits(1e-4, 1000), 400
