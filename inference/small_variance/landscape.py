"""The objective of a descent of components that repel, or of states of sequences, including the cost of z's structure.

    J = scale sum_n D(x_n, mu_{z_n}) + sum_k [SVM_k(eta_k) - R0] + structure(z)

Here the points are exchangeable and structure(z) = Lambda(K); the subclass in `sequence` is for state sequences. A
model without hyperplanes has neither SVM_k nor R0 (docs/derivations/repelling, "Small-variance limit";
docs/derivations/sequences, "Small-variance limit").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Self

import torch
from torch import Tensor

from ...models.base import Model
from ...models.data import Data
from ...models.dpm import DPM
from ...models.priors import PartitionPrior
from ..distributed.collectives import all_sum
from ..running.engine import Draw
from .assignment import sums_later
from .hyperplanes import fit_hyperplanes, hyperplane_costs
from .problem import Problem
from .state import Descent, RepellingDescent


@dataclass(frozen=True)
class Landscape:
    """The objective for exchangeable points: all N points are observed (M = N)."""

    problem: Problem  # of the M observed points
    empty: Tensor  # [1, P, C] the cheapest hyperplane that rejects every point
    empty_cost: Tensor  # [1] R0

    @classmethod
    def of(cls, model: Model, data: Data, scale: float) -> Self:
        """The landscape of a resolved model."""
        return cls(Problem.of(model, data, scale), *_rejecting(data, model))

    # -- methods that depend on the structure --------------------------------------------------------------------------

    @property
    def prior(self) -> PartitionPrior:
        """The prior whose prices are used by the DP-means descents at the start of a fit."""
        prior: PartitionPrior = self.problem.model.prior
        return prior

    def observed(self, assignments: Tensor) -> Tensor:
        """Assignments [M] of the observed points, from those of all points [N]."""
        return assignments

    def places(self, index: Tensor) -> Tensor:
        """Indices in [N] of observed points with indices in [M]."""
        return index

    def completed(self, assignments: Tensor) -> Tensor:
        """Assignments [N] of all points, from those of the observed points [M]."""
        return assignments

    def cheapest(self, costs: Tensor, state: RepellingDescent, unused: float) -> Tensor:
        """The cheapest assignments [N], or cheaper ones than now, from the costs [M, K] of the observed points."""
        return costs.argmin(1)

    def saved(self, costs: Tensor, state: RepellingDescent) -> Tensor:
        """What points save, [] float64, if each goes to its cheapest component, from their costs [M, K].

        inf if transitions have prices too: the saving is then unknown.
        """
        own = costs.gather(1, self.observed(state.assignments).unsqueeze(1)).squeeze(1)
        return all_sum(self.problem.data.counted(own - costs.amin(1)).sum(dtype=torch.float64))

    def stepwise(self, state: RepellingDescent) -> Tensor:
        """Assignments [N] after moves of single points that lower J; here there are none after `cheapest`."""
        return state.assignments

    def structure_later(self, state: RepellingDescent) -> Callable[[], Tensor]:
        """A function that returns structure(z) [] float64; among ranks it joins the next exchange."""
        price = self.problem.model.prior.price(state.penalty.double(), state.num_components)
        return partial(torch.as_tensor, price, dtype=torch.float64, device=state.penalty.device)

    def natural_transition_penalty(self, start: Callable[[], Descent], plain: Problem) -> float:
        """The default penalty of a transition, from a descent of DP-means; 0 without transitions."""
        return 0.0

    # -- methods that do not -------------------------------------------------------------------------------------------

    def plain(self) -> Problem:
        """The problem without hyperplanes."""
        bare = self.problem.data.without_features()
        return Problem.of(DPM(self.problem.likelihood, self.prior), bare, self.problem.scale)

    def objective(self, state: RepellingDescent) -> Tensor:
        """The objective J of a state, [] float64."""
        problem, own = self.problem, self.observed(state.assignments)
        data = problem.data
        told = sums_later(problem.X, own, state.num_components, data.weights)
        structure = self.structure_later(state)
        costs = hyperplane_costs(data, own, state.weights, problem.model)
        return self.value(state, problem.divergences(*told(), state.centers), costs, structure())

    def value(self, state: RepellingDescent, divergences: Tensor, costs: Tensor, structure: Tensor) -> Tensor:
        """The objective J, [] float64, from divergences and SVM_k of the components, each [K], and structure(z)."""
        components = divergences + (costs - self.empty_cost) + self.problem.smoothing(state.centers)
        return components.sum() + self.total_base + structure

    @cached_property
    def total_base(self) -> Tensor:
        """The base of all points together, [] float64."""
        return self.problem.total_base

    def draw(self, state: RepellingDescent) -> Draw:
        """The draw that a posterior keeps of a state."""
        drawn = state.draw(self.problem.model, self.problem.data.weights)
        return drawn | {"scale": state.centers.new_tensor(self.problem.scale)}


def _rejecting(points: Data, model: Model) -> tuple[Tensor, Tensor]:
    """The cheapest hyperplane [1, P, C] that rejects every point, and its cost [1].

    The start is along the mean a of the features, or 0 if that costs less. As losses with a conjugate are convex, N
    loss(mean score) bounds their sum from below. For centred features, where a is the intercept alone, the best
    multiple of a therefore has the least cost R0 of all, and is returned.
    """
    features, (P, C) = points.features, (points.features.shape[1], points.targets.shape[1])
    nobody = torch.full((len(features),), -1, device=features.device)
    start, least = features.new_zeros(2, P, C), torch.zeros((), dtype=torch.float64)
    if start.numel():
        N = all_sum(points.counted(torch.ones_like(features[:, 0], dtype=torch.float64)).sum())
        mean = all_sum(points.counted(features).sum(0, dtype=torch.float64)) / N
        size = mean.square().sum().clamp(min=torch.finfo(mean.dtype).tiny)
        score, cost = model.loss.one_point(N * model.weight_scale**2 * size, size.new_tensor(-1.0))
        start[1, :, 0], least = (score / size * mean).to(start), N * cost
    costs = hyperplane_costs(points, nobody, start, model)
    best = costs.argmin().unsqueeze(0)
    if start.numel() and model.loss.has_conjugate and bool(costs[best] <= (1 + _EMPTY_GAP) * least):
        return start[best], costs[best]
    weights, cost, _ = fit_hyperplanes(points, nobody, start[best], model, _EMPTY_STEPS)
    return weights, cost


_EMPTY_STEPS, _EMPTY_GAP = 400, 1e-6
