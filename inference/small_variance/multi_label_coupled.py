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

from ...models.bnmc import BNMC
from ...models.data import Data
from ...models.distributions.sampling import uniforms
from ...models.label_data import LabelData
from ...models.likelihoods.product import join_columns
from ...models.sparse import Rows, SparseRows
from ...models.sums import row_chunks
from ..collectives import all_sum
from ..duals import solve
from ..engine import Draw, Kernel
from ..label_draws import label_draw
from . import descent, partition
from .assignment import component_sums
from .backend import SmallVariance
from .problem import Problem
from .state import Descent


@dataclass(frozen=True, kw_only=True)
class CoupledDescent(Descent):
    """A descent of the mixture of (x, a), beside the classifiers of b; `objective` is J."""

    bits: Tensor  # [N, C] a, NaN where a label is missing
    signs: Tensor  # [N, C] 2 b - 1, NaN where a label is missing
    classifiers: Tensor  # [P, C]
    tilt: Tensor  # [N, C] of the duals, which starts their next solution


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
        return _valued(state, data, model, scale)

    return Kernel(CoupledDescent, init, sweep, value=lambda state, data, model: state.objective, draw=draw)


# -- all bits of a label -----------------------------------------------------------------------------------------------


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
        found = _solve(data, signs, None, model)
        return cls(bits, signs, found.weights, found.tilt)

    def taken(self, state: CoupledDescent, label: int) -> CoupledDescent:
        """A state with these bits, and this classifier, of a label; J is not up to date."""
        columns = {}
        for item in fields(self):
            column = columns[item.name] = getattr(state, item.name).clone()
            column[:, label] = getattr(self, item.name)[:, label]
        return replace(state, **columns)


def switch_labels(
    state: CoupledDescent, data: LabelData, model: BNMC, scale: float, generator: torch.Generator
) -> CoupledDescent:
    """The state with absences of a label explained in another way, those of one component or of all, wherever that
    lowers J at these assignments: some such moves, in random order."""
    (N, C), K = data.targets.shape, state.num_components
    state, order = _valued(state, data, model, scale), uniforms((C * (K + 1),), generator).argsort().tolist()
    least = _label_cost(state, data, model, scale)
    for place in order[: min(_MOST_SWITCHES, _NUMBERS // (N * C))]:
        label, component = divmod(place, K + 1)
        moved = (data.targets[:, label] < 0) & ((state.assignments == component) | (component == K))
        for a, b in _WAYS:
            if not all_sum((moved & ((state.bits[:, label] != a) | (state.signs[:, label] != b))).sum()):
                continue
            proposal = _switched(state, moved, label, (a, b), data, model, scale)
            cost = _label_cost(proposal, data, model, scale)
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
    """These bits (a, 2 b - 1) of a label for some points [N]; its classifier, its cheapest bits, its classifier again."""
    a, b, own = state.bits.clone(), state.signs.clone(), slice(label, label + 1)
    a[moved, label], b[moved, label] = bits
    state = _fit_label(replace(state, bits=a, signs=b), own, data, model)
    before, scores = b.clone(), data.features @ state.classifiers[:, own]
    means = _label_means(state, data, model)[state.assignments]
    a[:, own], b[:, own] = _cheapest_bits(data.targets[:, own], scores, means[:, own], model, scale)
    changed = all_sum((b.nan_to_num() != before.nan_to_num()).sum())
    return _fit_label(state, own, data, model) if changed else state


def _fit_label(state: CoupledDescent, own: slice, data: LabelData, model: BNMC) -> CoupledDescent:
    """The SVM of a label at its bits."""
    found, weights, tilt = (
        _solve(data, state.signs, state.tilt, model, own),
        state.classifiers.clone(),
        state.tilt.clone(),
    )
    weights[:, own], tilt[:, own] = found.weights, found.tilt
    return replace(state, classifiers=weights, tilt=tilt)


# -- single points -----------------------------------------------------------------------------------------------------


def step_points(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> CoupledDescent:
    """The state after the moves of single points that lower J most, with the centres that they leave and join."""
    for _ in range(_MOST_STEPS):
        if state.num_components * data.num_data * (data.inputs.X.shape[1] + data.targets.shape[1]) > _NUMBERS:
            return state
        moved = _stepped(state, data, model, scale)
        if moved.objective >= state.objective - _NEGLIGIBLE * state.objective.abs():
            return state
        state = moved
    return state


def _stepped(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> CoupledDescent:
    """The best move of one point to another component, with the bits that are the cheapest at that one's centre."""
    (N, C), K, z = data.targets.shape, state.num_components, state.assignments
    problem, scores = problem_of(state, data, model, scale), data.features @ state.classifiers
    point, other = torch.cartesian_prod(torch.arange(N, device=z.device), torch.arange(K, device=z.device)).T
    means = _label_means(state, data, model)
    bits, signs = _cheapest_bits(data.targets[point], scores[point], means[other], model, scale)
    moved = _dense(problem.likelihood.coordinates(join_columns([data.inputs.X[point], bits]))).double()
    rows = _dense(problem.X).double()
    sums, counts = component_sums(problem.X, z, K, data.weights)
    each = counts.new_ones(N) if data.weights is None else data.weights.to(counts)
    present, copies = _component_costs(problem, sums, counts), each[point]
    joined = _component_costs(problem, sums[other] + copies.unsqueeze(1) * moved, counts[other] + copies)
    left = _component_costs(problem, sums[z] - each.unsqueeze(1) * rows, counts[z] - each)
    alone = torch.bincount(z, minlength=K)[z] == 1
    left = torch.where(alone, -problem.next_price(state.penalty, K - 1), left)
    margins = [
        -model.loss.log_factor(scores[index], own) for index, own in ((point, signs), (slice(None), state.signs))
    ]
    there, here = (margin.masked_fill(own.isnan(), 0.0).sum(1) for margin, own in zip(margins, (signs, state.signs)))
    change = joined - present[other] + (left - present[z] - each * here)[point] + copies * there
    change = change.masked_fill(other == z[point], torch.inf)
    best = int(change.argmin())
    n = point[best]
    a, b, z = state.bits.clone(), state.signs.clone(), z.clone()
    a[n], b[n], z[n] = bits[best], signs[best], other[best]
    return refit(replace(state, assignments=z, bits=a, signs=b).occupied(), data, model, scale)


def _component_costs(problem: Problem, sums: Tensor, counts: Tensor) -> Tensor:
    """What components [M] cost beside their price and the base of their points, by sums and numbers of rows."""
    centers = problem.centers(sums, counts)
    return problem.divergences(sums, counts, centers) + problem.smoothing(centers)


def _dense(X: Rows) -> Tensor:
    return X.dense() if isinstance(X, SparseRows) else X


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
        parts.append((z, *_cheapest_bits(some.targets, f, means[z], model, scale)))
    z, bits, signs = (torch.cat(values) for values in zip(*parts, strict=True))
    return replace(state, assignments=z, bits=bits, signs=signs).occupied()


def _cheapest_bits(targets: Tensor, scores: Tensor, means: Tensor, model: BNMC, scale: float) -> tuple[Tensor, Tensor]:
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
    found = _solve(data, state.signs, state.tilt, model)
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
    return _valued(replace(state, centers=problem.centers(*sums)), data, model, scale)


def _valued(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> CoupledDescent:
    mixture = descent.objective(problem_of(state, data, model, scale), state)
    return replace(state, objective=mixture + margin_cost(state.classifiers, state, data, model).sum())


def _label_means(state: CoupledDescent, data: LabelData, model: BNMC) -> Tensor:
    """The best shares psi [K, C] of the bits a."""
    family = model.label_likelihood
    return family.from_coordinates(family.centers(*_label_sums(state, data, model)))


def _label_sums(state: CoupledDescent, data: LabelData, model: BNMC) -> tuple[Tensor, Tensor]:
    """Sums [K, .] of the bits a in coordinates and numbers of rows [K], with the pseudo-observation."""
    (row, weight), rows = model.label_likelihood.pseudo_observation(), model.label_likelihood.coordinates(state.bits)
    sums, counts = component_sums(rows, state.assignments, state.num_components, data.weights)
    return (sums, counts) if row is None else (sums + weight * row, counts + weight)


def _label_cost(state: CoupledDescent, data: LabelData, model: BNMC, scale: float) -> Tensor:
    """What depends on bits and classifiers in J at given assignments, []."""
    family, (sums, counts) = model.label_likelihood, _label_sums(state, data, model)
    slope, offset = family.divergence_terms(family.centers(sums, counts))
    shares = (counts * offset).sum() - (sums * slope).sum()
    return scale * shares + margin_cost(state.classifiers, state, data, model).sum()


def _solve(
    data: LabelData,
    signs: Tensor,
    start: Tensor | None,
    model: BNMC,
    own: slice = slice(None),  # noqa: B008
) -> Any:
    return solve(
        data.features,
        signs[:, own],
        model.loss,
        model.weight_scale,
        row_weights=data.weights,
        start=None if start is None else start[:, own],
        tolerance=_TOLERANCE,
    )


_WAYS = ((1.0, -1.0), (0.0, 1.0), (0.0, -1.0))  # to explain an absence: a and 2 b - 1
_ONLY_B, _ONLY_A, _BOTH = 1, 2, 3  # places of the bits (a, b)
_TOLERANCE = 1e-4
_MOST_SWITCHES = 8
_MOST_STEPS = 10
_NUMBERS = 2**20
_NEGLIGIBLE = 1e-9
