"""The small-variance limit: DP-means and its kin, fast point estimates by descent on an explicit objective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..backend import Backend
from ..engine import Chain, Draw, Kernel, Schedule
from . import partition, repelling
from .partition import PartitionState
from .penalty import joint_penalty, single_penalty
from .problem import Problem

__all__ = ["SmallVariance"]


@dataclass(eq=False)
class SmallVariance(Backend):
    """Point estimates in the limit of vanishing variances: one partition, its centres and its classifiers.

        L = penalty K + sum_k |eta_k|^2 / (2 nu^2)
            + sum_n [scale D(x_n, mu_{z_n}) - log phi(y_n | eta_{z_n} . a_n)]

    is lowered in every step (Wang & Zhu 2014, equation (35); without classifiers it is DP-means). The Bregman
    divergence D is that of the likelihood, in units of its prior's expected covariance for a Gaussian.

    Parameters
    ----------
    penalty : cost of one more component; None: from `num_components`
    transition_penalty : for sequences, cost of one more kind of transition; None: what a step costs on average
    transition_weight : for sequences, weight of the log probabilities of transitions. 0: how often a transition is
        used does not matter, the plain limit; 1: as much as in the likelihood (Roychowdhury, Jiang & Kulis 2013)
    scale : weight of the divergence against the margin loss; the smaller, the more the labels decide the components
    num_components : number of components for which the penalty is chosen if it is None; the fit may find another
    tolerance : stop once a sweep lowers L by no more than this fraction (the paper's rule), moves no more than this
        fraction of the points, and no split or merge helps
    max_steps : most sweeps of a restart
    num_restarts : descents from different seeds; the lowest is kept
    merge : try to merge components whenever the descent has settled
    creation : "joint": a component opens where that pays for all points that would join it, so that L gets low; a
        sensible penalty then grows with the number of points. "single": only where it pays for one point alone, as in
        DP-means as published, where the penalty is a squared distance times scale / 2; L stays higher, but it
        finds small components beside large ones
    seed : of all randomness
    progress : a progress bar; None: on a terminal only

    References
    ----------
    Kulis & Jordan (2012); Wang & Zhu (2014).

    Examples
    --------
    >>> import torch
    >>> from regbayes.models import DPM
    >>> X = torch.cat([torch.zeros(5, 1), torch.ones(5, 1)])
    >>> SmallVariance(penalty=1.0).fit(DPM(), X).num_components
    2
    """

    structures: ClassVar[tuple[str, ...]] = ("partition", "sequence")
    value_name: ClassVar[str] = "objective"

    penalty: float | None = None
    transition_penalty: float | None = None
    transition_weight: float = 0.0
    scale: float = 1.0
    num_components: int = 8
    tolerance: float = 1e-3
    max_steps: int = 100
    num_restarts: int = 1
    merge: bool = True
    creation: str = "joint"
    seed: int = 0
    progress: bool | None = None

    def check(self, model: Any) -> None:
        if self.creation not in ("joint", "single"):
            raise ValueError(f"creation is {self.creation!r}; it must be 'joint' or 'single'.")
        positive = {"scale": self.scale}
        given = {"penalty": self.penalty, "transition_penalty": self.transition_penalty}
        positive |= {name: value for name, value in given.items() if value is not None}
        for name, value in positive.items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value!r}; it must be a positive number.")
        if not 0 <= self.transition_weight < float("inf"):
            raise ValueError(f"transition_weight is {self.transition_weight!r}; it must be 0 or a positive number.")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance is {self.tolerance!r}; it must be 0 or a positive number.")
        self.require_counts(num_components=1, max_steps=1, num_restarts=1)

    def kernel(self, model: Any) -> Kernel:
        if model.repels or model.structure == "sequence":
            return self._repelling_kernel(model)
        single = self.creation == "single"

        @cache
        def problem(data: Any) -> Problem:
            """The coordinates of the data, computed once in a fit."""
            return Problem.of(model, data, self.scale)

        @cache
        def penalty(data: Any) -> float:
            """The same one for all restarts, whose objectives are compared."""
            if self.penalty is not None:
                return self.penalty
            if single:
                return single_penalty(problem(data), self.num_components)
            generator = torch.Generator(data.X.device).manual_seed(self.seed)
            return joint_penalty(problem(data), self.num_components, generator)

        def init(model: Any, data: Any, generator: torch.Generator) -> PartitionState:
            return partition.init(problem(data), penalty(data))

        def sweep(state: PartitionState, data: Any, model: Any, generator: torch.Generator) -> PartitionState:
            options: dict[str, Any] = {"tolerance": self.tolerance, "merge": self.merge, "single": single}
            return partition.sweep(state, problem(data), generator, **options)

        return Kernel(PartitionState, init, sweep, value=lambda state, data, model: state.objective, draw=_draw)

    def _repelling_kernel(self, model: Any) -> Kernel:
        @cache
        def landscape(data: Any) -> repelling.Landscape:
            return repelling.Landscape.of(model, data, self.scale)

        def init(model: Any, data: Any, generator: torch.Generator) -> repelling.RepellingState:
            return repelling.init(landscape(data), self.penalty, self.transition_penalty, self, generator)

        def sweep(state: Any, data: Any, model: Any, generator: torch.Generator) -> repelling.RepellingState:
            options: dict[str, Any] = {"tolerance": self.tolerance, "merge": self.merge}
            return repelling.sweep(state, landscape(data), generator, **options)

        def draw(state: Any, data: Any, model: Any) -> dict[str, Tensor]:
            return _draw_repelling(state, landscape(data), model)

        return Kernel(repelling.RepellingState, init, sweep, lambda state, data, model: state.objective, draw)

    def schedule(self) -> Schedule:
        return Schedule(
            self.max_steps,
            self.num_restarts,
            stop=lambda chain: chain.state.converged,
            value_name=self.value_name,
            seed=self.seed,
            progress=self.progress,
        )

    def results(self, kernel: Kernel, model: Any, data: Any, chains: list[Chain]) -> list[list[Draw]]:
        best = min(chains, key=lambda chain: float(chain.state.objective))
        return [[kernel.draw(best.state, data, model)]]


def _draw(state: PartitionState, data: Any, model: Any) -> dict[str, Tensor]:
    X = data.X
    counts = torch.bincount(state.assignments, minlength=len(state.centers))
    return {
        "assignments": state.assignments,
        "centers": state.centers,
        "weights": state.weights,
        "log_mixture": torch.cat([(counts / data.num_data).to(X.dtype).log(), X.new_full((1,), -torch.inf)]),
        "concentration": X.new_tensor(model.concentration),
        "penalty": state.penalty,
    }


def _draw_repelling(state: repelling.RepellingState, landscape: repelling.Landscape, model: Any) -> dict[str, Tensor]:
    centers, K = state.centers, len(state.centers)
    counts = torch.bincount(state.assignments, minlength=K)
    none = centers.new_full((1,), -torch.inf)
    result = {
        "assignments": state.assignments,
        "centers": centers,
        "weights": state.weights,
        "log_mixture": torch.cat([(counts / counts.sum()).to(centers.dtype).log(), none]),
        "concentration": centers.new_tensor(model.concentration),
        "scale": centers.new_tensor(landscape.problem.scale),
        "penalty": state.penalty,
    }
    if landscape.sequences is not None:
        counts = landscape.transitions(state.assignments, K).to(centers.dtype)
        moves = counts + model.concentration / K  # the posterior mean of the rows where K states share alpha evenly
        log_rows = torch.cat([(moves / moves.sum(1, keepdim=True)).log(), none.expand(K + 1, 1)], 1)
        edges = repelling.log_edges(state, landscape).to(centers)
        result |= {
            "log_edges": torch.cat([edges, none.expand(K + 1, 1)], 1),
            "log_start": log_rows[K],
            "log_transitions": log_rows[:K],
            "top_concentration": centers.new_tensor(model.top_concentration),
            "transition_penalty": state.transition_penalty,
        }
    return result
