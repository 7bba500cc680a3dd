"""The small-variance limit of tasks that share a binary projection.

    F = s sum_n |x_n - offset - Z w_n|^2 + r sum_n |w_n|^2 + Lambda(K)
        + sum_m |eta_m|^2 / (2 nu^2) - sum_nm log phi(y_nm | f_nm)

s = `scale` / (2 noise variance), r = 1 / (2 loading variance); the first two sums are absent without a likelihood. The
loadings are a ridge regression, so that the first line is a function of Z and of X^T X. A sweep updates the bits one
after another, at fixed loadings and classifiers, and removes empty features. Then it fits each classifier as a support
vector machine. Then it proposes a feature suggested by the residuals or by the tilts of the margins, and the removal of
a feature. Nothing raises F.

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
    """A descent: D dimensions have bits, M tasks have classifiers [K + P, M], and rows have tilts [N, M]."""

    tilt: OfRows
    grows: bool = True  # whether the last search for a new feature found one
    settled: bool = False  # the last sweep changed little: the next one tries to add and to remove a feature


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
        """The problem of a resolved model, with s = scale / (2 noise variance)."""
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
        """The map [D, K] that gives the best loadings, w_n = map^T (x_n - offset)."""
        Z = features.double()
        matrix = self.attraction * Z.T @ Z
        matrix.diagonal().add_(self.ridge)
        return self.attraction * torch.cholesky_solve(Z.T, safe_cholesky(matrix)).T

    def reconstruction(self, features: Tensor) -> Tensor:
        """The first two sums of F, [], at the best loadings."""
        cross = (self.outer @ self.loading_map(features) * features.double()).sum()
        return self.attraction * (self.outer.trace() - cross)

    def margins(self, features: Tensor) -> Scored:
        """The known pairs of rows and tasks that the classifiers of features [D, K] score."""
        return task_margins(self.data, self.model, features)

    def objective(self, state: Projection, margin: Tensor | None = None) -> Tensor:
        """The objective F []; `margin` [] is the classifiers' cost (None: it is computed)."""
        if margin is None:
            margin = self.margins(state.features).value(state.weights.T.unsqueeze(2)).sum()
        return self.reconstruction(state.features) + margin + self.price(state.penalty, state.num_features)


def check(backend: SmallVariance, model: MultiTaskInfiniteLatentSVM) -> None:
    """Nothing to check: every loss and linear likelihood has a small-variance limit."""


def row_cost(model: MultiTaskInfiniteLatentSVM) -> int:
    """The cost of a row, in rows of a mixture: there is a classifier for each task."""
    return 2


def alone(backend: SmallVariance, model: MultiTaskInfiniteLatentSVM) -> str:
    """Return "": ranks can share the rows."""
    return ""


def kernel(backend: SmallVariance, model: MultiTaskInfiniteLatentSVM) -> Kernel:
    """The kernel of a resolved model."""
    return kernel_of(Projection, partial(ProjectionRestarts.of, backend))


@dataclass(frozen=True, eq=False)
class ProjectionRestarts(PricedRestarts[Problem, Projection]):
    """Restarts of a shared projection: the first without features, the others from random bits."""

    @classmethod
    def of(cls, backend: SmallVariance, model: MultiTaskInfiniteLatentSVM, data: TaskData) -> Self:
        """The restarts of a resolved model."""
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
    """A state without features."""
    data, X = problem.data, problem.data.X
    none, weights = X.new_zeros(X.shape[1], 0), X.new_zeros(data.inputs.shape[1], data.num_tasks)
    zero = X.new_zeros((), dtype=torch.float64)
    tilt = torch.zeros_like(data.targets)
    return fit_weights(Projection(none, weights, tilt, X.new_tensor(penalty), zero), problem)


def scattered(problem: Problem, penalty: float, num_features: int, generator: torch.Generator) -> Projection:
    """A state with up to `num_features` features of random bits: the start of later restarts."""
    state, D = start(problem, penalty), problem.data.X.shape[1]
    number = int(torch.randint(1, num_features + 1, (), generator=generator, device=generator.device))
    for column in (uniforms((D, number), generator) < 0.5).T:
        state = state.with_column(column)
    return fit_weights(state.occupied(), problem)


def penalty_for(problem: Problem, num_features: int, generator: torch.Generator) -> float:
    """Half of the gain of the last of `num_features` features, which are added one after another without a price."""
    state, gain = start(problem, 0.0), 0.0
    for _ in range(num_features):
        grown = grow(state, problem, generator)
        if grown.objective >= state.objective:
            break
        state, gain = grown, float(state.objective - grown.objective)
    return max(gain / 2, 1e-6 * float(start(problem, 0.0).objective), _TINY)


def sweep(state: Projection, problem: Problem, generator: torch.Generator, tolerance: float) -> Projection:
    """Update bits and classifiers; propose to add a feature, and to remove one.

    If no feature was added, the next proposals follow once the descent has settled.
    """
    before, state = state, fit_weights(set_bits(state, problem), problem)
    found, searched = replace(state, grows=False), before.grows or before.settled
    state = found
    if searched:
        grown = grow(found, problem, generator)
        state = shrink(replace(grown, grows=True) if grown.objective < found.objective else found, problem)
    little = state is found and changed_little(before, state, tolerance)
    return replace(state, settled=little, converged=little and searched)


def set_bits(state: Projection, problem: Problem) -> Projection:
    """Set each bit to its cheaper value, given loadings and classifiers; remove empty features. F is not updated."""
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
    """Improve the classifiers of all tasks, and compute the tilt of each known pair."""
    margins, data = problem.margins(state.features), problem.data
    tilt = state.tilt[data.rows, data.tasks]
    start = estimate(margins, state.weights.T.unsqueeze(2), tilt.unsqueeze(1))
    fit = minimum(margins, start, DualLimits(_GAP, max_passes), _STEPS)
    tilt = fit.tilt if has_quick_dual(margins) else slopes(margins.loss, fit.scores, margins.targets)
    state = replace(state, weights=fit.weights.squeeze(2).T.contiguous(), tilt=data.by_task(tilt.squeeze(1)))
    return replace(state, objective=problem.objective(state, fit.cost.sum()))


def grow(state: Projection, problem: Problem, generator: torch.Generator) -> Projection:
    """The best of some states with one more feature, with bits and classifiers fitted again."""
    columns = proposals(state, problem, generator)
    grown = [fit_weights(state.with_column(column), problem, _FEW_PASSES) for column in columns]
    best = min(grown, key=lambda other: float(other.objective), default=state)
    return fit_weights(set_bits(best, problem), problem)


def proposals(state: Projection, problem: Problem, generator: torch.Generator) -> list[Tensor]:
    """Columns [D] bool for a new feature: residuals taken as loadings, and directions in which the tilts agree.

    A column z with weights eta initially lowers the cost by sum_m eta_m z^T g_m, g_m = sum_n t_nm x_n.
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
        gains = s * (2 * share * residual - share**2 * own)  # of each dimension [D], for each residual [D]
        found += _most(gains > 0, gains.relu().sum(0) - problem.ridge * share**2 * own, generator)
    return found


def _most(columns: Tensor, value: Tensor, generator: torch.Generator) -> list[Tensor]:
    """The columns [D, J] of highest value [J], with random perturbations that differ between restarts."""
    value = value * (1 + uniforms((len(value),), generator)) / 2
    best = value.topk(min(_NUM_PROPOSALS, len(value))).indices
    return [column for column in columns[:, best].T if bool(column.any())]


def shrink(state: Projection, problem: Problem) -> Projection:
    """Remove the feature of the smallest weights, if that lowers F."""
    K = state.num_features
    if not K:
        return state
    other = state.without(state.weights[:K].square().sum(1).argmin())
    other = fit_weights(other, problem)  # with all passes, or an unconverged cost would keep the feature
    return other if other.objective < state.objective else state


_GAP = 1e-3
_STEPS = 40  # if there is no dual
_FEW_PASSES = 20  # for comparing proposals
_NUM_DIRECTIONS = 3
_NUM_PROPOSALS = 2  # of each kind
_TINY = 1e-12
