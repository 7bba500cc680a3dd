"""Compiled passes over the rows of a mixture: nearest centres with their lead, and sums of rows."""

import numpy as np

from ..compiled.decorators import entry


@entry
def leaders(products, offset, nearest, lead):
    """Minimize offset[k] - products[k, n] over k: set nearest [N], and lead [N], the distance to the next value."""
    num_components, num_rows = products.shape
    least = np.full(num_rows, np.inf, lead.dtype)
    nearest[:] = 0
    lead[:] = np.inf
    for k in range(num_components):
        constant = offset[k]
        for n in range(num_rows):  # no branches, so that the loop is vectorized over rows
            value, before = constant - products[k, n], least[n]
            lower = value < before
            rival = before if lower else value
            lead[n] = rival if rival < lead[n] else lead[n]
            nearest[n] = k if lower else nearest[n]
            least[n] = value if lower else before
    for n in range(num_rows):
        lead[n] -= least[n]


@entry
def add_rows(X, times, assignments, sums, counts):
    """Add each row of X [N, D] to the sums [K, D] and the counts [K] of its component, times its weight, [N] or [1]."""
    for n in range(len(X)):
        k, count = assignments[n], times[n if len(times) > 1 else 0]
        counts[k] += count
        for d in range(X.shape[1]):
            sums[k, d] += count * X[n, d]
