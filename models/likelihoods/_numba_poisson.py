"""`PoissonGamma` compiled."""

import math
from typing import NamedTuple, Self

import numpy as np

from ..compiled.scalars import prefetch
from ..data import Data
from ._numba_counts import add_log_rising_rows, shift_counts, with_totals
from .poisson import PoissonGamma


class Poisson(NamedTuple):
    """Rows (sum a, b, a [D])."""

    components: np.ndarray
    starts: np.ndarray  # [N + 1]
    columns: np.ndarray  # [starts[N]]
    counts: np.ndarray  # [starts[N]]
    totals: np.ndarray  # [N]

    @classmethod
    def of(cls, family: PoissonGamma, data: Data) -> Self:
        a, b = family.shape.numpy()[:, None], family.rate.reshape(1, 1).numpy()
        return cls(np.concatenate([a.sum(0, keepdims=True), b, a]), *with_totals(data))

    def fetch(self, n):
        prefetch(self.columns, self.starts[n])

    def log_predictives(self, n, own, out, scratch):
        total = self.totals[n]
        for k in range(len(out)):
            shape, rate = self.components[0, k], self.components[1, k]
            if k == own:
                shape, rate = shape - total, rate - 1.0
            out[k] = shape * math.log(rate / (rate + 1.0)) - total * math.log(rate + 1.0)
        add_log_rising_rows(self, n, own, 2, out, scratch[0])

    def shift(self, n, k, sign):
        self.components[1, k] += sign
        shift_counts(self, n, k, 2, sign)
        return False
