"""Sums over rows compiled: one pass, whatever the number of groups."""

from ..compiled.decorators import lean_entry


@lean_entry
def add_rows(rows, labels, sums):
    """Adds each of the rows [N, S] to that of its label in sums [K, S]."""
    for n in range(len(labels)):
        k = labels[n]
        for s in range(rows.shape[1]):
            sums[k, s] += rows[n, s]
