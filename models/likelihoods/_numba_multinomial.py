"""`MultinomialDirichlet` compiled."""

from typing import NamedTuple, Self

import numpy as np

from ..compiled.scalars import log_rising, prefetch
from ..data import Data
from ._numba_counts import add_log_rising_rows, shift_counts, with_totals
from .multinomial import MultinomialDirichlet


class Multinomial(NamedTuple):
    """Rows (sum a, a [D])."""

    components: np.ndarray
    starts: np.ndarray  # [N + 1]
    columns: np.ndarray  # [starts[N]]
    counts: np.ndarray  # [starts[N]]
    totals: np.ndarray  # [N]

    @classmethod
    def of(cls, family: MultinomialDirichlet, data: Data) -> Self:
        a = family.concentration.numpy()[:, None]
        return cls(np.concatenate([a.sum(0, keepdims=True), a]), *with_totals(data))

    def fetch(self, n):
        prefetch(self.columns, self.starts[n])

    def log_predictives(self, n, own, out, scratch):
        total = self.totals[n]
        for k in range(len(out)):
            a = self.components[0, k]
            out[k] = -log_rising(a - total if k == own else a, total)
        add_log_rising_rows(self, n, own, 1, out, scratch[0])

    def shift(self, n, k, sign):
        shift_counts(self, n, k, 1, sign)
        return False
