"""What the compiled scans share: the draw of a slot, what it means for the slots, and the move of a point."""

import numpy as np

from ....models.compiled.scalars import exp, log
from ...compiled.decorators import inner, lean_entry
from ._numba_family import shift


@lean_entry
def fill(state, labels, sign):
    """Put every row into the component that its label [N] names (sign 1.0), or take it out (-1.0)."""
    for n in range(len(labels)):
        shift(state, n, labels[n], sign)


@inner
def count_used(sizes, free):
    """The number of slots to visit, which hold all components and the slot `free`: a multiple of four, for vector
    instructions, if there are so many."""
    used = free + 1
    for k in range(used, len(sizes)):
        if sizes[k] > 0:
            used = k + 1
    return min(used + -used % 4, len(sizes))


@inner
def log_mean(gains, n, size):
    """log of the mean of exp(gains[n]), of the first ones [A]: of a single one itself, of none -inf."""
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
    """A slot by inverse CDF of the categorical law, its own where no weight is a number; overwrites log weights by sums
    of weights.

    Those below e^-40 of the largest vanish in the rounding of the sum.
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
    level, chosen = uniform * total, 0  # below the total, even after rounding
    for k in range(len(logits)):
        chosen += logits[k] <= level
    return chosen if chosen < len(logits) else own


@inner
def draw_weighted(weights, logits, uniform, own):
    """The same by weights exp(logits), which takes no logarithms of the weights: all of them are 0 or above e^-450.

    What is e^-600 of the largest exp(logits) then vanishes in the rounding; overwrites the weights by their sums.
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
    level, chosen = uniform * total, 0  # below the total, even after rounding
    for k in range(len(logits)):
        chosen += weights[k] <= level
    return chosen if chosen < len(logits) else own


@inner
def within(sums, slot, uniform):
    """Where in the share of a slot, by its sums of weights, a uniform number is: another uniform number."""
    below = sums[slot - 1] if slot > 0 else 0.0
    return (uniform * sums[-1] - below) / (sums[slot] - below)


@inner
def outcome(own, chosen, free, alone):
    """(slot to go to, slot opened or -1, slot closed or -1)."""
    closed = own if alone and chosen != own else -1
    if chosen != free:
        return chosen, -1, closed
    if closed >= 0:  # it leaves a component of its own for a new one: the same slot serves
        return own, own, own
    return chosen, free, -1


@inner
def move_row(state, row, own, chosen, counts):
    """Take a row to another slot; returns whether the components must be computed anew."""
    stale = False
    counts[own] -= 1
    if counts[own] == 0:
        for w in range(len(state.components)):  # back to the prior, which the last column holds
            state.components[w, own] = state.components[w, -1]
    else:
        stale = shift(state, row, own, -1.0)
    shift(state, row, chosen, 1.0)
    counts[chosen] += 1
    return stale
