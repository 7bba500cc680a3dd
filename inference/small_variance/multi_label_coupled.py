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
            state = switch_labels(state, ways(data), data, model, scale, generator)
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
    state: CoupledDescent, ways: list[Way], data: LabelData, model: BNMC, scale: float, generator: torch.Generator
) -> CoupledDescent:
    """The state with all absences of a label explained by the components alone, or by the classifier alone, and then
    everything fitted anew, wherever that lowers J: some labels are tried, in random order."""
    N, C = data.targets.shape
    state = _valued(state, data, model, scale)
    order = uniforms((C,), generator).argsort().tolist()
    for label in order[: min(_MOST_SWITCHES, _NUMBERS // (N * C))]:
        for way in ways[1:]:
            proposal = refit(way.taken(state, label), data, model, scale)
            for _ in range(_ROUNDS):
                proposal = refit(explain(proposal, data, model, scale), data, model, scale)
                proposal = fit_classifiers(explain(proposal, data, model, scale, moves=False), data, model)
            proposal = _valued(proposal, data, model, scale)
            if proposal.objective < state.objective:
                state = proposal
    return state


# -- the blocks of a sweep ---------------------------------------------------------------------------------------------


def explain(state: CoupledDescent, data: LabelData, model: BNMC, scale: float, *, moves: bool = True) -> CoupledDescent:
    """The cheapest bits of every point, and with `moves` its cheapest component, the bits of each being cheapest."""
    (inputs, centers), (labels, shares) = model.family.own_centers(state.centers)
    means = labels.from_coordinates(shares)
    scores = data.features @ state.classifiers
    parts = []
    for rows in row_chunks(data.features, len(means) * data.targets.shape[1]):
        some, f, z = data.rows(rows), scores[rows], state.assignments[rows]
        costs = _bit_costs(some.targets, f, means, model, scale)
        if moves:
            total = costs.amin(0).sum(-1) + scale * inputs.divergence(inputs.coordinates(some.inputs.X), centers)
            z = total.argmin(1)
        own = costs[:, torch.arange(len(z), device=z.device), z]
        best = own.argmin(0)
        missing = some.targets.isnan()
        bits = (best == _ONLY_A).to(f) + (best == _BOTH).to(f)
        signs = torch.where((best == _ONLY_B) | (best == _BOTH), 1.0, -1.0).to(f)
        parts.append((z, bits.masked_fill(missing, torch.nan), signs.masked_fill(missing, torch.nan)))
    z, bits, signs = (torch.cat(values) for values in zip(*parts, strict=True))
    return replace(state, assignments=z, bits=bits, signs=signs).occupied()


def _bit_costs(targets: Tensor, scores: Tensor, means: Tensor, model: BNMC, scale: float) -> Tensor:
    """What the bits (0, 0), (0, 1), (1, 0), (1, 1) of labels cost, [4, N, K, C]: inf where they do not give y, and 0
    for a missing label."""
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


def _solve(data: LabelData, signs: Tensor, start: Tensor | None, model: BNMC) -> Any:
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
_MOST_SWITCHES = 8
_NUMBERS = 2**20
_ROUNDS = 1
