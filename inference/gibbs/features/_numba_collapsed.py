"""The compiled scan of the bits of latent features, row by row, with the feature probabilities integrated out."""

import math
from typing import Any, NamedTuple

import numpy as np

from ...compiled._numba_losses import log_margin
from ...compiled.decorators import inner, lean_entry, lean_part


class Rows(NamedTuple):
    """The state as arrays with space for `capacity` features."""

    bits: np.ndarray  # [capacity, N]
    counts: np.ndarray  # [capacity] rows that have each feature
    loadings: np.ndarray  # [capacity, D]
    weights: np.ndarray  # [capacity, C]
    precision: np.ndarray  # [1, D] or [N, D] pseudo-observations of the entries; 0 where an entry is missing
    shift: np.ndarray  # [N, D]
    scores: np.ndarray  # [N, C] the part of the scores due to the inputs
    targets: np.ndarray  # [N, C]
    log_odds: np.ndarray  # [N] log m - log(N - m), m: other rows with the feature; truncated: [K] prior log odds
    log_number: np.ndarray  # [room] log prior probability of the number of features that a row alone has
    cumulative: np.ndarray  # [room] cumulative probabilities of that number
    loading_precision: np.ndarray  # [D]
    weight_scale: float
    loss: Any  # its compiled form


class Scratch(NamedTuple):
    """Buffers for the visited row. A feature that no other row has is an "own feature" of the row."""

    slope: np.ndarray  # [D] gradient of the log density of the row's entries by their linear predictor
    scores: np.ndarray  # [3, C]: present, proposed, and without own features
    alone: np.ndarray  # [capacity] the numbers of the own features
    fresh: np.ndarray  # [room, C] their proposed weights
    shares: np.ndarray  # [6, D] and
    halves: np.ndarray  # [5] `_evidence` of 0..4 own features; the last row is for another number
    chances: np.ndarray  # [5] weights of 0..4 own features

    @classmethod
    def of(cls, rows):
        """Buffers that suffice for every row; compiled code then allocates no arrays and counts no references."""
        D, C, number, room = rows.loadings.shape[1], rows.scores.shape[1], _NUM_WEIGHED, len(rows.log_number)
        scores, alone, fresh = np.empty((3, C)), np.empty(len(rows.counts), np.int64), np.empty((room, C))
        return cls(np.empty(D), scores, alone, fresh, np.empty((number + 1, D)), np.empty(number), np.empty(number))


_CERTAIN = 40.0  # log odds beyond which rounding makes a probability 0 or 1
_NUM_WEIGHED = 5  # numbers 0, 1, ... of own features that are compared by their evidence
# rows of `scores` and of `shares`; numba would compile their users twice for plain integers
_OWN, _OTHER, _BASE, _DRAWN = np.array([0, 1, 2, _NUM_WEIGHED])


@lean_entry
def scan(rows, scratch, uniforms, normals, place):
    """Visit rows from place[0] on and update place = (row, number of features, uniforms used, normals used).

    It returns before a row for which the arrays or the random numbers might not suffice. At the end place[0] = N.
    """
    loadings, weights, precision, inputs, capacity = rows[2], rows[3], rows[4], rows[6], len(rows[1])
    log_number, cumulative, prior = rows[9], rows[10], rows[11]
    slope, alone, shares, halves, chances = scratch[0], scratch[2], scratch[4], scratch[5], scratch[6]
    room, first = len(log_number), place[0]
    for n in range(first, len(inputs)):
        width, used, p = place[1], place[2] + place[1], n if len(precision) > 1 else 0
        needed = 2 * room * weights.shape[1] + (width + room + 1) * loadings.shape[1]
        if width + room > capacity or used + 4 > len(uniforms) or place[3] + needed > len(normals):
            return
        num_alone = _visit_shared(n, p, rows, scratch, uniforms, place[2], width, False)
        if n == first or len(precision) > 1:
            for number in range(_NUM_WEIGHED):
                halves[number] = _evidence(prior, precision, p, number, shares, number)
        for i in range(num_alone):
            _move(slope, 1.0, loadings, alone[i], precision, p)
        weighed = _weigh(log_number, uniforms[used], slope, shares, halves, chances)
        drawn = 0
        while drawn < room - 1 and uniforms[used + 1] * cumulative[room - 1] > cumulative[drawn]:
            drawn += 1
        if num_alone or weighed or drawn:
            _visit_alone(n, p, rows, scratch, weighed, drawn, num_alone, uniforms, used, normals, place)
        place[2] = used + 4
        place[0] = n + 1


@lean_entry
def scan_truncated(rows, scratch, levels):
    """Visit the bits of all features of all rows, with uniform numbers [N K], row after row."""
    precision, inputs, num_features = rows[4], rows[6], len(rows[1])
    for n in range(len(inputs)):
        p = n if len(precision) > 1 else 0
        _visit_shared(n, p, rows, scratch, levels, n * num_features, num_features, True)


@lean_part
def _copy(values, i, out, j):
    """Set out[j, d] = values[i, d] for all d."""
    for d in range(out.shape[1]):
        out[j, d] = values[i, d]


@lean_part
def _add(total, j, sign, values, i):
    for d in range(total.shape[1]):
        total[j, d] += sign * values[i, d]


@lean_part
def _move(slope, sign, loadings, k, precision, p):
    for d in range(len(slope)):
        slope[d] += sign * precision[p, d] * loadings[k, d]


@lean_part
def _margin(loss, scores, i, targets, n):
    """log phi(y_n | f) for the scores f = scores[i]."""
    return log_margin(loss, scores[i], targets[n])


@inner
def _predict(n, p, bits, loadings, weights, precision, shift, inputs, num_features, slope, scores):
    """Compute the slope [D] and the scores [C] of row n."""
    for d in range(len(slope)):
        slope[d] = shift[n, d]
    _copy(inputs, n, scores, _OWN)
    for k in range(num_features):
        if bits[k, n]:
            _move(slope, -1.0, loadings, k, precision, p)
            _add(scores, _OWN, 1.0, weights, k)


@inner
def _visit_shared(n, p, rows, scratch, levels, used, num_features, truncated):
    """Draw the bits of row n for features that other rows have, or for all; return the number of own features."""
    bits, counts, loadings, weights, precision, shift, inputs, targets, log_odds = rows[:9]
    loss, (slope, scores, alone) = rows[13], scratch[:3]
    _predict(n, p, bits, loadings, weights, precision, shift, inputs, num_features, slope, scores)
    current = _margin(loss, scores, _OWN, targets, n)
    num_alone = np.int64(0)
    for k in range(num_features):
        old = bits[k, n]
        others = counts[k] - old
        if others == 0 and not truncated:
            alone[num_alone] = k
            num_alone += 1
            continue
        half, sign, gain = 0.5 - old, 1.0 - 2.0 * old, 0.0
        for d in range(len(slope)):
            w = loadings[k, d]
            gain += w * (slope[d] - half * precision[p, d] * w)
        for c in range(scores.shape[1]):
            scores[_OTHER, c] = scores[_OWN, c] + sign * weights[k, c]
        moved = _margin(loss, scores, _OTHER, targets, n)
        gain += log_odds[k if truncated else others] + sign * (moved - current)
        new = 1 if gain > 0.0 else 0
        if abs(gain) < _CERTAIN:
            new = 1 if levels[used + k] * (1.0 + math.exp(-gain)) < 1.0 else 0
        if new != old:
            bits[k, n] = new
            counts[k] += new - old
            _move(slope, -sign, loadings, k, precision, p)
            _copy(scores, _OTHER, scores, _OWN)
            current = moved
    return num_alone


# -- own features of a row, with their loadings integrated out ---------------------------------------------------------


@inner
def _weigh(log_number, level, slope, shares, halves, chances):
    """Draw a number 0..4 of own features by prior and evidence, given the slope without them."""
    largest, total, number = -np.inf, 0.0, 0
    for i in range(_NUM_WEIGHED):
        chances[i] = log_number[i] + _square(slope, shares, i) - halves[i]
        largest = max(largest, chances[i])
    for i in range(_NUM_WEIGHED):
        chances[i] = math.exp(chances[i] - largest) if chances[i] - largest > -_CERTAIN else 0.0
        total += chances[i]
    level *= total
    while number < _NUM_WEIGHED - 1 and level >= chances[number]:
        level -= chances[number]
        number += 1
    return number


@lean_part
def _evidence(prior, precision, p, number, shares, i):
    """Compute shares[i] [D] and return half, such that `_log_evidence` is sum_d shares_d slope_d^2 - half."""
    half = 0.0
    for first in range(0, len(prior), 8):  # one logarithm for eight factors
        product = 1.0
        for d in range(first, min(first + 8, len(prior))):
            ratio = prior[d] + number * precision[p, d]
            shares[i, d] = 0.5 * number / ratio
            product *= ratio / prior[d]
        half += 0.5 * math.log(product)
    return half


@lean_part
def _square(slope, shares, i):
    total = 0.0
    for d in range(len(slope)):
        total += shares[i, d] * slope[d] * slope[d]
    return total


@inner
def _log_evidence(prior, precision, p, slope, number, shares):
    """log E exp(slope . u - u^T diag(precision) u / 2), u [D] the sum of `number` loadings from their prior."""
    half = _evidence(prior, precision, p, number, shares, _DRAWN)
    return _square(slope, shares, _DRAWN) - half


@inner
def _visit_alone(n, p, rows, scratch, weighed, drawn, num_alone, uniforms, used, normals, place):
    """Draw the number of own features of row n and their weights, then their loadings; `slope` is that without them.

    There are two Metropolis-Hastings steps, both with weights proposed from the prior. The first chooses among 0..4
    features by their evidence, if the present number is one of these. The second draws a number from its Poisson prior.
    """
    bits, counts, loadings, weights, precision = rows[:5]
    targets, prior, scale, loss = rows[7], rows[11], rows[12], rows[13]
    slope, scores, alone, fresh, shares = scratch[:5]
    _copy(scores, _OWN, scores, _BASE)
    for i in range(num_alone):
        _add(scores, _BASE, -1.0, weights, alone[i])
    for step in range(2):
        number = drawn if step else weighed
        if (number == 0 and num_alone == 0) or (step == 0 and num_alone >= _NUM_WEIGHED):
            continue
        log_ratio = 0.0
        if step == 1:
            log_ratio += _log_evidence(prior, precision, p, slope, number, shares)
            log_ratio -= _log_evidence(prior, precision, p, slope, num_alone, shares)
        _copy(scores, _BASE, scores, _OTHER)
        for i in range(number):
            for c in range(weights.shape[1]):
                fresh[i, c] = scale * normals[place[3]]
                place[3] += 1
            _add(scores, _OTHER, 1.0, fresh, i)
        log_ratio += _margin(loss, scores, _OTHER, targets, n) - _margin(loss, scores, _OWN, targets, n)
        if math.log1p(-uniforms[used + 2 + step]) < log_ratio:
            _replace_alone(bits, counts, loadings, weights, n, place, alone, num_alone, fresh, number)
            num_alone = number
            _copy(scores, _OTHER, scores, _OWN)
    if num_alone:
        _draw_alone(loadings, prior, precision, p, slope, normals, place, alone, num_alone)


@inner
def _replace_alone(bits, counts, loadings, weights, n, place, alone, old, fresh, new):
    """Replace the `old` own features of row n by `new` ones with the weights `fresh`; loadings are drawn later."""
    for i in range(old - 1, new - 1, -1):
        last, k = place[1] - 1, alone[i]
        _copy(bits, last, bits, k)
        counts[k] = counts[last]
        _copy(loadings, last, loadings, k)
        _copy(weights, last, weights, k)
        place[1] = last
    for i in range(old, new):
        k = place[1]
        for m in range(bits.shape[1]):
            bits[k, m] = 1 if m == n else 0
        counts[k] = 1
        alone[i] = k
        place[1] = k + 1
    for i in range(new):
        _copy(fresh, i, weights, alone[i])


@inner
def _draw_alone(loadings, prior, precision, p, slope, normals, place, alone, number):
    """Draw the loadings of the own features: their sum given the row, then each of them given the sum."""
    for d in range(len(slope)):
        total_precision = prior[d] / number + precision[p, d]
        total = slope[d] / total_precision
        total += normals[place[3]] / math.sqrt(total_precision)
        drawn = 0.0
        for i in range(number):
            loadings[alone[i], d] = normals[place[3] + 1 + i] / math.sqrt(prior[d])
            drawn += loadings[alone[i], d]
        for i in range(number):
            loadings[alone[i], d] += (total - drawn) / number
        place[3] += number + 1
