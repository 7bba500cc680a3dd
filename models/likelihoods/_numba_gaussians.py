"""The compiled forms of spherical and diagonal Gaussians, and functions for all Gaussians and regressions.

gain = kap / (kap + 1), or kap / (kap - 1) for a component that includes x_n. All loops are over plain indices: slices
and array expressions take numba far longer to compile.
"""

import math
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..compiled.scalars import inner, prefetch, take_logs
from ..data import Data
from .diagonal_gaussian import DiagonalGaussian
from .spherical_gaussian import SphericalGaussian

ROUNDING = 1e-15
CANCELLED = 1e-8  # for a scatter: half of the digits


def centred(loc: Tensor, data: Data) -> np.ndarray:
    """The rows [N, D] less loc [D]."""
    rows: np.ndarray = (data.X - loc).contiguous().numpy()
    return rows


def table(*parts: Tensor) -> np.ndarray:
    """Components [W, slots] from their parts [slots, ...]."""
    return torch.cat(parts, 1).T.contiguous().numpy()


def entries(tril: Tensor) -> Tensor:
    """The entries [slots, D (D + 1) / 2] of lower triangular matrices [slots, D, D], row by row."""
    i, j = torch.tril_indices(*tril.shape[1:])
    return tril[:, i, j]


def shrinkage(kap: Tensor, size: int, counts: Tensor) -> Tensor:
    """D / 2 log(kap / (kap + 1)) [N] after `counts` [N] points; `kap` [] is the prior's value, and `size` is D."""
    return size / 2 * torch.log((kap + counts) / (kap + counts + 1))


def log_spread(degrees_of_freedom: Tensor, size: int, counts: Tensor) -> Tensor:
    """log Gamma((nu + 1) / 2) / Gamma((nu + 1 - R) / 2) [N] after `counts` [N] points, each of which adds 1 to nu."""
    top = (degrees_of_freedom + 1 + counts) / 2
    return torch.lgamma(top) - torch.lgamma(top - size / 2)


@inner
def fetch_row(X, n):
    """Prefetch all cache lines of row n of X [N, D]."""
    for d in range(0, X.shape[1], 8):
        prefetch(X, n * X.shape[1] + d)


@inner
def shift_mean(X, n, rows, k, start, sign):
    """Add x_n to the mean of slot k, or remove it, with kap in row 0."""
    rows[0, k] += sign
    step = sign / rows[0, k]
    for d in range(X.shape[1]):
        rows[start + d, k] += step * (X[n, d] - rows[start + d, k])


@inner
def shift_factor(rows, start, k, size, given, gain):
    """Replace L^-1 by (L M)^-1, where S + gain d d^T = L M M^T L^T, S = L L^T, p = L^-1 d and M M^T = I + gain p p^T.

    L^-1 is stored from row `start` on. Row i of M^-1 L^-1 needs only the rows above it, through their sum weighted by p
    / sqrt(s_i s_{i-1}), where s_i = 1 + gain (p_1^2 + .. + p_i^2). The last rows hold that sum and d. Returns the
    factor s by which the determinant grows, and that of its first `given` columns.
    """
    above, gap = len(rows) - 2 * size, len(rows) - size
    for j in range(size):
        rows[above + j, k] = 0.0
    growth, of_given, entry = 1.0, 1.0, start
    for i in range(size):
        p = 0.0
        for j in range(i + 1):
            p += rows[entry + j, k] * rows[gap + j, k]
        before, growth = growth, max(growth + gain * p * p, ROUNDING)
        shrink, weight = math.sqrt(before / growth), p / math.sqrt(before * growth)
        for j in range(i + 1):
            rows[entry + j, k] = (rows[entry + j, k] - gain * p * rows[above + j, k]) * shrink
            rows[above + j, k] += weight * rows[entry + j, k]
        if i + 1 == given:
            of_given = growth
        entry += i + 1
    return growth, of_given


class Spherical(NamedTuple):
    """Rows: kap, mean [D]."""

    components: np.ndarray
    X: np.ndarray  # [N, D], centred
    variance: float

    @classmethod
    def of(cls, family: SphericalGaussian, data: Data) -> Self:
        chi = family.prior().unsqueeze(0)
        kap = chi[:, -1:]
        return cls(table(kap, chi[:, :-1] / kap), centred(family.loc, data), float(family.variance))

    @staticmethod
    def log_normalizers(family: SphericalGaussian, counts: Tensor) -> Tensor:
        return shrinkage(family.prior()[-1], len(family.loc), counts)

    def fetch(self, n):
        fetch_row(self.X, n)

    def log_predictives(self, n, own, out, scratch):
        X, rows = self.X, self.components
        for k in range(len(out)):
            out[k] = 0.0
        for d in range(X.shape[1]):
            for k in range(len(out)):
                out[k] += (X[n, d] - rows[1 + d, k]) ** 2
        for k in range(len(out)):
            kap = rows[0, k]
            out[k] *= -kap / ((kap - 1.0 if k == own else kap + 1.0) * 2.0 * self.variance)

    def shift(self, n, k, sign):
        shift_mean(self.X, n, self.components, k, 1, sign)
        return False


class Diagonal(NamedTuple):
    """Rows: kap, a, sum log b / 2, mean [D], 1 / (2 b) [D]. One logarithm covers the product over sixteen columns."""

    components: np.ndarray
    X: np.ndarray  # [N, D], centred

    @classmethod
    def of(cls, family: DiagonalGaussian, data: Data) -> Self:
        m, kap, a, b = family.common(family.prior().unsqueeze(0))
        return cls(table(kap, a, b.log().sum(1, keepdim=True) / 2, m, 1 / (2 * b)), centred(family.loc, data))

    @staticmethod
    def log_normalizers(family: DiagonalGaussian, counts: Tensor) -> Tensor:
        """Include log Gamma(a + 1 / 2) / Gamma(a), as a grows by 1 / 2 with each point."""
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
