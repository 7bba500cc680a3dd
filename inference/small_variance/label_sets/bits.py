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
from ...classifiers.duals import Dual, solve
from ...distributed.collectives import all_sum
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
    """The SVMs of b, unless those as they are cost less."""
    found = solve_labels(state.signs, state.tilt, data, model)
    better = margin_cost(found.weights, state, data, model) < margin_cost(state.classifiers, state, data, model)
    weights = torch.where(better, found.weights, state.classifiers)
    return replace(state, classifiers=weights, tilt=found.tilt)


def margin_cost(weights: Tensor, state: CoupledDescent, data: LabelData, model: BNMC) -> Tensor:
    """|w|^2 / (2 nu^2) - sum_n log phi(2 b_n - 1 | f_n), [C] float64, of classifiers [P, C]."""
    losses = data.margins.counted(-model.loss.log_factor(data.features @ weights, state.signs)).double()
    return all_sum(losses.sum(0)) + weights.double().square().sum(0) / (2 * model.weight_scale**2)


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
    return replace(state, objective=mixture + margin_cost(state.classifiers, state, data, model).sum())


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
    return scale * shares + margin_cost(state.classifiers, state, data, model).sum()


def solve_labels(signs: Tensor, start: Tensor | None, data: LabelData, model: BNMC) -> Dual:
    """The SVMs of some labels with signs 2 b - 1 [N, c]."""
    return solve(
        data.features,
        signs,
        model.loss,
        model.weight_scale,
        row_weights=data.weights,
        start=start,
        tolerance=_TOLERANCE,
    )


_ONLY_B, _ONLY_A, _BOTH = 1, 2, 3  # places of the bits (a, b)
_TOLERANCE = 1e-4
