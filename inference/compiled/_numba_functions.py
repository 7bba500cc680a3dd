"""Functions that several compiled kernels share."""

import math

import numpy as np

from .decorators import inner, lean_part, part


@inner
def some_rows(first, number, most):
    """Start and number of at most `most` rows from `first` on, unsigned, so that loops use vector instructions."""
    return np.uint64(first), np.uint64(min(most, number - first))


@inner
def back(tril, vector):
    """Replace a vector [P] by L^-T times it."""
    for p in range(len(vector) - 1, -1, -1):
        for o in range(p + 1, len(vector)):
            vector[p] -= tril[o, p] * vector[o]
        vector[p] /= tril[p, p]


@lean_part
def solve(tril, mean):
    """Replace A [P, P] (lower half) and A m by the Cholesky factor and m; return log det A."""
    log_det, P = 0.0, len(tril)
    for p in range(P):
        for q in range(p + 1):
            value = tril[p, q]
            for o in range(q):
                value -= tril[p, o] * tril[q, o]
            tril[p, q] = math.sqrt(value) if p == q else value / tril[q, q]
        log_det += 2.0 * math.log(tril[p, p])
        for q in range(p):
            mean[p] -= tril[p, q] * mean[q]
        mean[p] /= tril[p, p]
    back(tril, mean)
    return log_det


@part
def threshold(values, mass):
    """theta with sum_m max(values_m - theta, 0) = mass: entries below theta are left out until none is."""
    found = -np.inf
    while True:
        total, count = 0.0, 0
        for value in values:
            if value > found:
                total += value
                count += 1
        following = (total - mass) / count if count else found
        if following <= found:
            return found
        found = following


@part
def digamma(x):
    """digamma(x) for x > 0."""
    shifted, rest = _shift(x)
    return math.log(shifted) + rest


@inner
def exp_digamma(x):
    """exp(digamma(x)) for x > 0, without computing its logarithm."""
    shifted, rest = _shift(x)
    return shifted * math.exp(rest)


@inner
def _shift(x):
    """y and digamma(x) - log(y), from the recurrence up to y >= 10 and the asymptotic series."""
    rest = 0.0
    while x < 10.0:
        rest -= 1.0 / x
        x += 1.0
    square = 1.0 / (x * x)
    series = (1 / 12 - (1 / 120 - (1 / 252 - (1 / 240 - square / 132) * square) * square) * square) * square
    return x, rest - 0.5 / x - series
