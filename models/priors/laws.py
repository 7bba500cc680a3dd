"""The law of component labels z under a prior, with infinitely many components or with T of them.

    Infinite(prior)        K blocks in M >= K places that are alike:    log p(n_1, ..., n_K) + log (M - K)!
    Truncated(prior, T)    labels 0..T-1, sticks integrated out:        log p(z)

A kernel holds one of the two objects, so that scans and moves are the same code for both. In an infinite model a state
keeps the labels 0..K-1 that have points. A move may work in M places; (M - K)! accounts for the choice among the free
ones. The first methods concern labels only, the next ones the counts of points, and the last ones state sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..sums import all_largest, all_named
from .base import Hyper, PartitionPrior
from .hierarchical_dirichlet_process import HierarchicalDirichletProcess
from .sticks import log_labelled_prior, log_stick_weights, posterior_sticks

Points = PartitionPrior
Paths = HierarchicalDirichletProcess
Prior = TypeVar("Prior", PartitionPrior, HierarchicalDirichletProcess)


@dataclass(frozen=True)
class Infinite(Generic[Prior]):
    """Infinitely many components. All labels are alike, and a label without points is removed."""

    prior: Prior

    capacity = math.inf  # the most labels
    alike = True  # whether the prior treats all labels alike

    def named(self, labels: Tensor) -> Tensor:
        """Labels [N] renamed to 0..K-1, in increasing order."""
        return all_named(labels)[1]

    def num_places(self, labels: Tensor) -> int:
        """The number of components of a state with these labels [N]."""
        return int(all_largest(labels.amax())) + 1

    def kept(self, counts: Tensor) -> Tensor:
        """A mask, bool [M], of the places that a state keeps, from counts [M]."""
        return counts > 0

    def log_prior(self: Infinite[Points], counts: Tensor, h: Hyper) -> Tensor:
        """log p(z | h) [...] from counts [..., M], up to a constant that depends on M."""
        if counts.dim() > 1:
            return torch.stack([self.log_prior(each, h) for each in counts])
        occupied = counts[counts > 0]
        return self.prior.log_partition(occupied, h) + math.lgamma(len(counts) - len(occupied) + 1)

    def log_weights(self: Infinite[Points], counts: Tensor, h: Hyper) -> Tensor:
        """log E[pi_k | z] [K + 1] float64 from counts [K]; the last entry is for all new components."""
        return self.prior.log_expected_weights(counts, h)

    def log_base(self: Infinite[Paths], base: Tensor, h: Hyper) -> Tensor:
        """log p(beta, h) [] of base weights [K + 1], of which the last is that of all new states."""
        return self.prior.log_base(base, h)

    def draw_base(
        self: Infinite[Paths], h: Hyper, base: Tensor, moves: Tensor, generator: torch.Generator
    ) -> tuple[Hyper, Tensor]:
        """Draw new hyperparameters and base weights [K + 1] given the transition counts [K + 1, K]."""
        return self.prior.draw(h, base, moves, generator)


@dataclass(frozen=True)
class Truncated(Generic[Prior]):
    """T = `capacity` components, with or without points. Each label has its own stick."""

    prior: Prior
    capacity: int

    alike = False

    def named(self, labels: Tensor) -> Tensor:
        """The labels [N], unchanged."""
        return labels

    def num_places(self, labels: Tensor) -> int:
        """T, whatever the labels [N]."""
        return self.capacity

    def kept(self, counts: Tensor) -> Tensor:
        """All places, bool [T]."""
        return torch.ones_like(counts, dtype=torch.bool)

    def log_prior(self: Truncated[Points], counts: Tensor, h: Hyper) -> Tensor:
        """log p(z | h) [...] from counts [..., T]."""
        return log_labelled_prior(counts, *self.prior.sticks(h, self.capacity))

    def log_weights(self: Truncated[Points], counts: Tensor, h: Hyper) -> Tensor:
        """log E[pi_k | z] [T + 1] float64 from counts [T]; the last entry is -inf."""
        after, before = posterior_sticks(counts, *self.prior.sticks(h, self.capacity))
        return torch.cat([log_stick_weights(after / (after + before)), counts.new_tensor([-torch.inf])])

    def log_base(self: Truncated[Paths], base: Tensor, h: Hyper) -> Tensor:
        """log p(v, h) [] of the sticks v of base weights [T + 1], the last of which is 0."""
        return self.prior.log_sticks(base, h)

    def draw_base(
        self: Truncated[Paths], h: Hyper, base: Tensor, moves: Tensor, generator: torch.Generator
    ) -> tuple[Hyper, Tensor]:
        """Draw new hyperparameters and base weights [T + 1] given the transition counts [T + 1, T]."""
        return self.prior.draw_truncated(h, base, moves, generator)


PointLaw = Infinite[Points] | Truncated[Points]
PathLaw = Infinite[Paths] | Truncated[Paths]
Law = PointLaw | PathLaw


def law_of(prior: Prior, truncation: int | None) -> Infinite[Prior] | Truncated[Prior]:
    """The law with T = `truncation` components; None: with infinitely many."""
    return Infinite(prior) if truncation is None else Truncated(prior, truncation)
