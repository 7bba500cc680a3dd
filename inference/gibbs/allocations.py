"""The labels of all points, or of all steps of sequences, over a law of z: what the kernel and its moves ask of them.

A move works on an *open* state, in which M places have a classifier each, whether they have points or not; a split
takes a free place, a merge leaves one. Components with classifiers of their own have one place more than there are
components. An infinite model whose components repel has K hyperplanes with points and A = M - K in reserve, so that

    p(z) = EPPF(n_1, ..., n_K) (M - K)! / M!

The factor (M - K)! makes up for the choice among the free places; M must not depend on K.
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
    """What labels are to a sweep. Steps have labels; points are the steps with an x.

    Attributes
    ----------
    state : what a chain goes on from
    scans : the updates of all labels, by the names that `Gibbs.scan` has for them
    unbounded : a scan of infinitely many components that moves all labels at once
    points : what families and classifiers see
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
        """The scan that "auto" stands for."""

    @staticmethod
    def fused(scan: str, data: D, model: M) -> Callable[..., S] | None:
        """A scan and its moves in one, if there is such code: it takes `num_moves` too."""
        return None

    @abstractmethod
    def begin(self, labels: Tensor, model: M) -> S:
        """A state with labels [N], classifiers at 0."""

    @abstractmethod
    def tally(self, at: S) -> Tensor:
        """The counts [...] of the labels of this rank; the prior needs their sum over all ranks."""

    @abstractmethod
    def log_density(self, at: S, tally: Tensor | None = None) -> Tensor:
        """log density [] of z, h and whatever the prior keeps for its components, of a state that may be open. `tally`
        [...] is that of all ranks; None: it is counted here."""

    @abstractmethod
    def draw_prior(self, state: S, generator: torch.Generator, tally: Tensor | None = None) -> S:
        """What the prior keeps, given the labels, whose tally [...] is as in `log_density`."""

    @abstractmethod
    def relabel(self, state: S, generator: torch.Generator, tally: Tensor | None = None) -> S:
        """Swaps of labels, where they have sticks of their own; their tally [...] is as in `log_density`."""

    @abstractmethod
    def kept(self, state: S, tally: Tensor, chi: Tensor, log_joint: Tensor) -> PartitionDraw | SequenceDraw:
        """What a posterior keeps of a state beside the hyperparameters. chi [K, S] are the family's, and the tally
        [...] is that of all ranks."""

    def proposes(self, model: M) -> bool:
        """Whether split-merge proposals come before a scan."""
        return True

    def empty_weights(self, labels: Tensor) -> Tensor:
        """Classifiers [K, P, C] of 0 for labels [N]."""
        number = self.law.num_places(labels)
        return self.points.features.new_zeros(number, self.points.features.shape[1], self.points.targets.shape[1])

    # -- the places of an open state -----------------------------------------------------------------------------------

    def open(self, state: S) -> S:
        """The state with its reserved hyperplanes, or a new classifier, in places of their own."""
        weights, reserved = state.weights, state.reservoir
        if reserved is not None:
            weights = torch.cat([weights, reserved.reshape(len(reserved), *weights.shape[1:])])
        elif self.law.alike:
            weights = torch.cat([weights, weights.new_zeros(1, *weights.shape[1:])])
        return replace(state, weights=weights, reservoir=None)

    def close(self, state: S, at: S) -> S:
        """The open state `at`, that `state` was moved to, as a sweep goes on from it."""
        labels, kept = self.compact(at)
        left = None if state.reservoir is None else at.weights[~kept]
        return replace(at, assignments=labels, weights=at.weights[kept], reservoir=left)

    def counts(self, at: PartitionState) -> Tensor:
        """Numbers of steps [M] in the places."""
        return all_sum(torch.bincount(at.assignments, minlength=len(at.weights)))

    def free(self, at: S) -> Tensor:
        """The places [A] without steps."""
        return torch.nonzero(self.counts(at) == 0).squeeze(1)

    def compact(self, at: S) -> tuple[Tensor, Tensor]:
        """Labels [N] in the places that the law keeps, and which these are, bool [M]."""
        kept = self.law.kept(self.counts(at))
        return (kept.cumsum(0) - 1)[at.assignments], kept

    # -- divisions of a block ------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> Tensor:
        """The point of each step [N], -1: without."""
        points = torch.arange(self.points.num_data, device=self.steps.device)
        return points.new_full((self.data.num_data,), -1).index_copy(0, self.steps, points)

    @cached_property
    def steps(self) -> Tensor:
        """The step of each point [M]."""
        return torch.arange(self.data.num_data, device=self.data.X.device)

    def sides(self, steps: Tensor, *, persistent: bool) -> Sides:
        """How the steps [B] of a block are put on two sides."""
        return Sides()

    def draw_share(self, side: Tensor, generator: torch.Generator) -> float:
        """The first side's share of what the prior keeps for a block, drawn for the sides [B] of a split. Points keep
        nothing."""
        return 0.0

    def share(self, at: S, first: int, second: int) -> float:
        """The same of two blocks that there are."""
        return 0.0

    def divide(self, joined: S, steps: Tensor, first: int, second: int, share: float) -> S:
        """Some steps [B] of the block in the first place in a second one."""
        return replace(joined, assignments=joined.assignments.index_fill(0, steps, second))

    def join(self, at: S, first: int, second: int, generator: torch.Generator) -> S:
        """Two blocks in the place of the first."""
        return replace(at, assignments=torch.where(at.assignments == second, first, at.assignments))

    @abstractmethod
    def log_divisions(self, joined: S, side: Tensor, steps: Tensor, first: int, places: Tensor, share: float) -> Tensor:
        """log of p(z') / p(z) [A] of the block in the first place and its divisions [B], whose second side takes one of
        some free places [A], over the density of the shares."""
