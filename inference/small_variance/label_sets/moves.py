"""Moves of a settled descent with bits a b = y: what no block of a sweep changes alone.

A label's classifier and the shares of a component hold each other where they are: its absences there are explained in
another way only if all are at once. A point holds its centre likewise.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.distributions.sampling import uniforms
from ....models.label_data import LabelData
from ....models.likelihoods.product import join_columns
from ....models.sparse import Rows
from ...distributed.collectives import all_sum
from ..assignment import component_sums
from ..problem import Problem
from .bits import CoupledDescent, cheapest_bits, fit_labels, label_cost, label_means, problem_of, refit, valued


def switch_labels(
    state: CoupledDescent, data: LabelData, model: BNMC, scale: float, generator: torch.Generator
) -> CoupledDescent:
    """The state with absences of a label explained in another way, those of one component or of all, wherever that
    lowers J at these assignments: some such moves, in random order."""
    (N, C), K = data.targets.shape, state.num_components
    state, order = valued(state, data, model, scale), uniforms((C * (K + 1),), generator).argsort().tolist()
    least = label_cost(state, data, model, scale)
    for place in order[: min(_MOST_SWITCHES, _NUMBERS // (N * C))]:
        label, component = divmod(place, K + 1)
        moved = (data.targets[:, label] < 0) & ((state.assignments == component) | (component == K))
        for a, b in _WAYS:
            if not all_sum((moved & ((state.bits[:, label] != a) | (state.signs[:, label] != b))).sum()):
                continue
            proposal = _switched(state, moved, label, (a, b), data, model, scale)
            cost = label_cost(proposal, data, model, scale)
            if cost < least:
                state, least = proposal, cost
    return refit(state, data, model, scale)


def _switched(
    state: CoupledDescent,
    moved: Tensor,
    label: int,
    bits: tuple[float, float],
    data: LabelData,
    model: BNMC,
    scale: float,
) -> CoupledDescent:
    """These bits (a, 2 b - 1) of a label for some points [N]; its classifier, its cheapest bits, and again."""
    a, b = state.bits.clone(), state.signs.clone()
    a[moved, label], b[moved, label] = bits
    state = _fit_label(replace(state, bits=a, signs=b), label, data, model)
    own, means = slice(label, label + 1), label_means(state, data, model)[state.assignments]
    cheapest = cheapest_bits(
        data.targets[:, own], data.features @ state.classifiers[:, own], means[:, own], model, scale
    )
    a, b = (
        torch.cat([full[:, :label], one, full[:, label + 1 :]], 1) for full, one in zip((a, b), cheapest, strict=True)
    )
    changed = all_sum((b.nan_to_num() != state.signs.nan_to_num()).sum())
    state = replace(state, bits=a, signs=b)
    return _fit_label(state, label, data, model) if changed else state


def _fit_label(state: CoupledDescent, label: int, data: LabelData, model: BNMC) -> CoupledDescent:
    """A better classifier of a label at its bits."""
    own, weights, tilt = slice(label, label + 1), state.classifiers.clone(), state.tilt.clone()
    fit = fit_labels(state.signs[:, own], state, data, model, own)
    weights[:, own], tilt[:, own] = fit.weights[0], fit.tilt
    return replace(state, classifiers=weights, tilt=tilt)


def step_points(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> CoupledDescent:
    """The state after the moves of single points that lower J most, with the centres that they leave and join."""
    width = data.inputs.X.shape[1] + data.targets.shape[1]
    for _ in range(_MOST_STEPS):
        K = state.num_components
        if K == 1 or data.num_data * K * width > _NUMBERS:
            return state
        moved = _stepped(state, data, model, scale)
        if moved.objective >= state.objective - _NEGLIGIBLE * state.objective.abs():
            return state
        state = moved
    return state


def _stepped(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> CoupledDescent:
    """The best move of one point to another component, with the bits that are the cheapest at that one's centre."""
    N, K, z = data.num_data, state.num_components, state.assignments
    point, other = torch.cartesian_prod(torch.arange(N, device=z.device), torch.arange(K, device=z.device)).T
    scores, means = data.features @ state.classifiers, label_means(state, data, model)
    bits, signs = cheapest_bits(data.targets[point], scores[point], means[other], model, scale)
    there, here = (_losses(f, own, model) for f, own in ((scores[point], signs), (scores, state.signs)))

    problem = problem_of(state, data, model, scale)
    moved = _dense(problem.likelihood.coordinates(join_columns([data.inputs.X[point], bits])))
    each = here.new_ones(N) if data.weights is None else data.weights.to(here)
    gain, toll = _leaving(state, problem, each), _joining(state, problem, moved, point, other, each)
    change = toll + each[point] * (there - here[point]) - gain[point]
    best = int(change.masked_fill(other == z[point], torch.inf).argmin())
    n = point[best]
    a, b, z = state.bits.clone(), state.signs.clone(), z.clone()
    a[n], b[n], z[n] = bits[best], signs[best], other[best]
    return refit(replace(state, assignments=z, bits=a, signs=b).occupied(), data, model, scale)


def _leaving(state: CoupledDescent, problem: Problem, each: Tensor) -> Tensor:
    """What the mixture saves [N] without a point, which counts `each` [N] times."""
    z, K = state.assignments, state.num_components
    sums, counts = component_sums(problem.X, z, K, problem.data.weights)
    rest = _costs(problem, sums[z] - each.unsqueeze(1) * _dense(problem.X), counts[z] - each)
    alone = torch.bincount(z, minlength=K)[z] == 1
    price = problem.next_price(state.penalty, K - 1)
    return _costs(problem, sums, counts)[z] - torch.where(alone, -price, rest)


def _joining(
    state: CoupledDescent, problem: Problem, rows: Tensor, point: Tensor, other: Tensor, each: Tensor
) -> Tensor:
    """What the mixture costs more [M] if rows [M, D], which stand for points [M], join other components [M]."""
    sums, counts = component_sums(problem.X, state.assignments, state.num_components, problem.data.weights)
    copies = each[point]
    joined = _costs(problem, sums[other] + copies.unsqueeze(1) * rows, counts[other] + copies)
    return joined - _costs(problem, sums, counts)[other]


def _costs(problem: Problem, sums: Tensor, counts: Tensor) -> Tensor:
    """What components [M] cost beside their price and the base of their points, by sums and numbers of rows."""
    centers = problem.centers(sums, counts)
    return problem.divergences(sums, counts, centers) + problem.smoothing(centers)


def _losses(scores: Tensor, signs: Tensor, model: BNMC) -> Tensor:
    """Losses [M] of labels with signs [M, C]; NaN has none."""
    return -model.loss.log_factor(scores, signs).masked_fill(signs.isnan(), 0.0).sum(1).double()


def _dense(X: Rows) -> Tensor:
    return X.to_dense().double()


_WAYS = ((1.0, -1.0), (0.0, 1.0), (0.0, -1.0))  # to explain an absence: a and 2 b - 1
_MOST_SWITCHES = 8
_MOST_STEPS = 10
_NUMBERS = 2**20
_NEGLIGIBLE = 1e-9
