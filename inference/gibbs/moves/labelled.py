"""The blocks of a partition in labelled places, each of which has a hyperplane, whether it has points or not.

An infinite model whose components repel carries K hyperplanes with points and A = M - K in reserve. That makes M
places, of which a split fills one and a merge frees one:

    p(z) = EPPF(n_1, ..., n_K) (M - K)! / M!

and the moves are those of M labels that have sticks (`models.priors.laws`). The (M - K)! is what a choice among the A
reserved hyperplanes costs; M must not change with K.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ....models.priors.laws import Law
from ...distributed.collectives import all_sum
from .sides import Sides


@dataclass(frozen=True)
class Labelled:
    """Points, or the steps of sequences, in M places."""

    labels: Tensor  # [N] int64 in 0..M-1
    planes: Tensor  # [M, P, 1]

    def counts(self) -> Tensor:
        """Numbers of points [M]."""
        return all_sum(torch.bincount(self.labels, minlength=len(self.planes)))

    def free(self) -> Tensor:
        """The places [A] without points."""
        return torch.nonzero(self.counts() == 0).squeeze(1)

    def compact(self, law: Law) -> tuple[Tensor, Tensor]:
        """Labels [N] in the places that the law keeps, and which these are, bool [M]."""
        kept = law.kept(self.counts())
        return (kept.cumsum(0) - 1)[self.labels], kept


class LabelledPartitions:
    """What the moves ask of a structure whose components repel, here of partitions: steps are what has labels, points
    what has an x.

    Attributes
    ----------
    points : what families and hyperplanes see
    steps [M] : the step of each point;  rows [N] : the point of each step, -1: without
    """

    def __init__(self, state: Any, data: Any, law: Any) -> None:
        self.state, self.points, self.law = state, data, law
        self.steps = self.rows = torch.arange(data.num_data, device=data.X.device)

    def open(self) -> Any:
        """The state, its reserved hyperplanes in places of their own."""
        return Labelled(self.state.assignments, all_planes(self.state.weights, self.state.reservoir))

    def close(self, at: Any) -> Any:
        """The state that was reached."""
        labels, kept = at.compact(self.law)
        left = None if self.state.reservoir is None else at.planes[~kept]
        return replace(self.state, assignments=labels, weights=at.planes[kept], reservoir=left)

    def log_prior(self, at: Any) -> Tensor:
        """log p(z | h) [] up to a constant, and of what else the prior keeps for the places."""
        log_prior: Tensor = self.law.log_prior(at.counts().double(), self.state.hyper)
        return log_prior

    def sides(self, steps: Tensor, *, persistent: bool) -> Sides:
        """How the steps [B] of a block are put on two sides."""
        return Sides()

    def draw_share(self, side: Tensor, generator: torch.Generator) -> float:
        """The first side's share, from the sides [B] of a split, of what the prior keeps for the block: nothing."""
        return 0.0

    def share(self, at: Any, first: int, second: int) -> float:
        """The same of two blocks that there are."""
        return 0.0

    def divide(self, joined: Any, steps: Tensor, first: int, second: int, share: float) -> Any:
        """Some steps of the block in the first place in a second one."""
        return replace(joined, labels=joined.labels.index_fill(0, steps, second))

    def join(self, at: Any, first: int, second: int, generator: torch.Generator) -> Any:
        """Two blocks in the place of the first."""
        return replace(at, labels=torch.where(at.labels == second, first, at.labels))

    def log_divisions(
        self, joined: Any, side: Tensor, steps: Tensor, first: int, places: Tensor, share: float
    ) -> Tensor:
        """log of p(z') / p(z) [A] of the block in the first place and its divisions [B], whose second side takes one of
        some free places [A], over the density of the shares."""
        counts, moved = joined.counts().double(), all_sum(side.sum())
        divided = counts.expand(len(places), -1).scatter(1, places.unsqueeze(1), moved.double().expand(len(places), 1))
        divided[:, first] -= moved
        log_prior: Tensor = self.law.log_prior(divided, self.state.hyper)
        return log_prior - self.law.log_prior(counts, self.state.hyper)


def all_planes(weights: Tensor, reservoir: Tensor | None) -> Tensor:
    """Hyperplanes [M, P, 1]: those with points, then those in reserve."""
    if reservoir is None:
        return weights
    return torch.cat([weights, reservoir.reshape(len(reservoir), *weights.shape[1:])])
