"""Compiled sums over assignments, in one pass over the points whatever the number of components."""

from ..compiled.decorators import lean_entry


@lean_entry
def add_rows(rows, labels, sums):
    """Add each of the rows [N, S] to row labels[n] of sums [K, S]."""
    for n in range(len(labels)):
        k = labels[n]
        for s in range(rows.shape[1]):
            sums[k, s] += rows[n, s]


@lean_entry
def count_moves(states, starts, moves):
    """Add the transitions of states [N] to moves [K + 1, K]; the last row counts the starts of sequences."""
    before = 0
    for t in range(len(states)):
        if starts[t]:
            before = moves.shape[1]
        moves[before, states[t]] += 1
        before = states[t]
