"""The compiled direct assignment scan: one loop over the steps, compiled for each likelihood's component state.

Functions of the likelihood are those of the collapsed scan (`_numba_family`). Inner loops run over the slots.
"""

from typing import NamedTuple

import numpy as np

from ....models.compiled.scalars import log, prefetch
from ...compiled.decorators import entry, inner, lean_entry
from ._numba_family import fetch, log_predictives
from ._numba_moves import count_used, draw_weighted, log_mean, move_row, outcome
from ._numba_moves import fill as fill


class Chains(NamedTuple):
    """The state sequences of `direct` as arrays."""

    rows: np.ndarray  # [N] position among the observed steps, -1 where x is missing
    first: np.ndarray  # [N + 1] whether a sequence starts at the step; True at the end
    states: np.ndarray  # [N]
    sizes: np.ndarray  # [capacity] number of steps; 0 in a free slot
    counts: np.ndarray  # [capacity] number of observed steps
    leaving: np.ndarray  # [capacity + 1, capacity] n_jk, plus alpha rho where j = k
    entering: np.ndarray  # [capacity, capacity] transpose of `leaving` without its last row
    exits: np.ndarray  # [capacity] n_k. (transitions out of k)
    base: np.ndarray  # [capacity]; slot `free` has the weight of all states without steps
    free: int
    prior: tuple[float, float]  # alpha, rho
    tables: tuple[np.ndarray, np.ndarray, np.ndarray, tuple[float, float]]
    # log_margin [N, capacity], gains and size of `_numba_collapsed.Partition`, and `log_alone` of `Founders`


@inner
def _neighbours(first, states, start, t):
    """The state before t, or `start` (the row of starts); the state after t, or -1."""
    return start if first[t] else states[t - 1], -1 if first[t + 1] else states[t + 1]


@inner
def _move(sizes, leaving, entering, exits, before, k, after, sign):
    """Add (sign 1) or remove (-1) a step in state k with the transitions into and out of it."""
    sizes[k] += sign
    leaving[before, k] += sign
    if before < len(sizes):
        entering[k, before] += sign
        exits[before] += sign
    if after >= 0:
        leaving[k, after] += sign
        entering[after, k] += sign
        exits[k] += sign


@inner
def _fill_offsets(counts, urn, offsets):
    """Set `offsets` to the terms of the log predictives that depend on the number of observed steps alone."""
    for k in range(len(offsets)):
        offsets[k] = urn[counts[k]]


@inner
def _fill_prior(leaving, entering, exits, base, before, own, after, prior, weights):
    """Compute the weights of the transitions into and out of a step that the counts include as one of state `own`.

    Without the step, n_k. + 1[j = k] is exits_k - 1[k = own], and n_kl + 1[j = k = l] is entering_lk - 1[k = own], for
    k = j also plus 1[j = l] - 1[own = l].
    """
    alpha, rho = prior
    shared = alpha * (1.0 - rho)
    scale = alpha if before == len(exits) else shared
    if after < 0:
        for k in range(len(weights)):
            weights[k] = leaving[before, k] - (1.0 if k == own else 0.0) + scale * base[k]
    else:
        stays, toward = (1.0 if own == before else 0.0), shared * base[after]
        again = (1.0 if before == after else 0.0) - (1.0 if own == after else 0.0)
        for k in range(len(weights)):
            here = 1.0 if k == own else 0.0
            into = leaving[before, k] - here - (stays if k == after else 0.0) + scale * base[k]
            onward = entering[after, k] - here + (again if k == before else 0.0) + toward
            weights[k] = into * onward / (exits[k] - here + alpha)


@inner
def _fill_logits(state, row, own, counts, urn, offsets, free, logits, scratch):
    """Compute log p(x_row | the other steps of each slot); 0 if x is missing."""
    if row < 0:
        for k in range(len(logits)):
            logits[k] = 0.0
    else:
        log_predictives(state, row, own, logits, scratch)
        for k in range(len(logits)):
            logits[k] += offsets[k]
        logits[own] += urn[counts[own] - 1] - offsets[own]
        if counts[own] == 1:
            logits[own] = logits[free]


@inner
def _add_margins(t, own, alone, free, tables, logits, weights):
    """Add the terms of hyperplanes; if step t was alone in its state, its base weight also goes back to the rest."""
    log_margin, gains, size, log_alone = tables
    if log_margin.shape[1] > 0:
        for k in range(len(logits)):
            logits[k] += log_margin[t, k]
        logits[free] += log_mean(gains, t, size[0])
    if alone:
        weights[own] = weights[free] = weights[own] + weights[free]
        logits[own] += log_alone[0]
        logits[free] += log_alone[1]


@inner
def _add_logs(weights, logits):
    for k in range(len(logits)):
        logit = logits[k] + log(max(weights[k], 1e-300))
        logits[k] = logit if weights[k] > 0.0 else -np.inf


@inner
def _has_tiny(base, prior):
    """Whether a product of two prior weights may be too small for `draw_weighted`."""
    least = np.inf
    for k in range(len(base)):
        least = min(least, base[k] if base[k] > 0.0 else np.inf)
    return prior[0] * (1.0 - prior[1]) * least < _TINY


@entry
def fill_logits(state, chains, urn, t, logits):
    """Compute the log weights [capacity] of the slots for step t; the slot `free` is that of a new state."""
    rows, first, states, sizes, counts, leaving, entering, exits, base, free, prior, tables = chains
    own, offsets, weights = states[t], np.empty(len(logits)), np.empty(len(logits))
    _fill_offsets(counts, urn, offsets)
    before, after = _neighbours(first, states, len(sizes), t)
    scratch = np.empty((len(state.components), len(logits)))
    _fill_prior(leaving, entering, exits, base, before, own, after, prior, weights)
    _fill_logits(state, rows[t], own, counts, urn, offsets, free, logits, scratch)
    _add_margins(t, own, sizes[own] == 1, free, tables, logits, weights)
    _add_logs(weights, logits)


@lean_entry
def scan(state, scratch, chains, urn, position, order, levels):
    """Visit the steps order[position:] until a state opened or closed, or components must be computed anew (stale).

    Returns (position to go on from, slot opened or -1, slot closed or -1, stale). A step goes to slot k with weight
    weights[k] exp(logits[k]), using the uniform number at the same position of `levels`.
    """
    # unpacked once: inside the loop this costs more than the rest of a visit
    rows, first, states, sizes, counts, leaving, entering, exits, base, free, prior, tables = chains
    used = count_used(sizes, free)
    logits, weights, offsets = scratch[-1, :used], scratch[-2, :used], scratch[-3, :used]
    _fill_offsets(counts, urn, offsets)
    has_tiny = _has_tiny(base, prior)
    while position < len(order):
        t, level = order[position], levels[position]
        position += 1
        ahead = order[min(position + 8, len(order) - 1)]
        fetch(state, max(rows[ahead], 0))
        prefetch(states, ahead)
        prefetch(rows, order[min(position + 16, len(order) - 1)])
        prefetch(first, ahead)
        own, row = states[t], rows[t]
        before, after = _neighbours(first, states, len(sizes), t)
        alone = sizes[own] == 1
        _fill_prior(leaving, entering, exits, base, before, own, after, prior, weights)
        _fill_logits(state, row, own, counts, urn, offsets, free, logits, scratch)
        _add_margins(t, own, alone, free, tables, logits, weights)
        if has_tiny:
            _add_logs(weights, logits)
            for k in range(len(weights)):
                weights[k] = 1.0
        chosen, opened, closed = outcome(own, draw_weighted(weights, logits, level, own), free, alone)
        stale = False
        if chosen != own:
            _move(sizes, leaving, entering, exits, before, own, after, -1)
            _move(sizes, leaving, entering, exits, before, chosen, after, 1)
            states[t] = chosen
            if row >= 0:
                stale = move_row(state, row, own, chosen, counts)
                offsets[own], offsets[chosen] = urn[counts[own]], urn[counts[chosen]]
        if stale or opened + closed > -2:
            return position, opened, closed, stale
    return position, -1, -1, False


_TINY = 1e-90
