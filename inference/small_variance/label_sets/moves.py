"""Moves of a settled descent with bits a b = y that no single update of a sweep can make.

A label's classifier and a component's mean of the label depend on each other: the absent labels in a component can only
change their explanation all at once. In the same way a point holds its centre in place.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ....models.distributions.sampling import uniforms
from ....models.likelihoods.product import join_columns
from ....models.sparse import Rows
from ...distributed.collectives import all_sum
from ...distributed.picked import own_of, top
from ..assignment import component_sums
from ..problem import Problem
from .bits import LabelDescent, LabelProblem, refit


def switch_labels(state: LabelDescent, problem: LabelProblem, generator: torch.Generator) -> LabelDescent:
    """Explain a label's absences differently, in one component or in all, if that lowers J; moves in random order."""
    targets, K = problem.data.targets, state.num_components
    C = targets.shape[1]
    order = uniforms((C * (K + 1),), generator).argsort().tolist()
    least = problem.label_cost(state)
    for place in order[: min(_MOST_SWITCHES, _NUMBERS // (problem.data.span[1] * C))]:
        label, component = divmod(place, K + 1)
        moved = (targets[:, label] < 0) & ((state.assignments == component) | (component == K))
        for a, b in _WAYS:
            if not all_sum((moved & ((state.bits[:, label] != a) | (state.signs[:, label] != b))).sum()):
                continue
            proposal = _switched(state, moved, label, (a, b), problem)
            cost = problem.label_cost(proposal)
            if cost < least:
                state, least = proposal, cost
    return refit(state, problem)


def _switched(
    state: LabelDescent, moved: Tensor, label: int, bits: tuple[float, float], problem: LabelProblem
) -> LabelDescent:
    """Set the bits (a, 2 b - 1) of a label for some points [N]; fit its classifier, its cheapest bits, and again."""
    data, own = problem.data, slice(label, label + 1)
    a, b = state.bits.clone(), state.signs.clone()
    a[moved, label], b[moved, label] = bits
    state = _fit_label(replace(state, bits=a, signs=b), own, problem)
    means, scores = problem.label_means(state)[state.assignments], data.features @ state.classifiers[:, own]
    a, b = a.clone(), b.clone()
    a[:, own], b[:, own] = problem.cheapest_bits(data.targets[:, own], scores, means[:, own])
    changed = all_sum((b.nan_to_num() != state.signs.nan_to_num()).sum())
    state = replace(state, bits=a, signs=b)
    return _fit_label(state, own, problem) if changed else state


def _fit_label(state: LabelDescent, own: slice, problem: LabelProblem) -> LabelDescent:
    """Improve the classifier of a label, whose column is `own`, at its bits."""
    weights, tilt = state.classifiers.clone(), state.tilt.clone()
    fit = problem.fit(state.signs[:, own], weights[:, own], tilt[:, own])
    weights[:, own], tilt[:, own] = fit.weights[0], fit.tilt
    return replace(state, classifiers=weights, tilt=tilt)


def step_points(state: LabelDescent, problem: LabelProblem) -> LabelDescent:
    """Move single points, the one that lowers J most first, and update the centres that they leave and join."""
    data = problem.data
    width = data.inputs.X.shape[1] + data.targets.shape[1]
    for _ in range(_MOST_STEPS):
        K = state.num_components
        if K == 1 or data.span[1] * K * width > _NUMBERS:
            return state
        moved = _stepped(state, problem)
        if moved.objective >= state.objective - _NEGLIGIBLE * state.objective.abs():
            return state
        state = moved
    return state


def _stepped(state: LabelDescent, problem: LabelProblem) -> LabelDescent:
    """Make the best move of one point to another component, with the cheapest bits at that component's centre."""
    data, K, z = problem.data, state.num_components, state.assignments
    N, device = data.num_data, z.device
    point, other = torch.cartesian_prod(torch.arange(N, device=device), torch.arange(K, device=device)).T
    scores, means = data.features @ state.classifiers, problem.label_means(state)
    bits, signs = problem.cheapest_bits(data.targets[point], scores[point], means[other])
    there, here = (_losses(f, own, problem) for f, own in ((scores[point], signs), (scores, state.signs)))

    mixture = problem.mixture(state.bits)
    moved = _dense(mixture.likelihood.coordinates(join_columns([data.inputs.X[point], bits])))
    each = here.new_ones(N) if data.weights is None else data.weights.to(here)
    gain, toll = _leaving(state, mixture, each), _joining(state, mixture, moved, other, each[point])
    change = toll + each[point] * (there - here[point]) - gain[point]
    span = data.span[0] * K, data.span[1] * K
    best = own_of(top(-change.masked_fill(other == z[point], torch.inf), 1, span), len(change), span)
    n = point[best]  # [1]; [0] on all other ranks
    a, b, z = state.bits.clone(), state.signs.clone(), z.clone()
    a[n], b[n], z[n] = bits[best], signs[best], other[best]
    return refit(replace(state, assignments=z, bits=a, signs=b).occupied(), problem)


def _leaving(state: LabelDescent, problem: Problem, each: Tensor) -> Tensor:
    """What the mixture saves [N] if a point, with weight `each` [N], is removed."""
    z, K = state.assignments, state.num_components
    sums, counts = component_sums(problem.X, z, K, problem.data.weights)
    rest = _costs(problem, sums[z] - each.unsqueeze(1) * _dense(problem.X), counts[z] - each)
    alone = state.counts[z] == 1
    price = problem.next_price(state.penalty, K - 1)
    return _costs(problem, sums, counts)[z] - torch.where(alone, -price, rest)


def _joining(state: LabelDescent, problem: Problem, rows: Tensor, other: Tensor, copies: Tensor) -> Tensor:
    """What the mixture costs more [M] if rows [M, D] with weights `copies` [M] join components `other` [M]."""
    sums, counts = component_sums(problem.X, state.assignments, state.num_components, problem.data.weights)
    joined = _costs(problem, sums[other] + copies.unsqueeze(1) * rows, counts[other] + copies)
    return joined - _costs(problem, sums, counts)[other]


def _costs(problem: Problem, sums: Tensor, counts: Tensor) -> Tensor:
    """The cost of components [M] without their price and the base of their points, from sums and numbers of rows."""
    centers = problem.centers(sums, counts)
    return problem.divergences(sums, counts, centers) + problem.smoothing(centers)


def _losses(scores: Tensor, signs: Tensor, problem: LabelProblem) -> Tensor:
    """The losses [M] of labels with signs [M, C]; 0 for NaN."""
    losses = -problem.model.loss.log_factor(scores, signs)
    return losses.masked_fill(signs.isnan(), 0.0).sum(1).double()


def _dense(X: Rows) -> Tensor:
    return X.to_dense().double()


_WAYS = ((1.0, -1.0), (0.0, 1.0), (0.0, -1.0))  # explanations of an absence: (a, 2 b - 1)
_MOST_SWITCHES = 8
_MOST_STEPS = 10
_NUMBERS = 2**20
_NEGLIGIBLE = 1e-9
