"""The collapsed scan compiled: one loop over the points, specialised by the type of the family's component state.

A component state is a NamedTuple of the data and of `components` [capacity + 1, W], one row of numbers for each slot.
A slot without points holds the prior, and so does the last row, which is never occupied. A family says how its rows
change and what they predict, up to terms that are the same for all components or depend on a count alone (`urn`):

    log_predictive(state, n, k, own)    log p(x_n | the others in slot k); own: n is one of the points in it
    add(state, n, k), remove(state, n, k)

With c = kap / (kap + 1), or kap / (kap - 1) for a component that n itself is in, the Gaussian families read a member's
predictive from the component that still includes it, so that nothing is updated for a point that stays.
"""

# No `from __future__ import annotations`: numba reads the types of NamedTuple fields as they are.
import math
from typing import NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload

__all__ = ["Bernoulli", "Diagonal", "Full", "Multinomial", "Poisson", "Spherical", "fill_logits", "scan"]

_FAST = {"reassoc", "contract", "nsz", "arcp"}  # keeps inf and NaN meaningful


class Spherical(NamedTuple):
    """Rows (kap, mean [D])."""

    X: np.ndarray  # [N, D], centred
    components: np.ndarray
    variance: float


class Diagonal(NamedTuple):
    """Rows (kap, a, sum log b / 2, mean [D], b [D])."""

    X: np.ndarray  # [N, D], centred
    components: np.ndarray


class Full(NamedTuple):
    """Rows (kap, nu, log det Psi / 2, updates since Psi was inverted, mean [D], Psi [D D], Psi^-1 [D D])."""

    X: np.ndarray  # [N, D], centred
    components: np.ndarray


class Multinomial(NamedTuple):
    """Rows (sum a, a [D]); counts in compressed rows."""

    starts: np.ndarray  # [N + 1]
    columns: np.ndarray  # [starts[N]]
    counts: np.ndarray  # [starts[N]]
    totals: np.ndarray  # [N]
    components: np.ndarray


class Poisson(NamedTuple):
    """Rows (sum a, b, a [D]); counts in compressed rows."""

    starts: np.ndarray
    columns: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    components: np.ndarray


class Bernoulli(NamedTuple):
    """Rows (sum log(b / (a + b)), a [D], b [D], log(a / b) [D])."""

    X: np.ndarray  # [N, D]
    components: np.ndarray


# -- the scan ----------------------------------------------------------------------------------------------------------


@njit(cache=True, fastmath=_FAST)
def fill_logits(state, n, own, counts, urn, log_margin, log_new, logits):
    """Log weights [capacity] of the slots for point n of slot `own`; returns the slot that stands for a new component."""
    free = -1
    for k in range(len(counts)):
        if counts[k] == 0:
            logits[k] = -np.inf
            if free < 0:
                free = k
                logits[k] = urn[0] + log_new[n] + log_predictive(state, n, k, False)
        elif k != own:
            logits[k] = urn[counts[k]] + log_predictive(state, n, k, False)
        elif counts[k] > 1:
            logits[k] = urn[counts[k] - 1] + log_predictive(state, n, k, True)
        else:
            logits[k] = -np.inf
        if log_margin.shape[1] > 0 and counts[k] > 0:
            logits[k] += log_margin[n, k]
    return free


@njit(cache=True, fastmath=_FAST)
def scan(state, position, order, uniforms, assignments, counts, urn, log_margin, log_new):
    """Visit order[position:] one by one.

    Returns (position to go on from, slot opened or -1). It stops after a point that opened a component if the component
    needs a classifier (log_margin [N, capacity] is not empty) or took the last free slot.
    """
    logits = np.empty(len(counts))
    occupied = 0
    for k in range(len(counts)):
        occupied += counts[k] > 0
    while position < len(order):
        n = order[position]
        position += 1
        own = assignments[n]
        free = fill_logits(state, n, own, counts, urn, log_margin, log_new, logits)
        chosen = _draw(logits, uniforms[n])
        opened = -1
        if chosen == free:
            opened = free
            if counts[own] == 1:  # it leaves a component of its own for a new one: the same slot serves
                opened = chosen = own
        if chosen != own:
            counts[own] -= 1
            if counts[own] == 0:
                state.components[own] = state.components[-1]
                occupied -= 1
            else:
                remove(state, n, own)
            add(state, n, chosen)
            occupied += counts[chosen] == 0
            counts[chosen] += 1
            assignments[n] = chosen
        if opened >= 0 and (log_margin.shape[1] > 0 or occupied == len(counts)):
            return position, opened
    return position, -1


@njit(cache=True)
def _draw(logits, uniform):
    """Inverse CDF of the categorical law; overwrites the logits by weights."""
    top = -np.inf
    for k in range(len(logits)):
        top = max(top, logits[k])
    total = 0.0
    for k in range(len(logits)):
        gap = logits[k] - top
        # smaller weights vanish in the rounding of the sum
        logits[k] = math.exp(gap) if gap > -40.0 else 0.0
        total += logits[k]
    level = uniform * total
    chosen = -1
    for k in range(len(logits)):
        if logits[k] > 0.0:
            chosen = k
            level -= logits[k]
            if level < 0.0:
                break
    return chosen


# -- what a family defines; resolved at compile time by the type of the state ------------------------------------------


def log_predictive(state, n, k, own):
    raise NotImplementedError


def add(state, n, k):
    raise NotImplementedError


def remove(state, n, k):
    raise NotImplementedError


def _defines(function, state):
    """Register an implementation of `function` for one component state."""

    def register(implementation):
        def choose(*arguments):
            first = arguments[0]
            if isinstance(first, types.NamedTuple) and first.instance_class is state:
                return implementation
            return None

        return implementation

    return register
