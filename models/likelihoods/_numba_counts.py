"""What the compiled forms of the families of counts and bits share: only the entries above zero are visited."""

import numpy as np

from ..compiled.scalars import inner, log_rising, take_logs
from ..data import Data


def compressed(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts [N + 1], columns [nnz] and counts [nnz] of the rows."""
    starts, columns, values = (np.ascontiguousarray(array.numpy()) for array in data.nonzeros)
    return starts, columns, values.astype(np.int64)


def with_totals(data: Data) -> tuple[np.ndarray, ...]:
    """The same and the sums [N] of the rows."""
    starts, columns, counts = compressed(data)
    return starts, columns, counts, np.diff(np.concatenate([[0], counts.cumsum()])[starts])


@inner
def add_log_rising_rows(state, n, own, start, out, product):
    """sum_d log Gamma(a_d + x_d) / Gamma(a_d), without x_n in `own`: one logarithm for the product of 32 factors."""
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
    """The row's total in the first row, its entries from row `start` on."""
    state.components[0, k] += sign * state.totals[n]
    for index in range(state.starts[n], state.starts[n + 1]):
        state.components[start + state.columns[index], k] += sign * state.counts[index]
