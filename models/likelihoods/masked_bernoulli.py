"""Binary columns with missing entries: label sets that are partly known.

p_d ~ Beta(a_d, b_d),  x_d ~ Bernoulli(p_d) where it is observed
statistics (x, o - x) with o = 1 where x is observed, and x = 0 elsewhere: a missing bit contributes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size

from ..compiled import register_compiled
from ..sparse import Rows
from .base import Parameters
from .bernoulli import BernoulliBeta


@dataclass(eq=False)
class MaskedBernoulli(BernoulliBeta):
    """As `BernoulliBeta`, but an entry of a row x [D] may be NaN, which means missing; in sparse rows NaN is stored.

    Everything is linear in the pair u = (x, m) [2 D], where m = 1 marks a missing entry, with x = 0 there.

    Examples
    --------
    >>> from regbayes.models import MaskedBernoulli
    >>> rows = torch.tensor([[1.0, torch.nan]])
    >>> MaskedBernoulli(a=1.0, b=1.0).resolve(rows).statistics(rows)
    tensor([[1., 0., 0., 0.]])
    """

    faults = (
        ("negative", lambda x: x < 0),
        ("neither 0 nor 1", lambda x: (x != 0) & (x != 1) & (x == x)),
    )
    accepted = "0, 1 and NaN (missing)"

    @property
    def takes_missing(self) -> bool:
        return True

    # -- functions of x, computed from u -------------------------------------------------------------------------------

    def statistics(self, X: Rows) -> Tensor:
        return super().statistics(self.coordinates(X))

    def weighted_statistics(self, X: Rows, responsibilities: Tensor) -> Tensor:
        return super().weighted_statistics(self.coordinates(X), responsibilities)

    def summed_statistics(self, X: Rows, assignments: Tensor, num_components: int) -> Tensor:
        return super().summed_statistics(self.coordinates(X), assignments, num_components)

    def linear_log_density(self, X: Rows, natural: Tensor) -> Tensor:
        return super().linear_log_density(self.coordinates(X), natural)

    def log_repeat(self, X: Rows) -> Tensor:
        a, b = self.a.double(), self.b.double()
        natural = torch.cat([(a + 1).log(), (b + 1).log()]) - (a + b + 1).log().repeat(2)
        slope, offset = self.linear(natural.unsqueeze(0))
        return (self.coordinates(X.double()) @ slope.T + offset).squeeze(1)

    def spread(self, sums: Tensor, counts: Tensor) -> Tensor:
        ones, missing = sums.chunk(2, -1)
        return torch.cat([ones, counts.unsqueeze(-1) - missing - ones], -1)

    def linear(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """slope [K, 2 D] and offset [K] of x t_1 + (1 - m - x) t_0."""
        one, zero = natural.chunk(2, -1)
        return torch.cat([one - zero, -zero], -1), zero.sum(-1)

    def distribution(self, parameters: Parameters) -> Distribution:
        return ObservedBits(parameters["probs"])

    # -- the small-variance limit, in coordinates u ----------------------------------------------------------------

    def coordinates(self, X: Rows) -> Rows:
        """u = (x, m) [N, 2 D] of the rows of X [N, D]."""
        if isinstance(X, Tensor):
            missing = X.isnan()
            return torch.cat([X.masked_fill(missing, 0.0), missing.to(X.dtype)], 1)
        missing = X.values.isnan()
        columns = X.columns + X.num_columns * missing
        return replace(X, columns=columns, values=X.values.masked_fill(missing, 1.0), num_columns=2 * X.num_columns)

    def from_coordinates(self, means: Tensor) -> Tensor:
        return means.chunk(2, -1)[0]

    def centers(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Centres (mu, 0) [K, 2 D], where mu is the fraction of ones among the observed entries."""
        ones, missing = sums.chunk(2, -1)
        observed = (counts.unsqueeze(-1) - missing).clamp(min=torch.finfo(sums.dtype).tiny)
        return torch.cat([ones / observed, torch.zeros_like(ones)], -1)

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """slope and offset of -x log mu - (1 - m - x) log(1 - mu) at centres (mu, 0) [K, 2 D]."""
        limits = torch.finfo(means.dtype)
        mu = self.from_coordinates(means).clamp(limits.tiny, 1 - limits.eps)
        slope, offset = self.linear(torch.cat([mu.log(), torch.log1p(-mu)], -1))
        return slope, -offset

    def founding_divergence(self, X: Rows) -> Tensor:
        """The costs [N] of ones and zeros at their centre with the pseudo-observation; 0 for missing entries."""
        row, weight = self.pseudo_observation()
        share, center = self.from_coordinates(row), weight * self.from_coordinates(row) / (1 + weight)
        rest = weight * self.potential(share)
        costs = [rest - (1 + weight) * self.potential(center + x / (1 + weight)) for x in (1.0, 0.0)]
        slope, offset = self.linear(torch.cat(costs).unsqueeze(0))
        return (X @ slope.T + offset).squeeze(1)

    def pseudo_observation(self) -> tuple[Tensor, float]:
        row, weight = super().pseudo_observation()
        return torch.cat([row, torch.zeros_like(row)]), weight


class ObservedBits(dist.TorchDistribution):
    """Independent bits [D]; bits that are NaN are left out of the density."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.independent(constraints.boolean, 1)

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs
        super().__init__(probs.shape[:-1], probs.shape[-1:], validate_args=False)

    def expand(self, batch_shape: _size, _instance: Any = None) -> ObservedBits:
        return ObservedBits(self.probs.expand(*batch_shape, -1))

    def log_prob(self, value: Tensor) -> Tensor:
        limits = torch.finfo(self.probs.dtype)
        bits = dist.Bernoulli(self.probs.clamp(limits.tiny, 1 - limits.eps), validate_args=False)
        known = ~value.isnan()
        return torch.where(known, bits.log_prob(value.nan_to_num()), 0.0).sum(-1)

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:
        return torch.bernoulli(self.probs.expand(*sample_shape, *self.probs.shape))


register_compiled(MaskedBernoulli, f"{__package__}._numba_bernoulli:MaskedBits")
