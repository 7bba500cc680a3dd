"""The compiled form of `FullGaussian`."""

import math
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..compiled.scalars import log
from ..data import Data
from ..linalg import inverse_transpose
from ._numba_gaussians import (
    CANCELLED,
    ROUNDING,
    centred,
    entries,
    fetch_row,
    log_spread,
    shift_factor,
    shift_mean,
    shrinkage,
    table,
)
from .full_gaussian import FullGaussian


class Full(NamedTuple):
    """Rows: kap, nu, log det Psi / 2, mean [D], L^-1 row by row, scratch [2 D], with L L^T = Psi."""

    components: np.ndarray
    X: np.ndarray  # [N, D], centred

    @classmethod
    def of(cls, family: FullGaussian, data: Data) -> Self:
        return cls(_components(family, family.prior().unsqueeze(0)), centred(family.loc, data))

    @staticmethod
    def log_normalizers(family: FullGaussian, counts: Tensor) -> Tensor:
        spread = log_spread(family.degrees_of_freedom, len(family.scale), counts)
        return shrinkage(family.prior()[-2], len(family.loc), counts) + spread

    @staticmethod
    def wide() -> int:
        return 24

    def summed(self, family: FullGaussian, data: Data, labels: Tensor, slots: int) -> np.ndarray:
        return _components(family, family.prior() + family.summed_statistics(data.X, labels, slots))

    def fetch(self, n):
        fetch_row(self.X, n)

    def log_predictives(self, n, own, out, scratch):
        """|L^-1 (x - mean)|^2 costs D^2 / 2; the determinants follow from it."""
        X, rows = self.X, self.components
        size = X.shape[1]
        inner, gap = scratch[0], scratch[1:]
        for k in range(len(out)):
            out[k] = 0.0
        entry = 3 + size
        for i in range(size):
            for k in range(len(out)):
                gap[i, k] = X[n, i] - rows[3 + i, k]
                inner[k] = 0.0
            whole = i + 1 - (i + 1) % 4
            for j in range(0, whole, 4):  # four together, so that the sum is read and written once
                at = entry + j
                for k in range(len(out)):
                    first = rows[at, k] * gap[j, k] + rows[at + 1, k] * gap[j + 1, k]
                    inner[k] += first + rows[at + 2, k] * gap[j + 2, k] + rows[at + 3, k] * gap[j + 3, k]
            for j in range(whole, i + 1):
                for k in range(len(out)):
                    inner[k] += rows[entry + j, k] * gap[j, k]
            entry += i + 1
            for k in range(len(out)):
                out[k] += inner[k] ** 2
        for k in range(len(out)):
            sign = -1.0 if k == own else 1.0
            factor = max(1.0 + sign * rows[0, k] / (rows[0, k] + sign) * out[k], ROUNDING)
            out[k] = -rows[2, k] - sign * 0.5 * (rows[1, k] + sign) * log(factor)

    def shift(self, n, k, sign):
        X, rows = self.X, self.components
        size = X.shape[1]
        for d in range(size):
            rows[len(rows) - size + d, k] = X[n, d] - rows[3 + d, k]
        growth, _ = shift_factor(rows, 3 + size, k, size, 0, sign * rows[0, k] / (rows[0, k] + sign))
        rows[1, k] += sign
        rows[2, k] += 0.5 * math.log(growth)
        shift_mean(X, n, rows, k, 3, sign)
        return growth < CANCELLED


def _components(family: FullGaussian, chi: Tensor) -> np.ndarray:
    """Components [W, slots] from hyperparameters [slots, S]."""
    m, kap, nu, factor = family.common(chi)
    half_log = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    inverse = entries(inverse_transpose(factor).mT)
    return table(torch.stack([kap, nu, half_log], 1), m, inverse, m.new_empty(len(m), 2 * m.shape[1]))
