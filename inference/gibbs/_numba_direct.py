"""The direct assignment scan compiled: one loop over the steps, specialised by the type of the family's state.

What a family says of its components is that of the collapsed scan (`_numba_scan`). Inner loops run over the slots.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from ._numba_scan import _OPTIONS, _clear, log_predictives, shift

__all__ = ["Chains", "fill_weights", "scan"]


class Chains(NamedTuple):
    """What `direct._Slots` has of the state sequences, as arrays."""

    rows: np.ndarray  # [N] position among the observed steps, -1: missing
    first: np.ndarray  # [N + 1] whether a sequence starts; true at the end
    states: np.ndarray  # [N]
    sizes: np.ndarray  # [capacity] steps, 0: free
    counts: np.ndarray  # [capacity] observed steps
    leaving: np.ndarray  # [capacity + 1, capacity] n_jk, and alpha rho where j = k
    entering: np.ndarray  # [capacity, capacity] the same by k
    exits: np.ndarray  # [capacity] n_k.
    base: np.ndarray  # [capacity], the slot `free` has the weight of all states without steps


@njit(**_OPTIONS)
def _neighbours(chains, t):
    """State before t, or the start row; state after t, or -1."""
    before = len(chains.sizes) if chains.first[t] else chains.states[t - 1]
    return before, (-1 if chains.first[t + 1] else chains.states[t + 1])


@njit(**_OPTIONS)
def _move(chains, before, k, after, sign):
    """Add or take away the moves into and out of a step in state k."""
    chains.sizes[k] += sign
    chains.leaving[before, k] += sign
    if before < len(chains.sizes):
        chains.entering[k, before] += sign
        chains.exits[before] += sign
    if after >= 0:
        chains.leaving[k, after] += sign
        chains.entering[after, k] += sign
        chains.exits[k] += sign


@njit(**_OPTIONS)
def _offsets(chains, urn, used):
    """What the log predictive of a slot owes to the number of its observed steps."""
    offsets = np.empty(used)
    for k in range(used):
        offsets[k] = urn[chains.counts[k]]
    return offsets


@njit(**_OPTIONS)
def _fill(state, chains, before, t, after, own, free, prior, urn, offsets, tables, logits, weights):
    """Step t, whose moves are not counted, goes to slot k with weight weights[k] exp(logits[k])."""
    log_margin, log_new, log_alone = tables
    alpha, rho = prior
    used, row = len(logits), chains.rows[t]
    base, exits, into = chains.base, chains.exits, chains.leaving[before]
    starts = before == len(chains.sizes)
    scale = alpha if starts else alpha * (1.0 - rho)
    if after < 0:
        for k in range(used):
            weights[k] = into[k] + scale * base[k]
    else:
        onward, toward = chains.entering[after], alpha * (1.0 - rho) * base[after]
        for k in range(used):
            weights[k] = (into[k] + scale * base[k]) * (onward[k] + toward) / (exits[k] + alpha)
        if not starts:
            again = onward[before] + toward + (1.0 if before == after else 0.0)
            weights[before] = (into[before] + scale * base[before]) * again / (exits[before] + 1.0 + alpha)
    if row >= 0:
        log_predictives(state, row, own, logits)
        for k in range(used):
            logits[k] += offsets[k]
        logits[own] += urn[chains.counts[own] - 1] - offsets[own]
        if chains.counts[own] == 1:
            logits[own] = logits[free]
    else:
        for k in range(used):
            logits[k] = 0.0
    if log_margin.shape[1] > 0:
        for k in range(used):
            logits[k] += log_margin[t, k]
    logits[free] += log_new[t]
    if chains.sizes[own] == 0:  # it was alone: its weight goes back to the rest
        weights[own] = weights[free] = weights[own] + weights[free]
        logits[own] += log_alone[0]
        logits[free] += log_alone[1]


@njit(cache=True, **_OPTIONS)
def fill_weights(state, chains, t, free, prior, urn, tables, logits, weights):
    """Log weights [capacity] of the slots for step t; the slot `free` stands for a new state."""
    own, offsets = chains.states[t], _offsets(chains, urn, len(logits))
    before, after = _neighbours(chains, t)
    _move(chains, before, own, after, -1)
    _fill(state, chains, before, t, after, own, free, prior, urn, offsets, tables, logits, weights)
    _move(chains, before, own, after, 1)
    for k in range(len(logits)):
        logits[k] += math.log(weights[k])


@njit(cache=True, **_OPTIONS)
def scan(state, chains, position, order, uniforms, free, prior, urn, tables):
    """Visit order[position:] until a state opened or closed, or the components must be computed anew (stale).

    Returns (position to go on from, slot opened or -1, slot closed or -1, stale).
    """
    used = free + 1
    for k in range(used, len(chains.sizes)):
        if chains.sizes[k] > 0:
            used = k + 1
    logits, weights, offsets = np.empty(used), np.empty(used), _offsets(chains, urn, used)
    while position < len(order):
        t = order[position]
        position += 1
        own, row = chains.states[t], chains.rows[t]
        before, after = _neighbours(chains, t)
        _move(chains, before, own, after, -1)
        _fill(state, chains, before, t, after, own, free, prior, urn, offsets, tables, logits, weights)
        chosen = _draw(logits, weights, uniforms[t])
        opened, closed, stale = -1, -1, False
        if chains.sizes[own] == 0 and chosen != own:
            closed = own
        if chosen == free:
            opened = free
            if closed >= 0:  # it leaves a state of its own for a new one: the same slot serves
                opened = chosen = own
        _move(chains, before, chosen, after, 1)
        if chosen != own:
            chains.states[t] = chosen
            if row >= 0:
                chains.counts[own] -= 1
                if chains.counts[own] == 0:
                    _clear(state.components, own)
                else:
                    stale = shift(state, row, own, -1.0)
                shift(state, row, chosen, 1.0)
                chains.counts[chosen] += 1
                offsets[own], offsets[chosen] = urn[chains.counts[own]], urn[chains.counts[chosen]]
        if stale or opened + closed > -2:
            return position, opened, closed, stale
    return position, -1, -1, False


@njit(**_OPTIONS)
def _draw(logits, weights, uniform):
    """Inverse CDF of the law with weights exp(logits) times `weights`, which it overwrites."""
    top = -np.inf
    for k in range(len(logits)):
        if weights[k] < _SMALL:
            logits[k] += math.log(weights[k])
            weights[k] = 1.0
        top = max(top, logits[k])
    total = 0.0
    for k in range(len(logits)):
        gap = logits[k] - top
        # smaller ones vanish in the rounding of the sum
        weights[k] = weights[k] * math.exp(gap) if gap > _NEGLIGIBLE else 0.0
        total += weights[k]
    level = uniform * total
    chosen = -1
    for k in range(len(logits)):
        if weights[k] > 0.0:
            chosen = k
            level -= weights[k]
            if level < 0.0:
                break
    return chosen


_SMALL = 1e-20
_NEGLIGIBLE = -120.0  # for weights between 1e-20 and the square of the number of steps
