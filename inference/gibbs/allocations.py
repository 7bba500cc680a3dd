"""Assignments of points, or of the steps of sequences, and their prior, as sweeps and split-merge moves use them.

A move works on an *open* state: M places hold a set of classifiers each, with or without points. A split takes a free
place and a merge leaves one free. Components with classifiers of their own have one free place. An infinite model whose
components repel has K hyperplanes with points and A = M - K in the reservoir, so that

    p(z) = EPPF(n_1, ..., n_K) (M - K)! / M!

The factor (M - K)! accounts for the choice among the free places; M must not depend on K.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from ...models.data import Data
from ...models.mixture import Mixture
from ...models.priors.laws import Law
from ...models.sequence import Sequences, StateSpace
from ..distributed.collectives import all_sum
from ..posterior.draws import PartitionDraw, SequenceDraw
from .moves.sides import Sides
from .state import PartitionState

S = TypeVar("S", bound=PartitionState)
D = TypeVar("D", bound=Data | Sequences)
M = TypeVar("M", bound=Mixture | StateSpace)


class Allocation(ABC, Generic[S, D, M]):
    """The operations of a sweep on assignments. Every step has a component; points are the steps with an x.

    Attributes
    ----------
    state : class of the states of a chain
    scans : the updates of all assignments, by their names in `Gibbs.scan`
    unbounded : the name of a scan for infinitely many components that updates all assignments at once
    points : the points with an x, which likelihoods and classifiers see
    """

    state: ClassVar[type[PartitionState]]
    scans: ClassVar[dict[str, Callable[..., Any]]]
    unbounded: ClassVar[str]

    def __init__(self, law: Law, data: D) -> None:
        self.law, self.data, self.points = law, data, data.points

    # -- the kernel ----------------------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def quickest(data: D, model: M) -> str:
        """The name of the scan that "auto" selects."""

    @staticmethod
    def fused(scan: str, data: D, model: M) -> Callable[..., S] | None:
        """A scan that makes the split-merge moves as well, if there is one; it takes `num_moves`."""
        return None

    @abstractmethod
    def begin(self, labels: Tensor, model: M) -> S:
        """A state with assignments [N] and classifiers equal to 0."""

    @abstractmethod
    def tally(self, at: S) -> Tensor:
        """The counts [...] of this rank's assignments; the prior needs their sum over ranks."""

    @abstractmethod
    def log_density(self, at: S, tally: Tensor | None = None) -> Tensor:
        """log density [] of z, h and the prior's other variables, of a state that may be open.

        `tally` [...] is the sum over ranks; None: it is computed here.
        """

    @abstractmethod
    def draw_prior(self, state: S, generator: torch.Generator, tally: Tensor | None = None) -> S:
        """Draw the prior's variables given the assignments; `tally` [...] as in `log_density`."""

    @abstractmethod
    def relabel(self, state: S, generator: torch.Generator, tally: Tensor | None = None) -> S:
        """Propose swaps of component numbers, if the prior depends on them; `tally` [...] as in `log_density`."""

    @abstractmethod
    def kept(self, state: S, tally: Tensor, chi: Tensor, log_joint: Tensor) -> PartitionDraw | SequenceDraw:
        """The part of a state that a posterior keeps, except hyperparameters of the prior.

        chi [K, S] are the likelihood's posterior hyperparameters; `tally` [...] is the sum over ranks.
        """

    def proposes(self, model: M) -> bool:
        """Whether split-merge proposals come before a scan."""
        return True

    def empty_weights(self, labels: Tensor) -> Tensor:
        """Classifiers [K, P, C] equal to 0 for assignments [N]."""
        number = self.law.num_places(labels)
        return self.points.features.new_zeros(number, self.points.features.shape[1], self.points.targets.shape[1])

    # -- places of an open state ---------------------------------------------------------------------------------------

    def open(self, state: S) -> S:
        """Give the reserved hyperplanes, or one new set of classifiers, places of their own."""
        weights, reserved = state.weights, state.reservoir
        if reserved is not None:
            weights = torch.cat([weights, reserved.reshape(len(reserved), *weights.shape[1:])])
        elif self.law.alike:
            weights = torch.cat([weights, weights.new_zeros(1, *weights.shape[1:])])
        return replace(state, weights=weights, reservoir=None)

    def close(self, state: S, at: S) -> S:
        """Turn the open state `at` back into a state for the sweep; it was opened as `state`."""
        labels, kept = self.compact(at)
        left = None if state.reservoir is None else at.weights[~kept]
        return replace(at, assignments=labels, weights=at.weights[kept], reservoir=left)

    def counts(self, at: PartitionState) -> Tensor:
        """The number of steps [M] in each place."""
        return all_sum(torch.bincount(at.assignments, minlength=len(at.weights)))

    def free(self, at: S) -> Tensor:
        """The places [A] without steps."""
        return torch.nonzero(self.counts(at) == 0).squeeze(1)

    def compact(self, at: S) -> tuple[Tensor, Tensor]:
        """Assignments [N] renumbered among the places that the law keeps, and which places these are, bool [M]."""
        kept = self.law.kept(self.counts(at))
        return (kept.cumsum(0) - 1)[at.assignments], kept

    # -- divisions of a block ------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> Tensor:
        """The number of the point at each step [N]; -1 for a step without an x."""
        points = torch.arange(self.points.num_data, device=self.steps.device)
        return points.new_full((self.data.num_data,), -1).index_copy(0, self.steps, points)

    @cached_property
    def steps(self) -> Tensor:
        """The step of each point, [number of points]."""
        return torch.arange(self.data.num_data, device=self.data.X.device)

    def sides(self, steps: Tensor, *, persistent: bool) -> Sides:
        """The law that puts the steps [B] of a block on two sides."""
        return Sides()

    def draw_share(self, side: Tensor, generator: torch.Generator) -> float:
        """Draw the first side's share of the prior's variable of a block for sides [B]; points have none."""
        return 0.0

    def share(self, at: S, first: int, second: int) -> float:
        """The first block's share of the prior's variable of two blocks."""
        return 0.0

    def divide(self, joined: S, steps: Tensor, first: int, second: int, share: float) -> S:
        """Move steps [B] of the block in place `first` to place `second`."""
        return replace(joined, assignments=joined.assignments.index_fill(0, steps, second))

    def join(self, at: S, first: int, second: int, generator: torch.Generator) -> S:
        """Move all steps of the block in place `second` to place `first`."""
        return replace(at, assignments=torch.where(at.assignments == second, first, at.assignments))

    @abstractmethod
    def log_divisions(self, joined: S, side: Tensor, steps: Tensor, first: int, places: Tensor, share: float) -> Tensor:
        """log of p(z') / p(z) [A], minus the log density of the share, for a division of the block in `first`.

        `side` [B] is the division; p(z') is that of the second side in each of the free `places` [A].
        """
