"""Passes over the rows of a mixture, compiled: nearest centres and their lead, sums."""

import numpy as np

from ..compiled.decorators import entry


@entry
def leaders(products, offset, nearest, lead):
    """The least of offset[k] - products[k, n] over k: where, nearest [N], and how far below the next, lead [N]."""
    num_components, num_rows = products.shape
    least = np.full(num_rows, np.inf, lead.dtype)
    nearest[:] = 0
    lead[:] = np.inf
    for k in range(num_components):
        constant = offset[k]
        for n in range(num_rows):  # without branches: many rows at once
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
    """Add each row of X [N, D] to the sums [K, D] of its component and to its counts [K], `times` [N] or [1] times."""
    for n in range(len(X)):
        k, count = assignments[n], times[n if len(times) > 1 else 0]
        counts[k] += count
        for d in range(X.shape[1]):
            sums[k, d] += count * X[n, d]
