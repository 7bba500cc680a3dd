"""The states of descents: a partition, its centres, and its classifiers or hyperplanes."""

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
    """The fields of both kinds of states: N points, K components, D coordinates, P features, C scores."""

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
        """The draw that a posterior keeps of a state, for points with weights [N] (None: 1)."""
        centers, counts = self.centers, self.counts
        if row_weights is not None:
            counts = all_sum(torch.bincount(self.assignments, row_weights, self.num_components))
        shares = (counts.to(centers.dtype) / counts.sum()).log()
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
        """Remove the empty components."""
        used = torch.zeros(self.num_components, dtype=torch.int64, device=self.assignments.device)
        used = all_sum(used.index_fill(0, self.assignments, 1)) > 0
        kept = torch.nonzero(used).squeeze(1)
        if len(kept) == self.num_components:
            return self
        label = used.cumsum(0) - 1
        return replace(self, assignments=label[self.assignments], **self.rows(kept))

    def rows(self, kept: Tensor) -> dict[str, Any]:
        """The fields that belong to components, for components [K'] in increasing order."""
        return {"centers": self.centers[kept], "weights": self.weights[kept]}


@dataclass(frozen=True)
class Descent(_Partition):
    """A state of a descent whose components score their own points alone."""

    duals: OfRows  # [N, C] dual variables, where the next duals start
    objective: Tensor  # [] float64, L after the last sweep
    grows: bool = True  # whether the last search for new components found some
    settled: bool = False  # whether the last sweep changed little; the next one then searches, polishes and merges
    converged: bool = False  # whether the state was settled and then changed little again


@dataclass(frozen=True)
class RepellingDescent(_Partition):
    """A state of a descent of components that repel, or of the states of sequences: N points or steps."""

    transition_penalty: Tensor  # []
    transition_weight: Tensor  # []
    objective: Tensor  # [] float64
    settled: bool = False  # whether the last sweep changed little; the next one then tries to open and to merge
    converged: bool = False  # whether the state was settled and then changed little again
    fitted: tuple[Tensor, ...] = ()  # the fields of `Fitted`, if there is one

    def rows(self, kept: Tensor) -> dict[str, Any]:
        fitted = Fitted(*self.fitted).kept(kept) if self.fitted else ()
        return {**super().rows(kept), "fitted": tuple(fitted)}


class Parts(NamedTuple):
    """Sums over the points of each component that the objective needs."""

    sums: Tensor  # [K, D], weighted sums of the rows
    counts: Tensor  # [K], sums of the weights of the points
    margins: Tensor  # [K], cost of the classifiers: |eta_k|^2 / (2 nu^2) - weighted sum of log phi

    def rows(self, index: Tensor | list[int]) -> Parts:
        """The sums of some components, from their indices [M]."""
        return Parts(self.sums[index], self.counts[index], self.margins[index])
