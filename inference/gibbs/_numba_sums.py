"""What labels add up to, compiled: one pass over them, whatever their number."""

from ..compiled.decorators import lean_entry


@lean_entry
def add_rows(rows, labels, sums):
    """Adds each of the rows [N, S] to that of its label in sums [K, S]."""
    for n in range(len(labels)):
        k = labels[n]
        for s in range(rows.shape[1]):
            sums[k, s] += rows[n, s]


@lean_entry
def count_moves(states, starts, moves):
    """Adds the moves of states [N] to those from each to each, [K + 1, K]; sequences start from the last row."""
    before = 0
    for t in range(len(states)):
        if starts[t]:
            before = moves.shape[1]
        moves[before, states[t]] += 1
        before = states[t]
