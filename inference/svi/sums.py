"""Sums over points after an update of q(z), chunk by chunk, and the responsibilities if they fit into memory.

All global factors follow from the sums, and the responsibilities from the global factors. So no array of N x T numbers
has to be kept; for independent points none has more than `MOST_KEPT` numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...models import host
from ...models.data import Data
from ...models.likelihoods.exponential_family import ExponentialFamily
from ...models.sums import among
from ..classifiers.natural import BothSides, OwnSide
from ..classifiers.ridge import soft_sums
from ..distributed.collectives import all_sum

MOST_KEPT = 2**24  # the largest N T for which a fit keeps responsibilities


class Sums:
    """Sums over M points, to which chunks are added one after another."""

    def __init__(self, family: ExponentialFamily, data: Data, truncation: int, *, keep: bool) -> None:
        """`keep`: whether responsibilities [M, T] are kept, instead of the sums that follow from them."""
        M, T, C, P = data.num_data, truncation, data.targets.shape[1], data.features.shape[1]
        self.family, self.keep, self.num_data, like = family, keep, M, data.features
        self.responsibilities = like.new_empty(M if keep else 0, T)
        self.counts, self.statistics = like.new_zeros(T, dtype=torch.float64), like.new_zeros((), dtype=torch.float64)
        self.gram, self.linear = like.new_zeros(T, C, P, P), like.new_zeros(T, P, C)

    def add(self, rows: slice, data: Data, r: Tensor, seen: OwnSide | BothSides | None) -> None:
        """Add the data [m] at `rows`, with responsibilities r [m, T] and their expected pseudo-observations, if any."""
        if self.keep:
            self.responsibilities[rows] = r
        else:
            times = data.counted(r)
            self.counts += times.sum(0, dtype=torch.float64)
            with among(None):  # the sum of this chunk alone; the number of chunks may differ between ranks
                self.statistics = self.statistics + self.family.weighted_statistics(data.X, times)
        if seen is not None:
            precision, shift, times = seen.times(r)
            gram, linear = soft_sums(data.features, precision, shift, data.counted(times))
            self.gram += gram
            self.linear += linear

    def fields(self) -> dict[str, Any]:
        """The fields of a `Variational` that hold sums and responsibilities."""
        own: dict[str, Any] = {"responsibilities": self.responsibilities, "gram": self.gram, "linear": self.linear}
        if self.keep:
            return own | {"counts": None, "statistics": None, "dropped": None}
        statistics = all_sum(self.statistics).to(self.responsibilities.dtype)
        dropped = self.responsibilities.new_empty(self.num_data, 0)
        return own | {"counts": all_sum(self.counts), "statistics": statistics, "dropped": dropped}


def keep_rows(data: Data, truncation: int) -> bool:
    """Whether the responsibilities of all points are kept where sums would do."""
    return data.span[1] * truncation <= MOST_KEPT


def slices(data: Data, truncation: int) -> Iterator[slice]:
    """Slices of the rows such that arrays [n, T, C] fit a cache, or a GPU; no array spans all rows."""
    step = max(64, (2**18 if host.on_cpu(data.features) else 2**25) // (truncation * max(1, data.targets.shape[1])))
    yield from (slice(start, start + step) for start in range(0, max(1, data.num_data), step))
