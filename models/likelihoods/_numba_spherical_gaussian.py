"""`SphericalGaussian` compiled."""

from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from ..data import Data
from ._numba_gaussians import centred, fetch_row, shift_mean, shrinkage, table
from .spherical_gaussian import SphericalGaussian


class Spherical(NamedTuple):
    """Rows (kap, mean [D])."""

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
