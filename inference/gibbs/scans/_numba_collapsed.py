"""The compiled collapsed scan: one loop over the points, compiled for each likelihood's type of component state."""

import math
from typing import NamedTuple

import numpy as np

from ....models.compiled.scalars import exp, prefetch
from ...compiled.decorators import entry, inner, lean_entry
from ._numba_family import fetch, log_predictives
from ._numba_moves import count_used, draw, log_mean, move_row, outcome, within
from ._numba_moves import fill as fill


class Partition(NamedTuple):
    """The partition of `collapsed` as arrays."""

    assignments: np.ndarray  # [N]
    counts: np.ndarray  # [capacity], number of points; 0 in a free slot
    log_opening: np.ndarray  # [capacity + 1] log weight of a new component, by the number of other components
    log_margin: np.ndarray  # [N, capacity], or [N, 0] without classifiers
    gains: np.ndarray  # [N, A + room], log factors of the classifiers that a new component may take
    size: np.ndarray  # [1] A
    weights: np.ndarray  # [capacity, P, C]
    reserve: np.ndarray  # [A + room, P, 1] hyperplanes without points; [0, P, 1] if there is no reservoir


@entry
def fill_logits(state, partition, urn, n, logits):
    """Compute the log weights [capacity] of the slots for point n; the first free slot is that of a new component.

    urn [N + 1] is the log weight of a component by its number of points, including the likelihood's normalizer.
    """
    assignments, counts, log_opening, log_margin, gains, size, _, reserve = partition
    log_alone = _alone(reserve, size[0])
    scratch, offsets = np.empty((len(state.components), len(counts))), np.empty(len(counts))
    occupied, free = _survey(counts, urn, offsets)
    own, new = assignments[n], _new(assignments[n], n, counts, occupied, urn, log_opening, gains, size[0], log_alone)
    _fill(state, n, own, counts, offsets, free, urn, new, log_margin, log_alone, logits, scratch)


@inner
def _alone(reserve, size):
    """Terms for the log weights of a point's own component and of a new one, if the point is alone (`Founders`)."""
    if len(reserve) == 0:
        return -np.inf, 0.0
    return -math.log(size + 1.0), math.log(size / (size + 1.0)) if size > 0 else 0.0


@inner
def _survey(counts, urn, offsets):
    """Set `offsets` to the log weights of the slots by their counts; return (number of components, first free slot)."""
    occupied, free = len(offsets), len(offsets)  # not the literal 0, with which numba would compile `_fill` twice
    for k in range(len(offsets)):
        offsets[k] = urn[counts[k]] if counts[k] > 0 else -np.inf
        if counts[k] == 0:
            occupied -= 1
            free = min(free, k)
    return occupied, free


@inner
def _new(own, n, counts, occupied, urn, log_opening, gains, size, log_alone):
    """The log weight of a new component by the urn, and the term that classifiers add to it."""
    log_new = log_mean(gains, n, size)
    if counts[own] == 1:
        return urn[0] + log_opening[occupied - 1], log_new + log_alone[1]
    return urn[0] + log_opening[occupied], log_new


@inner
def _fill(state, n, own, counts, offsets, free, urn, new, log_margin, log_alone, logits, scratch):
    """`fill_logits` for given offsets, free slot and weight of a new component."""
    log_predictives(state, n, own, logits, scratch)
    own_weight = new[0] + log_alone[0] if counts[own] == 1 else urn[counts[own] - 1]
    at_own, at_free = logits[own] + own_weight, logits[free] + (new[0] + new[1])
    for k in range(len(logits)):
        logits[k] += offsets[k]
    logits[own] = at_own
    if log_margin.shape[1] > 0:
        for k in range(len(logits)):
            logits[k] += log_margin[n, k]
    logits[free] = at_free


@lean_entry
def scan(state, scratch, partition, urn, position, order, levels):
    """Visit the points order[position:] one by one, using the uniform number at the same position of `levels`.

    Returns (position to go on from, slot opened or -1, slot closed or -1, stale). With classifiers but no reservoir it
    returns after a point that opened or closed a component. It also returns where the component states must be computed
    anew (stale), because no slot is free or too many digits cancelled.
    """
    # unpacked once: this costs more than a visit
    assignments, counts, log_opening, log_margin, gains, size, weights, reserve = partition
    log_alone = _alone(reserve, size[0])
    offsets, room = scratch[-1], scratch[-2]
    occupied, free = _survey(counts, urn, offsets)
    logits = room[: count_used(counts, free)]
    while position < len(order):
        n, level = order[position], levels[position]
        position += 1
        ahead = order[min(position + 8, len(order) - 1)]
        fetch(state, ahead)
        prefetch(assignments, ahead)
        own = assignments[n]
        new = _new(own, n, counts, occupied, urn, log_opening, gains, size[0], log_alone)
        _fill(state, n, own, counts, offsets, free, urn, new, log_margin, log_alone, logits, scratch)
        slot = draw(logits, level, own)
        rest = within(logits, slot, level)
        chosen, opened, closed = outcome(own, slot, free, counts[own] == 1)
        stale = False
        if chosen != own:
            stale = move_row(state, n, own, chosen, counts)
            assignments[n] = chosen
            offsets[chosen], offsets[own] = urn[counts[chosen]], urn[counts[own]]
            if opened + closed > -2:
                occupied, free = _survey(counts, urn, offsets)
                logits = room[: count_used(counts, free)]
                stale = stale or occupied == len(counts)
        if opened + closed > -2 and log_margin.shape[1] > 0:
            if len(reserve) == 0:
                return position, opened, closed, stale
            size[0] = _exchange(log_margin, gains, weights, reserve, size[0], n, opened, closed, rest)
            log_alone, opened, closed = _alone(reserve, size[0]), -1, -1
        if stale:
            return position, opened, closed, stale
    return position, -1, -1, False


@inner
def _exchange(log_margin, gains, weights, reserve, size, n, opened, closed, uniform):
    """Update the reservoir after point n opened or closed a slot; return its new size.

    An opened slot takes a hyperplane with probability proportional to the exponential of its gain. A closed slot gives
    its hyperplane back.
    """
    if opened < 0:
        _swap(log_margin, gains, weights, reserve, closed, size)
        return size + 1
    chosen = _choose(gains, n, size, uniform)
    _swap(log_margin, gains, weights, reserve, opened, chosen)
    if closed >= 0:  # the closed slot's hyperplane is in the place of the chosen one
        return size
    for m in range(len(gains)):
        gains[m, chosen] = gains[m, size - 1]
    for p in range(len(reserve[0])):
        reserve[chosen, p, 0] = reserve[size - 1, p, 0]
    return size - 1


@inner
def _choose(gains, n, size, uniform):
    """Choose a reserved hyperplane for point n by inverse CDF."""
    top, total, chosen, below = -np.inf, 0.0, 0, 0.0
    for a in range(size):
        top = max(top, gains[n, a])
    for a in range(size):
        total += exp(max(gains[n, a] - top, -700.0))
    for a in range(size):
        below += exp(max(gains[n, a] - top, -700.0))
        chosen += below <= uniform * total
    return min(chosen, size - 1)


@inner
def _swap(log_margin, gains, weights, reserve, slot, place):
    """Swap the hyperplane of a slot with a reserved one."""
    for m in range(len(gains)):
        log_margin[m, slot], gains[m, place] = gains[m, place], log_margin[m, slot]
    for p in range(len(reserve[0])):
        weights[slot, p, 0], reserve[place, p, 0] = reserve[place, p, 0], weights[slot, p, 0]
