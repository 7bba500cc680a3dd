"""The collapsed scan compiled: one loop over the points, specialised by the type of the family's component state.

A family says how the columns of its `components` change and what they predict, up to terms that are the same for all
components or depend on a count alone (`urn`):

    log_predictives(state, n, own, out)    log p(x_n | the others in slot k), for every k; x_n itself is in slot `own`
    shift(state, n, k, sign)               take x_n into slot k (sign 1) or out of it (sign -1); returns whether so much
                                           cancelled that the components must be computed anew

With gain = kap / (kap + 1), or kap / (kap - 1) for `own`, the predictive is read from a component that still includes
x_n, so that nothing is updated for a point that stays. Inner loops run over the slots, which are contiguous.
"""

import math

import numpy as np
from numba import njit
from numba.extending import overload

from ._component_states import Bernoulli, Diagonal, Full, Multinomial, Poisson, Spherical

__all__ = ["fill_logits", "scan"]

# inf keeps its meaning; a division does not look for zero
_OPTIONS = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy"}
_INNER = {"inline": "always", **_OPTIONS}  # a function of its own takes longer to compile


# -- the scan ----------------------------------------------------------------------------------------------------------


@njit(cache=True, **_OPTIONS)
def fill_logits(state, n, own, counts, urn, log_margin, log_new, log_alone, logits):
    """Log weights [capacity] of the slots for point n; returns the free slot that stands for a new component.

    `log_alone` is (log prior weight of the component that n is alone in, correction of log_new if it is alone).
    """
    log_predictives(state, n, own, logits)
    free = -1
    for k in range(len(counts)):
        others = counts[k] - 1 if k == own else counts[k]
        if others > 0:
            logits[k] += urn[others]
            if log_margin.shape[1] > 0:
                logits[k] += log_margin[n, k]
        elif counts[k] == 0 and free < 0:
            free = k
            logits[k] += urn[0] + log_new[n]
            if counts[own] == 1:
                logits[k] += log_alone[1]
        elif k == own:
            logits[k] += urn[0] + log_alone[0]
            if log_margin.shape[1] > 0:
                logits[k] += log_margin[n, k]
        else:
            logits[k] = -np.inf
    return free


@njit(cache=True, **_OPTIONS)
def scan(state, position, order, uniforms, assignments, counts, urn, log_margin, log_new, log_alone):
    """Visit order[position:] one by one.

    Returns (position to go on from, slot opened or -1, slot closed or -1, stale). With classifiers (log_margin
    [N, capacity] is not empty) it stops after a point that opened or closed a component; and where the components must
    be computed anew (stale) because no slot is free or too much cancelled.
    """
    logits = np.empty(len(counts))
    occupied = 0
    for k in range(len(counts)):
        occupied += counts[k] > 0
    while position < len(order):
        n = order[position]
        position += 1
        own = assignments[n]
        free = fill_logits(state, n, own, counts, urn, log_margin, log_new, log_alone, logits)
        chosen = _draw(logits, uniforms[n])
        opened, closed, stale = -1, -1, False
        if counts[own] == 1 and chosen != own:
            closed = own
        if chosen == free:
            opened = free
            if closed >= 0:  # it leaves a component of its own for a new one: the same slot serves
                opened = chosen = own
        if chosen != own:
            counts[own] -= 1
            if counts[own] == 0:
                _clear(state.components, own)
                occupied -= 1
            else:
                stale = shift(state, n, own, -1.0)
            shift(state, n, chosen, 1.0)
            occupied += counts[chosen] == 0
            counts[chosen] += 1
            assignments[n] = chosen
            stale = stale or occupied == len(counts)
        if stale or (opened + closed > -2 and log_margin.shape[1] > 0):
            return position, opened, closed, stale
    return position, -1, -1, False


@njit(**_INNER)
def _clear(components, k):
    """Back to the prior, which the last column holds."""
    for w in range(len(components)):
        components[w, k] = components[w, -1]


@njit(**_INNER)
def _draw(logits, uniform):
    """Inverse CDF of the categorical law; overwrites the logits by weights."""
    top = -np.inf
    for k in range(len(logits)):
        top = max(top, logits[k])
    total = 0.0
    for k in range(len(logits)):
        gap = logits[k] - top
        # smaller weights vanish in the rounding of the sum
        logits[k] = math.exp(gap) if gap > -40.0 else 0.0
        total += logits[k]
    level = uniform * total
    chosen = -1
    for k in range(len(logits)):
        if logits[k] > 0.0:
            chosen = k
            level -= logits[k]
            if level < 0.0:
                break
    return chosen


# -- what a family defines; resolved at compile time by the type of the state ------------------------------------------


def log_predictives(state, n, own, out):
    raise NotImplementedError


def shift(state, n, k, sign):
    raise NotImplementedError


def _implements(function, family):
    """Decorator: the implementation of one of the two functions for one component state."""

    def register(implementation):
        def choose(state, *arguments):
            return implementation if getattr(state, "instance_class", None) is family else None

        overload(function, jit_options=_OPTIONS, strict=False)(choose)
        return implementation

    return register


# -- Gaussian families: kap and the mean, then whatever describes the spread -------------------------------------------
# Loops over plain indices throughout: slices and array expressions take numba far longer to compile.


@njit(**_INNER)
def _shift_mean(X, n, rows, k, start, sign):
    """kap stands in the first row."""
    rows[0, k] += sign
    for d in range(X.shape[1]):
        rows[start + d, k] += sign * (X[n, d] - rows[start + d, k]) / rows[0, k]


@_implements(log_predictives, Spherical)
def _log_predictives_spherical(state, n, own, out):
    X, rows = state.X, state.components
    for k in range(len(out)):
        out[k] = 0.0
    for d in range(X.shape[1]):
        for k in range(len(out)):
            out[k] += (X[n, d] - rows[1 + d, k]) ** 2
    for k in range(len(out)):
        kap = rows[0, k]
        out[k] *= -kap / ((kap - 1.0 if k == own else kap + 1.0) * 2.0 * state.variance)


@_implements(shift, Spherical)
def _shift_spherical(state, n, k, sign):
    _shift_mean(state.X, n, state.components, k, 1, sign)
    return False


@_implements(log_predictives, Diagonal)
def _log_predictives_diagonal(state, n, own, out):
    """One logarithm for the product over sixteen columns."""
    X, rows = state.X, state.components
    size = X.shape[1]
    gain, product = np.empty(len(out)), np.empty(len(out))
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
            _take_logs(product, out)
    for k in range(len(out)):
        sign = -1.0 if k == own else 1.0
        out[k] = -rows[2, k] - sign * (rows[1, k] + sign * 0.5) * out[k]


@_implements(shift, Diagonal)
def _shift_diagonal(state, n, k, sign):
    X, rows = state.X, state.components
    size = X.shape[1]
    gain = sign * rows[0, k] / (rows[0, k] + sign)
    rows[1, k] += sign * 0.5
    least = 1.0
    for d in range(size):
        factor = max(1.0 + gain * (X[n, d] - rows[3 + d, k]) ** 2 * rows[3 + size + d, k], _ROUNDING)
        rows[2, k] += 0.5 * math.log(factor)
        rows[3 + size + d, k] /= factor
        least = min(least, factor)
    _shift_mean(X, n, rows, k, 3, sign)
    return least < _CANCELLED


@njit(**_INNER)
def _take_logs(product, out):
    """Add the logarithms of the products and start them anew."""
    for k in range(len(out)):
        out[k] += math.log(min(max(product[k], 1e-300), 1e300))
        product[k] = 1.0


@_implements(log_predictives, Full)
def _log_predictives_full(state, n, own, out):
    """|L^-1 (x - mean)|^2 costs D^2 / 2; the determinants follow from it."""
    X, rows = state.X, state.components
    size = X.shape[1]
    gap, inner = np.empty((size, len(out))), np.empty(len(out))
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
        out[k] = -rows[2, k] - sign * 0.5 * (rows[1, k] + sign) * math.log(factor)


@_implements(shift, Full)
def _shift_full(state, n, k, sign):
    """Psi + gain d d^T = L M M^T L^T with d = x - mean, p = L^-1 d and M M^T = I + gain p p^T.

    Row i of M^-1 L^-1 takes only the rows above it, through their sum weighted by p / sqrt(s_i s_{i-1}), where
    s_i = 1 + gain (p_1^2 + .. + p_i^2).
    """
    X, rows = state.X, state.components
    size = X.shape[1]
    gain = sign * rows[0, k] / (rows[0, k] + sign)
    above = np.zeros(size)
    before, entry = 1.0, 3 + size
    for i in range(size):
        p = 0.0
        for j in range(i + 1):
            p += rows[entry + j, k] * (X[n, j] - rows[3 + j, k])
        after = max(before + gain * p * p, _ROUNDING)
        shrink, weight = math.sqrt(before / after), p / math.sqrt(before * after)
        for j in range(i + 1):
            rows[entry + j, k] = (rows[entry + j, k] - gain * p * above[j]) * shrink
            above[j] += weight * rows[entry + j, k]
        before = after
        entry += i + 1
    rows[1, k] += sign
    rows[2, k] += 0.5 * math.log(before)
    _shift_mean(X, n, rows, k, 3, sign)
    return before < _CANCELLED


# -- counts: only those above zero are visited -------------------------------------------------------------------------


@njit(**_INNER)
def _log_rising(a, count):
    """log Gamma(a + count) / Gamma(a): the product, Stirling's series where it is exact, or the definition."""
    if count <= 16:
        product = 1.0
        for i in range(count):
            product *= a + i
        return math.log(product)
    if a > 16.0:
        b = a + count
        return (a - 0.5) * math.log1p(count / a) + count * (math.log(b) - 1.0) + _stirling(b) - _stirling(a)
    return math.lgamma(a + count) - math.lgamma(a)


@njit(**_INNER)
def _stirling(a):
    square = a * a
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * square)) / square) / square) / a


@njit(**_INNER)
def _add_log_rising_rows(state, n, own, start, out):
    """sum_d log Gamma(a_d + x_d) / Gamma(a_d), without x_n in `own`: one logarithm for the product of 32 factors."""
    rows = state.components
    product = np.ones(len(out))
    factors = 0
    for index in range(state.starts[n], state.starts[n + 1]):
        count, row = state.counts[index], start + state.columns[index]
        rows[row, own] = max(rows[row, own] - count, 1e-300)
        if count > 16:
            for k in range(len(out)):
                out[k] += _log_rising(rows[row, k], count)
        else:
            for i in range(count):
                for k in range(len(out)):
                    product[k] *= rows[row, k] + i
                factors += 1
                if factors % 32 == 0:
                    _take_logs(product, out)
        rows[row, own] += count
    _take_logs(product, out)


@njit(**_INNER)
def _shift_counts(state, n, k, start, sign):
    state.components[0, k] += sign * state.totals[n]
    for index in range(state.starts[n], state.starts[n + 1]):
        state.components[start + state.columns[index], k] += sign * state.counts[index]


@_implements(log_predictives, Multinomial)
def _log_predictives_multinomial(state, n, own, out):
    total = state.totals[n]
    for k in range(len(out)):
        a = state.components[0, k]
        out[k] = -_log_rising(a - total if k == own else a, total)
    _add_log_rising_rows(state, n, own, 1, out)


@_implements(shift, Multinomial)
def _shift_multinomial(state, n, k, sign):
    _shift_counts(state, n, k, 1, sign)
    return False


@_implements(log_predictives, Poisson)
def _log_predictives_poisson(state, n, own, out):
    total = state.totals[n]
    for k in range(len(out)):
        shape, rate = state.components[0, k], state.components[1, k]
        if k == own:
            shape, rate = shape - total, rate - 1.0
        out[k] = shape * math.log(rate / (rate + 1.0)) - total * math.log(rate + 1.0)
    _add_log_rising_rows(state, n, own, 2, out)


@_implements(shift, Poisson)
def _shift_poisson(state, n, k, sign):
    state.components[1, k] += sign
    _shift_counts(state, n, k, 2, sign)
    return False


# -- binary columns ----------------------------------------------------------------------------------------------------


@_implements(log_predictives, Bernoulli)
def _log_predictives_bernoulli(state, n, own, out):
    X, rows = state.X, state.components
    size = X.shape[1]
    for k in range(len(out)):
        out[k] = rows[0, k]
    without, product = 0.0, 1.0
    for d in range(size):
        a, b = rows[1 + d, own], rows[1 + size + d, own]
        if X[n, d] > 0.0:
            for k in range(len(out)):
                out[k] += rows[1 + 2 * size + d, k]
            product *= max(a - 1.0, 1e-20)
        else:
            product *= max(b - 1.0, 1e-20)
        product /= a + b - 1.0
        if product < 1e-150:
            without += math.log(product)
            product = 1.0
    out[own] = without + math.log(product)


@_implements(shift, Bernoulli)
def _shift_bernoulli(state, n, k, sign):
    X, rows = state.X, state.components
    size = X.shape[1]
    rows[0, k] = 0.0
    for d in range(size):
        rows[1 + d, k] += sign * X[n, d]
        rows[1 + size + d, k] += sign * (1.0 - X[n, d])
        ratio = rows[1 + d, k] / rows[1 + size + d, k]
        rows[0, k] -= math.log1p(ratio)
        rows[1 + 2 * size + d, k] = math.log(ratio)
    return False


_ROUNDING = 1e-15
_CANCELLED = 1e-8  # of a scatter: half of the digits
