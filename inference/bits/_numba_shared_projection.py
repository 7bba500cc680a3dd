"""Compiled updates of the bits of a shared projection, one after another; each gain is a sum over all known pairs.

The costs g = -log phi are given by their conjugates, quadratics on an interval (`losses.conjugates.Box`): g(f) = max_t
t (linear - f) - curvature t^2 / 2 - tube |t| over lower <= t <= upper, and the maximizer t is -g'(f).
"""

import math

import numpy as np

from ..compiled.decorators import entry, inner


@inner
def _tilt(score, pair, box):
    """-g'(f) of a pair."""
    linear, lower, upper, curvature, tube = box
    slope = linear[pair] - score
    excess = abs(slope) - tube
    if excess <= 0.0:
        return 0.0
    if curvature == 0.0:
        return upper[pair] if slope > 0.0 else lower[pair]
    found = excess / curvature
    return min(found, upper[pair]) if slope > 0.0 else max(-found, lower[pair])


@inner
def _cost(score, pair, box):
    tilt = _tilt(score, pair, box)
    if tilt == 0.0:
        return 0.0
    return tilt * (box[0][pair] - score) - box[3] / 2 * tilt * tilt - box[4] * abs(tilt)


@inner
def _log_odds(d, k, others, generative):
    """The log odds of a bit without margins, given the other bits of dimension d, or their probabilities, [K]."""
    odds, pull, gram = generative
    found = odds[k] + pull[d, k] - gram[k, k] / 2
    for j in range(len(others)):
        if j != k:
            found -= others[j] * gram[j, k]
    return found


@inner
def _move(step, own, x, rows, starts, scores):
    """Update the scores of all pairs when a feature of dimension x [N] changes by `step`; `own` [M] are its weights."""
    for task in range(len(own)):
        change = step * own[task]
        if change != 0.0:
            for pair in range(starts[task], starts[task + 1]):
                scores[pair] += change * x[rows[pair]]


@inner
def _halve(low, high, gain, base, slope, active, box):
    """The p whose logit, between `low` and `high`, is gain + sum_a (-g'(base_a + slope_a p)) slope_a; by bisection."""
    while high - low > 1e-12 * (1.0 + abs(low) + abs(high)):
        middle = (low + high) / 2
        if middle <= low or middle >= high:
            break
        p, total = 1 / (1 + math.exp(-middle)), gain
        for index in range(len(base)):
            total += _tilt(base[index] + slope[index] * p, active[index], box) * slope[index]
        if middle > total:
            high = middle
        else:
            low = middle
    return 1 / (1 + math.exp(-(low + high) / 2))


@entry
def set_bits(bits, levels, columns, pairs, box, weights, generative, scores):
    """Set each bit [D, K] to 1 if its log odds given all others exceed its level [D, K], else 0; update the scores [A].

    columns [D, N] are the inputs, pairs (rows [A], starts [M + 1]), weights [K, M]. generative (odds [K], linear [D,
    K], gram [K, K]) gives the log odds without margins, odds + linear - gram_kk / 2 - sum_{j != k} z_j gram.
    """
    rows, starts = pairs
    for d in range(len(bits)):
        x = columns[d]
        for k in range(bits.shape[1]):
            before, own = bits[d, k], weights[k]
            gain = _log_odds(d, k, bits[d], generative)
            for task in range(len(own)):
                for pair in range(starts[task], starts[task + 1]):
                    step = own[task] * x[rows[pair]]
                    off = scores[pair] - before * step
                    gain += _cost(off, pair, box) - _cost(off + step, pair, box)
            after = 1.0 if gain > levels[d, k] else 0.0
            if after != before:
                bits[d, k] = after
                _move(after - before, own, x, rows, starts, scores)


@entry
def fit_probabilities(psi, columns, pairs, box, weights, generative, scores):
    """Set each probability psi [D, K] to the minimizer of -entropy - th p + sum_a g(base_a + slope_a p).

    t = logit p solves t = th - sum_a g'(base_a + slope_a p) slope_a, whose right-hand side decreases with jumps. Pairs
    with the same g' at p = 0 and p = 1 add a constant. The others, usually few, are evaluated in each step of the
    bisection.
    """
    rows, starts = pairs
    base, slope, active = np.empty(len(scores)), np.empty(len(scores)), np.empty(len(scores), np.int64)
    for d in range(len(psi)):
        x = columns[d]
        for k in range(psi.shape[1]):
            before, own = psi[d, k], weights[k]
            gain = _log_odds(d, k, psi[d], generative)
            low, high, num_active = gain, gain, 0
            for task in range(len(own)):
                for pair in range(starts[task], starts[task + 1]):
                    step = own[task] * x[rows[pair]]
                    if step == 0.0:
                        continue
                    off = scores[pair] - before * step
                    at_zero, at_one = _tilt(off, pair, box), _tilt(off + step, pair, box)
                    low += at_one * step
                    high += at_zero * step
                    if at_zero == at_one:
                        gain += at_zero * step
                    else:
                        base[num_active], slope[num_active], active[num_active] = off, step, pair
                        num_active += 1
            after = _halve(low, high, gain, base[:num_active], slope[:num_active], active, box)
            if after != before:
                psi[d, k] = after
                _move(after - before, own, x, rows, starts, scores)
