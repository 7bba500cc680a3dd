"""Compiled split-merge proposals for partitions without classifiers: two sides are filled point by point.

A pair of points i, j is chosen uniformly, and B is the union of their components. One side starts from x_i, the other
from x_j. The other points of B follow in an order that does not depend on how B is divided now, each to side s with
weight w_s = urn(n_s) p(x_n | side s so far). If i and j are together, the result is the proposed split. If they are
apart, a merge is proposed, and each point is put on the side where it is now. In both cases the probabilities of the
sides cancel against the numerators of the two blocks, which leaves

    odds of the split = opening(K) prod_n (w_1 + w_2) / prod_n urn(n_B) p(x_n | B so far)

over the points of B except x_i, where K is the number of components when B is one block. x_j is the first of them and
has no choice: its w_1 is 0.

Source: Dahl (2005), the sequentially-allocated merge-split sampler.
"""

import math

from ...compiled.decorators import inner, lean_entry
from ..scans._numba_family import log_predictives, shift

ONE, TWO, WHOLE = 0, 1, 2  # columns of `sides`; the last column holds the prior


@lean_entry
def split_merge(state, sides, scratch, side, partition, urn, order, levels, position):
    """Make the proposals levels[position:], with N + 3 uniform numbers each, until no slot is free.

    Returns (position to go on from, whether no slot is free). `sides` is a buffer like `state` with four components;
    `scratch` [W + 1, 4] has one row more, and `side` is bool [N].
    """
    assignments, counts, log_opening, _, _, _, _, _ = partition
    num_data = len(order)
    while position < len(levels):
        level = levels[position]
        position += 1
        i = int(level[num_data] * num_data)
        j = (i + 1 + int(level[num_data + 1] * (num_data - 1))) % num_data
        own, other = assignments[i], assignments[j]
        blocks = -1 if own != other else 0
        for k in range(len(counts)):
            blocks += counts[k] > 0
        log_odds = log_opening[blocks] + _divide(sides, scratch, state, assignments, urn, order, i, j, level, side)
        test = math.log(1.0 - level[num_data + 2])
        if own == other and test < log_odds:
            other = _free(counts)
            for n in range(num_data):
                if assignments[n] == own and side[n]:
                    assignments[n] = other
                    counts[own] -= 1
                    counts[other] += 1
            _copy(sides, ONE, state, own)
            _copy(sides, TWO, state, other)
            if _free(counts) < 0:
                return position, True
        elif own != other and test < -log_odds:
            for n in range(num_data):
                if assignments[n] == other:
                    assignments[n] = own
            counts[own] += counts[other]
            counts[other] = 0
            _copy(sides, WHOLE, state, own)
            _copy(sides, -1, state, other)
    return position, False


@inner
def _divide(sides, scratch, state, assignments, urn, order, i, j, level, side):
    """Divide B between two sides, True in side [N] for the second, and return the log odds without opening(K)."""
    own, other, out = assignments[i], assignments[j], scratch[-1]
    for k in range(4):
        _copy(state, -1, sides, k)
    _start(sides, i, j)
    log_predictives(sides, j, WHOLE, out, scratch)
    log_odds = urn[0] + out[TWO] - urn[1] - out[WHOLE]
    first, second = 1, 1  # sizes of the sides
    side[i], side[j] = False, True
    shift(sides, j, TWO, 1.0)
    for n in order:
        if n in (i, j) or (assignments[n] != own and assignments[n] != other):
            continue
        shift(sides, n, WHOLE, 1.0)
        log_predictives(sides, n, WHOLE, out, scratch)
        gap = urn[second] + out[TWO] - urn[first] - out[ONE]
        log_odds += urn[first] + out[ONE] + max(gap, 0.0) + math.log1p(math.exp(-abs(gap)))
        log_odds -= urn[first + second] + out[WHOLE]
        crosses = assignments[n] == other if own != other else level[n] * (1.0 + math.exp(-gap)) < 1.0
        side[n] = crosses
        first, second = first + (not crosses), second + crosses
        shift(sides, n, TWO if crosses else ONE, 1.0)
    return log_odds


@inner
def _start(sides, i, j):
    """Put x_i on the first side and both points into the whole; x_j is not yet on a side."""
    shift(sides, i, ONE, 1.0)
    shift(sides, i, WHOLE, 1.0)
    shift(sides, j, WHOLE, 1.0)


@inner
def _free(counts):
    """The first free slot, or -1."""
    free = -1
    for k in range(len(counts)):
        if counts[k] == 0:
            free = k
            break
    return free


@inner
def _copy(one, source, other, target):
    for w in range(len(one.components)):
        other.components[w, target] = one.components[w, source]
