"""The law of z: what a prior says of labels, with infinitely many components or with T of them.

    Infinite(prior)        K blocks in M >= K places that are alike:    log p(n_1, ..., n_K) + log (M - K)!
    Truncated(prior, T)    labels 0..T-1, sticks integrated out:        log p(z)

A kernel holds one of the two and asks it, so that scans and moves are the same under both. Of an infinite model a state
keeps the labels 0..K-1 that have points. A move may work in M places; (M - K)! is what a choice among the free ones
costs. The first methods are about labels alone, then come those of points, by their counts, and those of paths.
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
    """Of infinitely many components. All labels are alike, and one without points goes."""

    prior: Prior

    capacity = math.inf  # the most labels
    alike = True  # whether the prior tells no labels apart

    def named(self, labels: Tensor) -> Tensor:
        """Any labels [N] as those of a state."""
        return all_named(labels)[1]

    def num_places(self, labels: Tensor) -> int:
        """The number of components of a state with these labels [N]."""
        return int(all_largest(labels.amax())) + 1

    def kept(self, counts: Tensor) -> Tensor:
        """Which places a state keeps, bool [M], from counts [M]."""
        return counts > 0

    def log_prior(self: Infinite[Points], counts: Tensor, h: Hyper) -> Tensor:
        """log p(z | h) [...] from counts [..., M], up to a constant of M."""
        if counts.dim() > 1:
            return torch.stack([self.log_prior(each, h) for each in counts])
        occupied = counts[counts > 0]
        return self.prior.log_partition(occupied, h) + math.lgamma(len(counts) - len(occupied) + 1)

    def log_weights(self: Infinite[Points], counts: Tensor, h: Hyper) -> Tensor:
        """log E[pi_k | z] [K + 1] float64 from counts [K]; the last entry is all components not yet seen."""
        return self.prior.log_expected_weights(counts, h)

    def log_base(self: Infinite[Paths], base: Tensor, h: Hyper) -> Tensor:
        """log p(beta, h) [] of base weights [K + 1], the last one that of all states not yet seen."""
        return self.prior.log_base(base, h)

    def draw_base(
        self: Infinite[Paths], h: Hyper, base: Tensor, moves: Tensor, generator: torch.Generator
    ) -> tuple[Hyper, Tensor]:
        """New hyperparameters and base weights [K + 1] given the moves [K + 1, K] between states."""
        return self.prior.draw(h, base, moves, generator)


@dataclass(frozen=True)
class Truncated(Generic[Prior]):
    """Of T = `capacity` components, with points or without. Each label has a stick of its own."""

    prior: Prior
    capacity: int

    alike = False

    def named(self, labels: Tensor) -> Tensor:
        """The labels [N]."""
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
        """log p(v, h) [] of the sticks v of base weights [T + 1], the last one 0."""
        return self.prior.log_sticks(base, h)

    def draw_base(
        self: Truncated[Paths], h: Hyper, base: Tensor, moves: Tensor, generator: torch.Generator
    ) -> tuple[Hyper, Tensor]:
        """New hyperparameters and base weights [T + 1] given the moves [T + 1, T] between states."""
        return self.prior.draw_truncated(h, base, moves, generator)


PointLaw = Infinite[Points] | Truncated[Points]
PathLaw = Infinite[Paths] | Truncated[Paths]
Law = PointLaw | PathLaw


def law_of(prior: Prior, truncation: int | None) -> Infinite[Prior] | Truncated[Prior]:
    """The law of T = `truncation` components, None: of infinitely many."""
    return Infinite(prior) if truncation is None else Truncated(prior, truncation)
