"""The Gaussian families compiled: kap and the mean, then whatever describes the spread; and regressions.

With gain = kap / (kap + 1), or kap / (kap - 1) for a component that includes x_n. Loops over plain indices throughout:
slices and array expressions take numba far longer to compile.
"""

import math

from ...compiled._numba_machine import log, prefetch
from ...compiled.decorators import inner
from ._component_states import Diagonal, Full, Regression, Spherical
from ._numba_family import fetch, implements, log_predictives, shift, take_logs


@implements(fetch, Spherical)
@implements(fetch, Diagonal)
@implements(fetch, Full)
@implements(fetch, Regression)
def _fetch_row(state, n):
    """All lines of the cache that it covers."""
    size = state.X.shape[1]
    for d in range(0, size, 8):
        prefetch(state.X, n * size + d)


@inner
def _shift_mean(X, n, rows, k, start, sign):
    """kap stands in the first row."""
    rows[0, k] += sign
    step = sign / rows[0, k]
    for d in range(X.shape[1]):
        rows[start + d, k] += step * (X[n, d] - rows[start + d, k])


@implements(log_predictives, Spherical)
def _log_predictives_spherical(state, n, own, out, scratch):
    X, rows = state.X, state.components
    for k in range(len(out)):
        out[k] = 0.0
    for d in range(X.shape[1]):
        for k in range(len(out)):
            out[k] += (X[n, d] - rows[1 + d, k]) ** 2
    for k in range(len(out)):
        kap = rows[0, k]
        out[k] *= -kap / ((kap - 1.0 if k == own else kap + 1.0) * 2.0 * state.variance)


@implements(shift, Spherical)
def _shift_spherical(state, n, k, sign):
    _shift_mean(state.X, n, state.components, k, 1, sign)
    return False


@implements(log_predictives, Diagonal)
def _log_predictives_diagonal(state, n, own, out, scratch):
    """One logarithm for the product over sixteen columns."""
    X, rows = state.X, state.components
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
            product[k] *= max(factor, _ROUNDING)
        if d % 16 == 15 or d == size - 1:
            take_logs(product, out)
    for k in range(len(out)):
        sign = -1.0 if k == own else 1.0
        out[k] = -rows[2, k] - sign * (rows[1, k] + sign * 0.5) * out[k]


@implements(shift, Diagonal)
def _shift_diagonal(state, n, k, sign):
    X, rows = state.X, state.components
    size = X.shape[1]
    gain = sign * rows[0, k] / (rows[0, k] + sign)
    rows[1, k] += sign * 0.5
    least, product = 1.0, 1.0
    for d in range(size):
        factor = max(1.0 + gain * (X[n, d] - rows[3 + d, k]) ** 2 * rows[3 + size + d, k], _ROUNDING)
        rows[3 + size + d, k] /= factor
        least = min(least, factor)
        product *= factor
        if product < 1e-100 or product > 1e100 or d == size - 1:
            rows[2, k] += 0.5 * math.log(product)
            product = 1.0
    _shift_mean(X, n, rows, k, 3, sign)
    return least < _CANCELLED


@implements(log_predictives, Full)
def _log_predictives_full(state, n, own, out, scratch):
    """|L^-1 (x - mean)|^2 costs D^2 / 2; the determinants follow from it."""
    X, rows = state.X, state.components
    size = X.shape[1]
    inner, gap = scratch[0], scratch[1:]
    for k in range(len(out)):
        out[k] = 0.0
    entry = 3 + size
    for i in range(size):
        for k in range(len(out)):
            gap[i, k] = X[n, i] - rows[3 + i, k]
            inner[k] = 0.0
        for j in range(i + 1):
            for k in range(len(out)):
                inner[k] += rows[entry + j, k] * gap[j, k]
        entry += i + 1
        for k in range(len(out)):
            out[k] += inner[k] ** 2
    for k in range(len(out)):
        sign = -1.0 if k == own else 1.0
        factor = max(1.0 + sign * rows[0, k] / (rows[0, k] + sign) * out[k], _ROUNDING)
        out[k] = -rows[2, k] - sign * 0.5 * (rows[1, k] + sign) * log(factor)


@implements(shift, Full)
def _shift_full(state, n, k, sign):
    X, rows = state.X, state.components
    size = X.shape[1]
    for d in range(size):
        rows[len(rows) - size + d, k] = X[n, d] - rows[3 + d, k]
    growth, _ = _shift_factor(rows, 3 + size, k, size, 0, sign * rows[0, k] / (rows[0, k] + sign))
    rows[1, k] += sign
    rows[2, k] += 0.5 * math.log(growth)
    _shift_mean(X, n, rows, k, 3, sign)
    return growth < _CANCELLED


@implements(log_predictives, Regression)
def _log_predictives_regression(state, n, own, out, scratch):
    """|L^-1 (a, v)|^2 is the leverage a^T K^-1 a, which its first rows give, and r^T Psi^-1 r of the residual r."""
    X, rows = state.X, state.components
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
        if i + 1 == state.given:
            for k in range(len(out)):
                leverage[k] = out[k]
    for k in range(len(out)):
        sign = -1.0 if k == own else 1.0
        growth, of_given = max(1.0 + sign * out[k], _ROUNDING), max(1.0 + sign * leverage[k], _ROUNDING)
        degrees = rows[0, k] + sign
        logs = degrees * log(growth) - (degrees - (size - state.given)) * log(of_given)
        out[k] = -rows[1, k] - sign * 0.5 * logs


@implements(shift, Regression)
def _shift_regression(state, n, k, sign):
    X, rows = state.X, state.components
    size = X.shape[1]
    for d in range(size):
        rows[len(rows) - size + d, k] = X[n, d]
    growth, of_given = _shift_factor(rows, 2, k, size, state.given, sign)
    rows[0, k] += sign
    rows[1, k] += 0.5 * math.log(growth / of_given)
    return growth < _CANCELLED


@inner
def _shift_factor(rows, start, k, size, given, gain):
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
        before, growth = growth, max(growth + gain * p * p, _ROUNDING)
        shrink, weight = math.sqrt(before / growth), p / math.sqrt(before * growth)
        for j in range(i + 1):
            rows[entry + j, k] = (rows[entry + j, k] - gain * p * rows[above + j, k]) * shrink
            rows[above + j, k] += weight * rows[entry + j, k]
        if i + 1 == given:
            of_given = growth
        entry += i + 1
    return growth, of_given


_ROUNDING = 1e-15
_CANCELLED = 1e-8  # of a scatter: half of the digits
