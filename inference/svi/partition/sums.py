"""What a mixture's local step leaves of the rows: sums over chunks of them, and their responsibilities where they fit.

All global factors follow from the sums. The responsibilities follow from the global factors, so that of N x T numbers
none need be kept, and beyond `MOST_KEPT` none are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ....models.data import Data
from ....models.mixture import Mixture
from ...classifiers.natural import BothSides, OwnSide
from ...classifiers.ridge import soft_sums
from ...distributed.collectives import all_sum
from ..factors import family_of, nothing_observed

MOST_KEPT = 2**24  # responsibilities that a fit keeps, N T of them


class Sums:
    """Sums over rows, of which one chunk after another is added."""

    def __init__(self, model: Mixture, data: Data, keep: bool | None = None) -> None:
        """`keep`: whether responsibilities [N, T] are kept, and not the sums that follow from them; None: if few."""
        N, T = data.num_data, model.truncation
        self.family, self.keep, self.num_data = family_of(model), keep_rows(data, model) if keep is None else keep, N
        self.responsibilities = data.features.new_empty(N if self.keep else 0, T)
        self.counts = data.features.new_zeros(T, dtype=torch.float64)
        self.statistics = data.features.new_zeros((), dtype=torch.float64)
        self.observed = nothing_observed(model, data)

    def add(self, rows: slice, data: Data, r: Tensor, seen: OwnSide | BothSides | None) -> None:
        """Add the data [n] at these rows with their responsibilities [n, T] and what classifiers expect, if they do."""
        if self.keep:
            self.responsibilities[rows] = r
        else:
            times = data.counted(r)
            self.counts += times.sum(0, dtype=torch.float64)
            self.statistics = self.statistics + self.family.weighted_statistics(data.X, times)
        if seen is not None:
            precision, shift, times = seen.times(r)
            parts = soft_sums(data.features, precision, shift, data.counted(times))
            for total, part in zip(self.observed.values(), parts, strict=True):
                total += part

    def fields(self) -> dict[str, Any]:
        """Of a `VariationalPartition`."""
        own: dict[str, Any] = {"responsibilities": self.responsibilities, **self.observed}
        if self.keep:
            return own | {"counts": None, "statistics": None, "num_dropped": 0}
        statistics = self.statistics.to(self.responsibilities.dtype)
        return own | {"counts": all_sum(self.counts), "statistics": statistics, "num_dropped": self.num_data}


def keep_rows(data: Data, model: Mixture) -> bool:
    """Whether the responsibilities of all rows are kept."""
    return data.num_data * model.truncation <= MOST_KEPT


def slices(data: Data, model: Mixture) -> Iterator[slice]:
    """Slices of the rows for which an array [n, T, C] fits a cache, or a GPU: of all rows there is none."""
    step = max(64, (2**25 if data.features.is_cuda else 2**18) // (model.truncation * max(1, data.targets.shape[1])))
    yield from (slice(start, start + step) for start in range(0, max(1, data.num_data), step))
