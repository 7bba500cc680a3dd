"""Where a descent stands: one partition, its centres and its classifiers or hyperplanes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ...models.base import Model
from ..distributed.collectives import all_sum
from ..posterior.draws import PartitionDraw, drawn
from ..running.chains import OfRows
from ..running.engine import Draw
from .hyperplanes import Fitted


@dataclass(frozen=True)
class _Partition:
    """What both kinds of states hold: N points, K components, D coordinates, P features, C scores."""

    assignments: OfRows  # [N] int64, 0..K-1, all occupied
    centers: Tensor  # [K, D] in the likelihood's coordinates
    weights: Tensor  # [K, P, C]
    penalty: Tensor  # []

    @property
    def num_components(self) -> int:
        """K."""
        return len(self.centers)

    @property
    def counts(self) -> Tensor:
        """Numbers of points [K], int64."""
        return all_sum(torch.bincount(self.assignments, minlength=self.num_components))

    def draw(self, model: Model, row_weights: Tensor | None) -> Draw:
        """What a Posterior keeps of a state of points that count `row_weights` [N] times; None: once."""
        centers, counts = self.centers, self.counts
        if row_weights is not None:
            counts = all_sum(torch.bincount(self.assignments, row_weights, self.num_components))
        shares = (counts / counts.sum()).to(centers.dtype).log()
        return drawn(
            PartitionDraw(
                assignments=self.assignments,
                centers=centers,
                weights=self.weights,
                log_mixture=torch.cat([shares, centers.new_full((1,), -torch.inf)]),
                penalty=self.penalty,
            ),
            model.prior.start(centers),
        )

    def occupied(self) -> Self:
        """The state without its empty components."""
        used = torch.zeros(self.num_components, dtype=torch.int64, device=self.assignments.device)
        used = all_sum(used.index_fill(0, self.assignments, 1)) > 0
        kept = torch.nonzero(used).squeeze(1)
        if len(kept) == self.num_components:
            return self
        label = used.cumsum(0) - 1
        return replace(self, assignments=label[self.assignments], **self.rows(kept))

    def rows(self, kept: Tensor) -> dict[str, Any]:
        """What the state has of some components, from their indices [K'] in increasing order."""
        return {"centers": self.centers[kept], "weights": self.weights[kept]}


@dataclass(frozen=True)
class Descent(_Partition):
    """One descent of components that see their own points alone."""

    duals: OfRows  # [N, C] of a joint multi-class loss, which warm-start the next pass
    objective: Tensor  # [] float64, L after the last sweep
    grows: bool = True  # the last search for new components found some
    settled: bool = False  # the last sweep changed little: search, polish and merge in the next one
    converged: bool = False  # it has, and that changed little as well


@dataclass(frozen=True)
class RepellingDescent(_Partition):
    """One descent of components that repel, or of the states of sequences: N points or steps."""

    transition_penalty: Tensor  # []
    transition_weight: Tensor  # []
    objective: Tensor  # [] float64
    settled: bool = False  # the last sweep changed little: try to open and to merge in the next one
    converged: bool = False  # it has, and in vain
    fitted: tuple[Tensor, ...] = ()  # the parts of `Fitted`, where there is one

    def rows(self, kept: Tensor) -> dict[str, Any]:
        fitted = Fitted(*self.fitted).kept(kept) if self.fitted else ()
        return {**super().rows(kept), "fitted": tuple(fitted)}


class Parts(NamedTuple):
    """What the objective needs of the points of each component."""

    sums: Tensor  # [K, D] of the rows, with their weights
    counts: Tensor  # [K] how many points, with their weights
    margins: Tensor  # [K] what classifiers cost: |eta_k|^2 / (2 nu^2) - log phi, summed with weights

    def rows(self, index: Tensor | list[int]) -> Parts:
        """The parts of some components, from their indices [M]."""
        return Parts(self.sums[index], self.counts[index], self.margins[index])
