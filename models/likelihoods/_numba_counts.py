"""The compiled forms of the families of counts, which read only the entries above zero."""

import math
from typing import NamedTuple, Self

import numpy as np

from ..compiled.scalars import inner, log_rising, prefetch, take_logs
from ..data import Data
from .multinomial import MultinomialDirichlet
from .poisson import PoissonGamma


def compressed(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first entry of each row [N + 1], and columns [nnz] and counts [nnz] of the entries above zero."""
    starts, columns, values = (np.ascontiguousarray(array.numpy()) for array in data.nonzeros)
    return starts, columns, values.astype(np.int64)


def with_totals(data: Data) -> tuple[np.ndarray, ...]:
    """The arrays of `compressed`, and the sums [N] of the rows."""
    starts, columns, counts = compressed(data)
    return starts, columns, counts, np.diff(np.concatenate([[0], counts.cumsum()])[starts])


@inner
def add_log_rising_rows(state, n, own, start, out, product):
    """sum_d log Gamma(a_d + x_d) / Gamma(a_d), without x_n in slot `own`; one logarithm for 32 factors."""
    rows = state.components
    for k in range(len(out)):
        product[k] = 1.0
    factors = 0
    for index in range(state.starts[n], state.starts[n + 1]):
        count, row = state.counts[index], start + state.columns[index]
        rows[row, own] = max(rows[row, own] - count, 1e-300)
        if count > 16:
            for k in range(len(out)):
                out[k] += log_rising(rows[row, k], count)
        else:
            for i in range(count):
                for k in range(len(out)):
                    product[k] *= rows[row, k] + i
                factors += 1
                if factors % 32 == 0:
                    take_logs(product, out)
        rows[row, own] += count
    take_logs(product, out)


@inner
def shift_counts(state, n, k, start, sign):
    """Add the row's total to row 0 of the components, and its entries to the rows from `start` on."""
    state.components[0, k] += sign * state.totals[n]
    for index in range(state.starts[n], state.starts[n + 1]):
        state.components[start + state.columns[index], k] += sign * state.counts[index]


class Multinomial(NamedTuple):
    """Rows: sum a, a [D]."""

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


class Poisson(NamedTuple):
    """Rows: sum a, b, a [D]."""

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
