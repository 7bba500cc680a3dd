"""The families of counts and bits compiled: only the entries above zero are visited."""

import math

from ...compiled._numba_machine import prefetch
from ...compiled.decorators import inner
from ._component_states import Bernoulli, Multinomial, Poisson
from ._numba_family import fetch, implements, log_predictives, shift, take_logs


@inner
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


@inner
def _stirling(a):
    square = a * a
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * square)) / square) / square) / a


@inner
def _add_log_rising_rows(state, n, own, start, out, product):
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
                out[k] += _log_rising(rows[row, k], count)
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
def _shift_counts(state, n, k, start, sign):
    state.components[0, k] += sign * state.totals[n]
    for index in range(state.starts[n], state.starts[n + 1]):
        state.components[start + state.columns[index], k] += sign * state.counts[index]


@implements(fetch, Multinomial)
@implements(fetch, Poisson)
@implements(fetch, Bernoulli)
def _fetch_row(state, n):
    prefetch(state.columns, state.starts[n])


@implements(log_predictives, Multinomial)
def _log_predictives_multinomial(state, n, own, out, scratch):
    total = state.totals[n]
    for k in range(len(out)):
        a = state.components[0, k]
        out[k] = -_log_rising(a - total if k == own else a, total)
    _add_log_rising_rows(state, n, own, 1, out, scratch[0])


@implements(shift, Multinomial)
def _shift_multinomial(state, n, k, sign):
    _shift_counts(state, n, k, 1, sign)
    return False


@implements(log_predictives, Poisson)
def _log_predictives_poisson(state, n, own, out, scratch):
    total = state.totals[n]
    for k in range(len(out)):
        shape, rate = state.components[0, k], state.components[1, k]
        if k == own:
            shape, rate = shape - total, rate - 1.0
        out[k] = shape * math.log(rate / (rate + 1.0)) - total * math.log(rate + 1.0)
    _add_log_rising_rows(state, n, own, 2, out, scratch[0])


@implements(shift, Poisson)
def _shift_poisson(state, n, k, sign):
    state.components[1, k] += sign
    _shift_counts(state, n, k, 2, sign)
    return False


# -- bits: only the ones are visited -----------------------------------------------------------------------------------


@implements(log_predictives, Bernoulli)
def _log_predictives_bernoulli(state, n, own, out, scratch):
    """The sum over all columns as if they were 0, corrected where x_n has a 1: by log(a / b)."""
    rows = state.components
    one, zero = scratch[0], scratch[1]
    without, size, last = rows[1, own], rows[2, own], state.starts[n + 1]
    for k in range(len(out)):
        out[k] = rows[0, k]
        one[k], zero[k] = 1.0, 1.0
    for first in range(state.starts[n], last, 16):  # one logarithm for the product over sixteen columns
        own_one, own_zero = 1.0, 1.0
        for index in range(first, min(first + 16, last)):
            d = state.columns[index]
            a, b = state.a[d], state.b[d]
            for k in range(len(out)):
                one[k] *= a + rows[3 + d, k]
                zero[k] *= b + rows[2, k] - rows[3 + d, k]
            ones = rows[3 + d, own]
            own_one *= a + ones - 1.0
            own_zero *= b + size - ones - 1.0 if ones < size else a + b + size - 1.0
        without += math.log(own_one / own_zero)
        for k in range(len(out)):
            one[k] /= zero[k]
            zero[k] = 1.0
        take_logs(one, out)
    out[own] = without


@implements(shift, Bernoulli)
def _shift_bernoulli(state, n, k, sign):
    rows = state.components
    rows[2, k] += sign
    for index in range(state.starts[n], state.starts[n + 1]):
        rows[3 + state.columns[index], k] += sign
    size, log_zero, log_before = rows[2, k], 0.0, 0.0
    zero, before = 1.0, 1.0
    for d in range(len(state.a)):
        zeros, total = state.b[d] + size - rows[3 + d, k], state.a[d] + state.b[d] + size
        zero *= zeros / total
        if rows[3 + d, k] < size:
            before *= (zeros - 1.0) / (total - 1.0)
        if min(zero, before) < 1e-150:
            log_zero += math.log(zero)
            log_before += math.log(before)
            zero, before = 1.0, 1.0
    rows[0, k], rows[1, k] = log_zero + math.log(zero), log_before + math.log(before)
    return False
