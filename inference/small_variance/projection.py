"""The small-variance limit of tasks that share a binary projection: bits that are kept where they pay.

    F = s sum_n |x_n - offset - Z w_n|^2 + r sum_n |w_n|^2 + Lambda(K)
        + sum_m |eta_m|^2 / (2 nu^2) - sum_nm log phi(y_nm | f_nm)

s = `scale` / (2 noise variance), r = 1 / (2 loading variance); the first two sums are there with a likelihood alone.
The loadings are a ridge regression, so that the first line is a function of Z and of X^T X. A sweep has the bits, one
after another, at fixed loadings and classifiers; empty features leave; then each classifier is a support vector
machine; then a feature is proposed that the residuals, or the tilts of the margins, call for, and one to drop. Nothing
raises F.

Source: docs/derivations/latent-features, "Small-variance limit" and "Tasks" (BP-means: Broderick, Kulis & Jordan 2013).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from ...models.distributions.sampling import uniforms
from ...models.linalg import safe_cholesky
from ...models.mt_ilsvm import MultiTaskInfiniteLatentSVM
from ...models.multi_task import TaskData
from ..bits.shared_projection import Generative, Margins, task_margins
from ..classifiers.minimum import DualLimits, estimate, has_quick_dual, minimum, slopes
from ..classifiers.scored import Scored
from ..distributed.collectives import all_sum
from ..posterior.draws import ProjectionDraw, drawn
from ..running.chains import OfRows
from ..running.engine import Draw, Kernel
from .backend import SmallVariance
from .binary import BinaryDescent
from .restarts import Priced, PricedRestarts, changed_little, kernel_of


@dataclass(frozen=True)
class Projection(BinaryDescent):
    """A descent: D dimensions have the bits, M tasks the classifiers [K + P, M], rows the tilts [N, M]."""

    tilt: OfRows
    grows: bool = True  # the last search for a new feature found one
    settled: bool = False  # the last sweep changed little: try to add and to drop a feature in the next one


@dataclass(frozen=True, eq=False)
class Problem(Priced):
    """The objective of a model on its data."""

    model: MultiTaskInfiniteLatentSVM
    data: TaskData
    outer: Tensor  # [D, D] float64, sum_n (x_n - offset)(x_n - offset)^T; 0 without a likelihood
    attraction: float  # s
    ridge: float  # r

    @classmethod
    def of(cls, model: MultiTaskInfiniteLatentSVM, data: TaskData, scale: float) -> Problem:
        """The problem with s = scale / (2 noise variance)."""
        likelihood = model.likelihood
        if likelihood is None:
            D = data.X.shape[1]
            return cls(model, data, data.X.new_zeros(D, D, dtype=torch.float64), 0.0, 1.0)
        centred, start = (data.X - likelihood.offset).double(), likelihood.start(data.X)
        half = {name: float(value) / 2 for name, value in start.items()}
        return cls(
            model, data, all_sum(centred.T @ centred), scale * half["noise_precision"], half["loading_precision"]
        )

    def loading_map(self, features: Tensor) -> Tensor:
        """[D, K]: the best loadings are w_n = map^T (x_n - offset)."""
        Z = features.double()
        matrix = self.attraction * Z.T @ Z
        matrix.diagonal().add_(self.ridge)
        return self.attraction * torch.cholesky_solve(Z.T, safe_cholesky(matrix)).T

    def reconstruction(self, features: Tensor) -> Tensor:
        """The first two sums [] at the best loadings."""
        cross = (self.outer @ self.loading_map(features) * features.double()).sum()
        return self.attraction * (self.outer.trace() - cross)

    def margins(self, features: Tensor) -> Scored:
        """What classifiers of features [D, K] cost."""
        return task_margins(self.data, self.model, features)

    def objective(self, state: Projection, margin: Tensor | None = None) -> Tensor:
        """F []; `margin` [] is what its classifiers cost, None: not known."""
        if margin is None:
            margin = self.margins(state.features).value(state.weights.T.unsqueeze(2)).sum()
        return self.reconstruction(state.features) + margin + self.price(state.penalty, state.num_features)


def check(backend: SmallVariance, model: MultiTaskInfiniteLatentSVM) -> None:
    """Every loss and linear likelihood has a small-variance limit."""


def row_cost(model: MultiTaskInfiniteLatentSVM) -> int:
    """In rows of a mixture, which have one classifier, not one for each task."""
    return 2


def alone(backend: SmallVariance, model: MultiTaskInfiniteLatentSVM) -> str:
    """Ranks may have rows each."""
    return ""


def kernel(backend: SmallVariance, model: MultiTaskInfiniteLatentSVM) -> Kernel:
    """The descent for a resolved model."""
    return kernel_of(Projection, partial(ProjectionRestarts.of, backend))


@dataclass(frozen=True, eq=False)
class ProjectionRestarts(PricedRestarts[Problem, Projection]):
    """Restarts of a shared projection: from no feature at all, then from random bits."""

    @classmethod
    def of(cls, backend: SmallVariance, model: MultiTaskInfiniteLatentSVM, data: TaskData) -> Self:
        """Those of a resolved model."""
        return cls(backend, Problem.of(model, data, backend.scale))

    def natural_penalty(self, generator: torch.Generator) -> float:
        return penalty_for(self.problem, self.backend.num_components, generator)

    def first(self, generator: torch.Generator) -> Projection:
        return start(self.problem, self.penalty)

    def scattered(self, generator: torch.Generator) -> Projection:
        return scattered(self.problem, self.penalty, self.backend.num_components, generator)

    def sweep(self, state: Projection, generator: torch.Generator) -> Projection:
        return sweep(state, self.problem, generator, self.backend.tolerance)

    def draw(self, state: Projection) -> Draw:
        K, X, model = state.num_features, self.problem.data.X, self.problem.model
        start = model.prior.start(X) | ({} if model.likelihood is None else model.likelihood.start(X))
        return drawn(
            ProjectionDraw(
                features=state.features.to(torch.int8),
                weights=state.weights[:K].contiguous(),
                input_weights=state.weights[K:].contiguous(),
                penalty=state.penalty,
            ),
            {name: value.to(X.dtype) for name, value in start.items()},
        )


def start(problem: Problem, penalty: float) -> Projection:
    """No feature at all."""
    data, X = problem.data, problem.data.X
    none, weights = X.new_zeros(X.shape[1], 0), X.new_zeros(data.inputs.shape[1], data.num_tasks)
    zero = X.new_zeros((), dtype=torch.float64)
    tilt = torch.zeros_like(data.targets)
    return fit_weights(Projection(none, weights, tilt, X.new_tensor(penalty), zero), problem)


def scattered(problem: Problem, penalty: float, num_features: int, generator: torch.Generator) -> Projection:
    """Up to so many features of random bits: what later restarts start from."""
    state, D = start(problem, penalty), problem.data.X.shape[1]
    number = int(torch.randint(1, num_features + 1, (), generator=generator, device=generator.device))
    for column in (uniforms((D, number), generator) < 0.5).T:
        state = state.with_column(column)
    return fit_weights(state.occupied(), problem)


def penalty_for(problem: Problem, num_features: int, generator: torch.Generator) -> float:
    """Half of what the last of so many features brings, added one after another without a cost."""
    state, gain = start(problem, 0.0), 0.0
    for _ in range(num_features):
        grown = grow(state, problem, generator)
        if grown.objective >= state.objective:
            break
        state, gain = grown, float(state.objective - grown.objective)
    return max(gain / 2, 1e-6 * float(start(problem, 0.0).objective), _TINY)


def sweep(state: Projection, problem: Problem, generator: torch.Generator, tolerance: float) -> Projection:
    """Bits, classifiers, a proposal to add a feature, one to drop a feature; where nothing is added the next proposals
    come once the descent has settled."""
    before, state = state, fit_weights(set_bits(state, problem), problem)
    found, searched = replace(state, grows=False), before.grows or before.settled
    state = found
    if searched:
        grown = grow(found, problem, generator)
        state = shrink(replace(grown, grows=True) if grown.objective < found.objective else found, problem)
    little = state is found and changed_little(before, state, tolerance)
    return replace(state, settled=little, converged=little and searched)


def set_bits(state: Projection, problem: Problem) -> Projection:
    """Each bit at its cheaper value, given loadings and classifiers; features that no dimension has left leave. The
    objective is not up to date."""
    features, data, K = state.features, problem.data, state.num_features
    if not K:
        return state
    loadings, twice = problem.loading_map(features), 2 * problem.attraction
    seen = problem.outer @ loadings
    generative = Generative(seen.new_zeros(K), twice * seen, twice * (loadings.T @ seen))
    margins = Margins(data, problem.model.loss, state.weights[:K])
    levels = features.new_zeros(features.shape, dtype=torch.float64)
    features = margins.set_bits(features, levels, generative, data.pair_scores(data.X @ features, state.weights))
    return replace(state, features=features).occupied()


def fit_weights(state: Projection, problem: Problem, max_passes: int = 100) -> Projection:
    """Better classifiers of all tasks, and how hard each pair pulls at its own."""
    margins, data = problem.margins(state.features), problem.data
    tilt = state.tilt[data.rows, data.tasks]
    start = estimate(margins, state.weights.T.unsqueeze(2), tilt.unsqueeze(1))
    fit = minimum(margins, start, DualLimits(_GAP, max_passes), _STEPS)
    tilt = fit.tilt if has_quick_dual(margins) else slopes(margins.loss, fit.scores, margins.targets)
    state = replace(state, weights=fit.weights.squeeze(2).T.contiguous(), tilt=data.by_task(tilt.squeeze(1)))
    return replace(state, objective=problem.objective(state, fit.cost.sum()))


def grow(state: Projection, problem: Problem, generator: torch.Generator) -> Projection:
    """The best of some states with one more feature, after bits and classifiers have been fitted again."""
    columns = proposals(state, problem, generator)
    grown = [fit_weights(state.with_column(column), problem, _FEW_PASSES) for column in columns]
    best = min(grown, key=lambda other: float(other.objective), default=state)
    return fit_weights(set_bits(best, problem), problem)


def proposals(state: Projection, problem: Problem, generator: torch.Generator) -> list[Tensor]:
    """Columns [D] bool: where a residual, taken for loadings, explains others; and where the tilts pull the same way.

    A column z with weights eta lowers the cost at first by sum_m eta_m z^T g_m, g_m = sum_n t_nm x_n.
    """
    data, s = problem.data, problem.attraction
    pull = all_sum(data.X.T @ state.tilt).double()
    lead = torch.linalg.svd(pull, full_matrices=False).U[:, :_NUM_DIRECTIONS]
    columns = torch.cat([pull, -pull, lead, -lead], 1) > 0
    value = (problem.model.weight_scale * columns.double().T @ pull).square().sum(1) / 2
    found = _most(columns, value, generator)
    if s:
        rest = torch.eye(len(pull), dtype=pull.dtype, device=pull.device)
        rest = rest - state.features.double() @ problem.loading_map(state.features).T
        residual, share = rest @ problem.outer @ rest.T, s / (s + problem.ridge)
        own = residual.diagonal()
        gains = s * (2 * share * residual - share**2 * own)  # of the dimensions [D], for each residual [D]
        found += _most(gains > 0, gains.relu().sum(0) - problem.ridge * share**2 * own, generator)
    return found


def _most(columns: Tensor, value: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Some of the columns [D, J] of the highest value [J]; restarts see them in other orders."""
    value = value * (1 + uniforms((len(value),), generator)) / 2
    best = value.topk(min(_NUM_PROPOSALS, len(value))).indices
    return [column for column in columns[:, best].T if bool(column.any())]


def shrink(state: Projection, problem: Problem) -> Projection:
    """The state without the feature of the smallest weights, if that is lower."""
    K = state.num_features
    if not K:
        return state
    other = state.without(state.weights[:K].square().sum(1).argmin())
    other = fit_weights(other, problem)  # with all passes: a cost that is not at its least would keep the feature
    return other if other.objective < state.objective else state


_GAP = 1e-3
_STEPS = 40  # where there is no dual
_FEW_PASSES = 20  # to compare proposals
_NUM_DIRECTIONS = 3
_NUM_PROPOSALS = 2  # of each kind that are tried
_TINY = 1e-12
