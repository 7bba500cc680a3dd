"""What the compiled forms of the Gaussian families and of regressions share: kap and the mean, and the spread.

With gain = kap / (kap + 1), or kap / (kap - 1) for a component that includes x_n. Loops over plain indices throughout:
slices and array expressions take numba far longer to compile.
"""

import math

import numpy as np
import torch
from torch import Tensor

from ..compiled.scalars import inner, prefetch
from ..data import Data

ROUNDING = 1e-15
CANCELLED = 1e-8  # of a scatter: half of the digits


def centred(loc: Tensor, data: Data) -> np.ndarray:
    """The rows [N, D] less loc [D]."""
    rows: np.ndarray = (data.X - loc).contiguous().numpy()
    return rows


def table(*parts: Tensor) -> np.ndarray:
    """Components [W, slots] from parts [slots, ...]."""
    return torch.cat(parts, 1).T.contiguous().numpy()


def entries(tril: Tensor) -> Tensor:
    """Rows one after another, [slots, D (D + 1) / 2], of lower triangles [slots, D, D]."""
    i, j = torch.tril_indices(*tril.shape[1:])
    return tril[:, i, j]


def shrinkage(kap: Tensor, size: int, counts: Tensor) -> Tensor:
    """D / 2 log(kap / (kap + 1)) [N] for kap [] of the prior after so many points, counts [N]."""
    return size / 2 * torch.log((kap + counts) / (kap + counts + 1))


def log_spread(degrees_of_freedom: Tensor, size: int, counts: Tensor) -> Tensor:
    """log Gamma((nu + 1) / 2) / Gamma((nu + 1 - R) / 2) [N]; nu grows by 1 with each point, counts [N]."""
    top = (degrees_of_freedom + 1 + counts) / 2
    return torch.lgamma(top) - torch.lgamma(top - size / 2)


@inner
def fetch_row(X, n):
    """All lines of the cache that row n of X [N, D] covers."""
    for d in range(0, X.shape[1], 8):
        prefetch(X, n * X.shape[1] + d)


@inner
def shift_mean(X, n, rows, k, start, sign):
    """kap stands in the first row."""
    rows[0, k] += sign
    step = sign / rows[0, k]
    for d in range(X.shape[1]):
        rows[start + d, k] += step * (X[n, d] - rows[start + d, k])


@inner
def shift_factor(rows, start, k, size, given, gain):
    """S + gain d d^T = L M M^T L^T with S = L L^T, p = L^-1 d and M M^T = I + gain p p^T; L^-1 stands from `start` on.

    Row i of M^-1 L^-1 takes only the rows above it, through their sum weighted by p / sqrt(s_i s_{i-1}), where
    s_i = 1 + gain (p_1^2 + .. + p_i^2). The sum and d stand in the last rows. Returns the growth s of the determinant,
    and that of its first `given` columns.
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
