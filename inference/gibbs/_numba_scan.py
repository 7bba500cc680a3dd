"""The collapsed scan compiled: one loop over the points, specialised by the type of the family's component state."""

from typing import NamedTuple

import numpy as np

from ..compiled import entry, inner, part
from ._numba_family import log_predictives
from ._numba_moves import draw, move_row, outcome


class Partition(NamedTuple):
    """What `collapsed` has of the partition, as arrays."""

    assignments: np.ndarray  # [N]
    counts: np.ndarray  # [capacity], 0: free
    log_opening: np.ndarray  # [N + 1] log weight of a new component by the number of the others
    log_margin: np.ndarray  # [N, capacity], or [N, 0] without classifiers
    log_new: np.ndarray  # [N] log I(x_n, y_n)
    log_alone: np.ndarray  # [2] corrections of a point's own component and of a new one if it is alone


@entry
def fill_logits(state, partition, urn, n, logits):
    """Log weights [capacity] of the slots for point n; the first free slot stands for a new component.

    urn [N + 1] has what a component weighs by the number of its points, the family's normalizer included.
    """
    assignments, counts, log_opening, log_margin, log_new, log_alone = partition
    own, occupied = assignments[n], _count_occupied(counts)
    _fill(state, n, own, counts, occupied, urn, log_opening, log_margin, log_new, log_alone, logits)


@inner
def _count_occupied(counts):
    occupied = len(counts)  # from a literal 0 numba would compile `_fill` twice
    for k in range(len(counts)):
        occupied -= counts[k] == 0
    return occupied


@part
def _fill(state, n, own, counts, occupied, urn, log_opening, log_margin, log_new, log_alone, logits):
    """`fill_logits` for a known number of components; returns the free slot."""
    alone = counts[own] == 1
    opening = urn[0] + log_opening[occupied - 1 if alone else occupied]
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
            logits[k] += opening + log_new[n]
            if alone:
                logits[k] += log_alone[1]
        elif k == own:
            logits[k] += opening + log_alone[0]
            if log_margin.shape[1] > 0:
                logits[k] += log_margin[n, k]
        else:
            logits[k] = -np.inf
    return free


@entry
def scan(state, partition, urn, position, order, uniforms):
    """Visit order[position:] one by one.

    Returns (position to go on from, slot opened or -1, slot closed or -1, stale). With classifiers it stops after a
    point that opened or closed a component; and where the components must be computed anew (stale) because no slot is
    free or too much cancelled.
    """
    assignments, counts, log_opening, log_margin, log_new, log_alone = partition  # once: it costs more than a visit
    logits, occupied = np.empty(len(counts)), _count_occupied(counts)
    while position < len(order):
        n = order[position]
        position += 1
        own = assignments[n]
        free = _fill(state, n, own, counts, occupied, urn, log_opening, log_margin, log_new, log_alone, logits)
        chosen, opened, closed = outcome(own, draw(logits, uniforms[n], -40.0), free, counts[own] == 1)
        stale = False
        if chosen != own:
            stale = move_row(state, n, own, chosen, counts)
            occupied += (counts[chosen] == 1) - (counts[own] == 0)
            assignments[n] = chosen
            stale = stale or occupied == len(counts)
        if stale or (opened + closed > -2 and log_margin.shape[1] > 0):
            return position, opened, closed, stale
    return position, -1, -1, False
