"""The small-variance objective of a mixture.

    L = Lambda(K) + sum_k [|eta_k|^2 / (2 nu^2) + scale w D(row, mu_k)]
      + sum_n [-log phi(y_n | eta_{z_n} . a_n) + scale D(x_n, mu_{z_n})]             (docs/derivations/mixtures,
      "M2DPM")

Lambda(K) is the prior's price of K components, penalty K for a Dirichlet process. (row, w) is the pseudo-observation of
a smoothed likelihood; w = 0 for the others. A missing target has no loss. A point's weight multiplies its bracket. The
costs of points, and of components that hold one point, are those of a single copy; weights enter in sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, cast

import torch
from torch import Tensor

from ...models.base import Model
from ...models.data import Data
from ...models.likelihoods import ExponentialFamily
from ...models.sparse import Rows, entries_sum
from ..classifiers.scored import Scored
from ..distributed.collectives import all_sum
from ..distributed.picked import taken
from .restarts import Priced


def require_divergence(model: Model) -> None:
    """Raise NotImplementedError on a likelihood without a small-variance limit."""
    family = type(model.likelihood)
    if not issubclass(family, ExponentialFamily):
        raise NotImplementedError(
            f"{family.__name__} is no ExponentialFamily: SmallVariance needs its divergence (`coordinates`, "
            "`divergence_terms`, `divergence_base`, `centers`). Fit with NUTS or Autoguide, which need no conjugacy."
        )


@dataclass(frozen=True)
class Problem(Priced):
    """The data in the coordinates of the divergence, and the cost of a point in a component of its own."""

    model: Model  # resolved
    data: Data
    scale: float
    X: Rows  # [N, D] rows in the likelihood's coordinates
    base: Tensor  # [N] scale * base(x_n), the term that makes D(x_n, x_n) = 0
    founding: Tensor  # [N] cost of a point in a component of its own, without the penalty
    row: Tensor | None  # [D] the pseudo-observation
    row_weight: float

    @classmethod
    def of(cls, model: Model, data: Data, scale: float) -> Self:
        """The problem of a resolved model."""
        family = cast(ExponentialFamily, model.likelihood)
        X = family.coordinates(data.X).contiguous()
        square = entries_sum(data.features, torch.square).unsqueeze(1)
        _, cost = model.loss.one_point(model.weight_scale**2 * square, data.targets)
        founding = cost.sum(1) + scale * family.founding_divergence(X)
        base = scale * family.divergence_base(X)
        return cls(model, data, scale, X, base, founding, *family.pseudo_observation())

    @property
    def likelihood(self) -> ExponentialFamily:
        """The model's likelihood, which defines the divergence."""
        return cast(ExponentialFamily, self.model.likelihood)

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.X)

    @cached_property
    def sizes(self) -> Tensor:
        """The norms |x_n| [N] of dense rows, in single precision."""
        return torch.linalg.vector_norm(cast(Tensor, self.X), dim=1).float()

    def room(self, width: int) -> Tensor:
        """A buffer [N, width], in the same memory as in the last call if that suffices.

        For many rows, allocating new memory takes longer than filling it.
        """
        size, kept = self.num_data * width, vars(self).get("_room")
        if kept is None or len(kept) < size:
            kept = vars(self)["_room"] = self.base.new_empty(size)
        return cast(Tensor, kept[:size].view(self.num_data, width))

    @property
    def total_base(self) -> Tensor:
        """The sum of `base` over the points of all ranks, [] float64."""
        return all_sum(self.own_base)

    @cached_property
    def own_base(self) -> Tensor:
        """The sum of `base` over the points of this rank, [] float64."""
        return self.data.counted(self.base).sum(dtype=torch.float64)

    def rows(self, index: Tensor) -> Problem:
        """The problem of some of the points [M]."""
        taken: dict[str, Any] = {"X": self.X[index], "base": self.base[index], "founding": self.founding[index]}
        return replace(self, data=self.data.rows(index), **taken)

    def without_divergence(self) -> Problem:
        """The problem with the losses alone."""
        return replace(self, scale=0.0, base=torch.zeros_like(self.base))

    def margins(self, assignments: Tensor, num_components: int) -> Scored:
        """The rows for classifiers that each score the points of their own component, from assignments [N]."""
        data, model = self.data, self.model
        rows = data.features, data.targets, model.loss, model.weight_scale, data.weights
        return Scored(*rows, assignments, num_components)

    def centers(self, sums: Tensor, counts: Tensor) -> Tensor:
        """The best centres [K, D], given sums of rows [K, D] and numbers of rows [K]."""
        if self.row is not None:
            sums, counts = sums + self.row_weight * self.row, counts + self.row_weight
        return self.likelihood.centers(sums, counts).to(self.X.dtype)

    # -- costs of a partition ------------------------------------------------------------------------------------------

    def ridge(self, weights: Tensor) -> Tensor:
        """|eta_k|^2 / (2 nu^2) [K] of weights [K, P, C], in double precision."""
        return weights.double().square().sum((1, 2)) / (2 * self.model.weight_scale**2)

    def charges(self, centers: Tensor, weights: Tensor) -> Tensor:
        """The cost of each component [K] without its points and its price, in double precision."""
        return self.ridge(weights) + self.smoothing(centers)

    def smoothing(self, centers: Tensor) -> Tensor | float:
        """The cost of the pseudo-observation at each centre [K]."""
        if self.row is None:
            return 0.0
        return self.scale * self.row_weight * self.likelihood.divergence(self.row.unsqueeze(0), centers).squeeze(0)

    def divergences(self, sums: Tensor, counts: Tensor, centers: Tensor) -> Tensor:
        """scale times the summed divergence [K] of the rows of each component, from their sums, without the base."""
        slope, offset = self.likelihood.divergence_terms(centers.double())
        return self.scale * (counts * offset - (sums * slope).sum(1))

    # -- components of one point ---------------------------------------------------------------------------------------

    def founders(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The best centres [M, D] and classifiers [M, P, C] of single points with the numbers `index` [M]."""
        features = cast(Tensor, taken(self.data.features, index, self.data.span))
        square = features.square().sum(1, keepdim=True)
        targets = cast(Tensor, taken(self.data.targets, index, self.data.span))
        score, _ = self.model.loss.one_point(self.model.weight_scale**2 * square, targets)
        direction = features / square.clamp(min=torch.finfo(square.dtype).tiny)
        return self.founding_centers(index), direction.unsqueeze(2) * score.unsqueeze(1)

    def founding_centers(self, index: Tensor) -> Tensor:
        """The best centres [M, D] of components that each hold one point, with `index` as in `founders`."""
        rows = taken(self.X, index, self.data.span).to_dense().double()
        return self.centers(rows, rows.new_ones(len(rows)))
