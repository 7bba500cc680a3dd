"""The compiled form of `LinearRegression`."""

import math
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..compiled.scalars import log
from ..data import Data
from ..linalg import inverse_transpose
from ._numba_gaussians import CANCELLED, ROUNDING, entries, fetch_row, log_spread, shift_factor, table
from .linear_regression import LinearRegression


class Regression(NamedTuple):
    """Rows: nu, log det Psi / 2, L^-1 row by row, scratch [2 (Q + R)], with L L^T = [[K, C], [C^T, V]]."""

    components: np.ndarray
    X: np.ndarray  # [N, Q + R], the pairs (a, v)
    given: int  # Q

    @classmethod
    def of(cls, family: LinearRegression, data: Data) -> Self:
        a, v = family.pairs(data.X)
        pairs = torch.cat([a, v], 1).contiguous().numpy()
        return cls(_components(family, family.prior().unsqueeze(0)), pairs, a.shape[1])

    @staticmethod
    def log_normalizers(family: LinearRegression, counts: Tensor) -> Tensor:
        return log_spread(family.degrees_of_freedom, len(family.scale), counts)

    @staticmethod
    def wide() -> int:
        return 24

    def summed(self, family: LinearRegression, data: Data, labels: Tensor, slots: int) -> np.ndarray:
        return _components(family, family.prior() + family.summed_statistics(data.X, labels, slots))

    def fetch(self, n):
        fetch_row(self.X, n)

    def log_predictives(self, n, own, out, scratch):
        """|L^-1 (a, v)|^2 is a^T K^-1 a, the leverage, from the first Q rows, plus r^T Psi^-1 r of the residual r."""
        X, rows = self.X, self.components
        size = X.shape[1]
        inner, leverage = scratch[0], scratch[1]
        for k in range(len(out)):
            out[k] = 0.0
        entry = 2
        for i in range(size):
            for k in range(len(out)):
                inner[k] = 0.0
            for j in range(i + 1):
                for k in range(len(out)):
                    inner[k] += rows[entry + j, k] * X[n, j]
            entry += i + 1
            for k in range(len(out)):
                out[k] += inner[k] ** 2
            if i + 1 == self.given:
                for k in range(len(out)):
                    leverage[k] = out[k]
        for k in range(len(out)):
            sign = -1.0 if k == own else 1.0
            growth, of_given = max(1.0 + sign * out[k], ROUNDING), max(1.0 + sign * leverage[k], ROUNDING)
            degrees = rows[0, k] + sign
            logs = degrees * log(growth) - (degrees - (size - self.given)) * log(of_given)
            out[k] = -rows[1, k] - sign * 0.5 * logs

    def shift(self, n, k, sign):
        X, rows = self.X, self.components
        size = X.shape[1]
        for d in range(size):
            rows[len(rows) - size + d, k] = X[n, d]
        growth, of_given = shift_factor(rows, 2, k, size, self.given, sign)
        rows[0, k] += sign
        rows[1, k] += 0.5 * math.log(growth / of_given)
        return growth < CANCELLED


def _components(family: LinearRegression, chi: Tensor) -> np.ndarray:
    """Components [W, slots] from hyperparameters [slots, S].

    Rows 1..Q of L^-1 are the inverse factor of K; the rows below map (a, v) to v - M a, whitened by Psi.
    """
    coefficients, left, nu, factor = family.common(chi)
    half_log = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    inverse, whitening = (inverse_transpose(tril).mT for tril in (left, factor))
    above, below = pad(inverse, (0, len(family.scale))), torch.cat([-whitening @ coefficients, whitening], 2)
    rows = torch.cat([above, below], 1)
    return table(torch.stack([nu, half_log], 1), entries(rows), rows.new_empty(len(rows), 2 * rows.shape[1]))
