"""Functions that the compiled scans share: draws of a slot, openings and closings, and moves of a row."""

import numpy as np

from ....models.compiled.scalars import exp, log
from ...compiled.decorators import inner, lean_entry
from ._numba_family import shift


@lean_entry
def fill(state, labels, sign):
    """Add every row to the component labels[n] (sign 1.0), or remove it (-1.0)."""
    for n in range(len(labels)):
        shift(state, n, labels[n], sign)


@inner
def count_used(sizes, free):
    """The number of slots to visit, up to the last component and `free`; a multiple of eight, for vector code."""
    used = free + 1
    for k in range(used, len(sizes)):
        if sizes[k] > 0:
            used = k + 1
    return min(used + -used % 8, len(sizes))


@inner
def log_mean(gains, n, size):
    """log of the mean of exp(gains[n]) over the first `size` entries; -inf if there are none."""
    if size == 1:
        return gains[n, 0]
    top, total = -np.inf, 0.0
    for a in range(size):
        top = max(top, gains[n, a])
    for a in range(size):
        total += exp(max(gains[n, a] - top, -700.0))
    return top + log(total / size) if size else -np.inf


@inner
def draw(logits, uniform, own):
    """Draw a slot by inverse CDF from log weights; the result is `own` if no weight is finite.

    `logits` is overwritten by the cumulative weights. Weights below e^-40 of the largest are set to 0: rounding loses
    them.
    """
    top = -np.inf
    for k in range(len(logits)):
        top = max(top, logits[k])
    for k in range(len(logits)):
        gap = logits[k] - top
        weight = exp(max(gap, -40.0))
        logits[k] = weight if gap > -40.0 else 0.0
    total = 0.0
    for k in range(len(logits)):
        total += logits[k]
        logits[k] = total
    level, chosen = uniform * total, 0  # below the total even after rounding
    for k in range(len(logits)):
        chosen += logits[k] <= level
    return chosen if chosen < len(logits) else own


@inner
def draw_weighted(weights, logits, uniform, own):
    """As `draw`, with weights weights[k] exp(logits[k]) and no logarithms of `weights`, which are 0 or above e^-450.

    `weights` is overwritten by the cumulative weights. exp(logits) below e^-600 of the largest are set to 0.
    """
    top = -np.inf
    for k in range(len(logits)):
        top = max(top, logits[k] if weights[k] > 0.0 else -np.inf)
    for k in range(len(logits)):
        gap = logits[k] - top
        share = weights[k] * exp(max(gap, -600.0))
        weights[k] = share if gap > -600.0 and weights[k] > 0.0 else 0.0
    total = 0.0
    for k in range(len(logits)):
        total += weights[k]
        weights[k] = total
    level, chosen = uniform * total, 0  # below the total even after rounding
    for k in range(len(logits)):
        chosen += weights[k] <= level
    return chosen if chosen < len(logits) else own


@inner
def within(sums, slot, uniform):
    """The position of a uniform number within the share of the slot that it drew: another uniform number."""
    below = sums[slot - 1] if slot > 0 else 0.0
    return (uniform * sums[-1] - below) / (sums[slot] - below)


@inner
def outcome(own, chosen, free, alone):
    """(slot to move to, slot opened or -1, slot closed or -1)."""
    closed = own if alone and chosen != own else -1
    if chosen != free:
        return chosen, -1, closed
    if closed >= 0:  # the point leaves its own component for a new one: the slot is used again
        return own, own, own
    return chosen, free, -1


@inner
def move_row(state, row, own, chosen, counts):
    """Move a row to another slot; return whether the component states must be computed anew."""
    stale = False
    counts[own] -= 1
    if counts[own] == 0:
        for w in range(len(state.components)):  # reset to the prior, which is in the last column
            state.components[w, own] = state.components[w, -1]
    else:
        stale = shift(state, row, own, -1.0)
    shift(state, row, chosen, 1.0)
    counts[chosen] += 1
    return stale
