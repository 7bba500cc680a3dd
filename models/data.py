"""What the kernels of partitions see of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .sparse import Rows, SparseRows


@dataclass(frozen=True, eq=False)
class Data:
    """N points, D features, P classifier features, C scores."""

    X: Rows  # [N, D], dense or sparse
    features: Tensor  # [N, P]
    targets: Tensor  # [N, C]: -1 / +1 for each class score, or one real target; NaN where it is missing

    @property
    def num_data(self) -> int:
        """N."""
        return self.X.shape[0]

    @cached_property
    def nonzeros(self) -> tuple[Tensor, Tensor, Tensor]:
        """X in compressed rows: row n has values[starts[n] : starts[n + 1]], [nnz], in the columns [nnz] there."""
        rows = SparseRows.of(self.X)
        return rows.starts, rows.columns, rows.values

    def rows(self, index: Tensor | slice) -> Data:
        """The data of some rows, from their indices [M]."""
        return Data(self.X[index], self.features[index], self.targets[index])

    def double(self) -> Data:
        """The same in double precision."""
        if self.X.dtype == torch.float64:
            return self
        return Data(self.X.double(), self.features.double(), self.targets.double())
