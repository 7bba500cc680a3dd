"""`DiagonalGaussian` compiled. One logarithm for the product over sixteen columns."""

import math
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..compiled.scalars import take_logs
from ..data import Data
from ._numba_gaussians import CANCELLED, ROUNDING, centred, fetch_row, shift_mean, shrinkage, table
from .diagonal_gaussian import DiagonalGaussian


class Diagonal(NamedTuple):
    """Rows (kap, a, sum log b / 2, mean [D], 1 / (2 b) [D])."""

    components: np.ndarray
    X: np.ndarray  # [N, D], centred

    @classmethod
    def of(cls, family: DiagonalGaussian, data: Data) -> Self:
        m, kap, a, b = family.common(family.prior().unsqueeze(0))
        return cls(table(kap, a, b.log().sum(1, keepdim=True) / 2, m, 1 / (2 * b)), centred(family.loc, data))

    @staticmethod
    def log_normalizers(family: DiagonalGaussian, counts: Tensor) -> Tensor:
        """With log Gamma(a + 1 / 2) / Gamma(a); a grows by 1 / 2 with each point."""
        a = family.shape + torch.arange(len(counts) + 1, dtype=torch.float64) / 2
        return shrinkage(family.prior()[-2], len(family.loc), counts) + len(family.loc) * torch.lgamma(a).diff()

    def fetch(self, n):
        fetch_row(self.X, n)

    def log_predictives(self, n, own, out, scratch):
        X, rows = self.X, self.components
        size = X.shape[1]
        gain, product = scratch[0], scratch[1]
        for k in range(len(out)):
            sign = -1.0 if k == own else 1.0
            gain[k] = sign * rows[0, k] / (rows[0, k] + sign)
            product[k] = 1.0
            out[k] = 0.0
        for d in range(size):
            for k in range(len(out)):
                factor = 1.0 + gain[k] * (X[n, d] - rows[3 + d, k]) ** 2 * rows[3 + size + d, k]
                product[k] *= max(factor, ROUNDING)
            if d % 16 == 15 or d == size - 1:
                take_logs(product, out)
        for k in range(len(out)):
            sign = -1.0 if k == own else 1.0
            out[k] = -rows[2, k] - sign * (rows[1, k] + sign * 0.5) * out[k]

    def shift(self, n, k, sign):
        X, rows = self.X, self.components
        size = X.shape[1]
        gain = sign * rows[0, k] / (rows[0, k] + sign)
        rows[1, k] += sign * 0.5
        least, product = 1.0, 1.0
        for d in range(size):
            factor = max(1.0 + gain * (X[n, d] - rows[3 + d, k]) ** 2 * rows[3 + size + d, k], ROUNDING)
            rows[3 + size + d, k] /= factor
            least = min(least, factor)
            product *= factor
            if product < 1e-100 or product > 1e100 or d == size - 1:
                rows[2, k] += 0.5 * math.log(product)
                product = 1.0
        shift_mean(X, n, rows, k, 3, sign)
        return least < CANCELLED
