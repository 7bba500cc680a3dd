"""Bits of latent features row by row, compiled, with the probabilities of the features integrated out."""

import math
from typing import Any, NamedTuple

import numpy as np

from ...compiled._numba_losses import log_margin
from ...compiled.decorators import inner, lean_entry, part


class Rows(NamedTuple):
    """What the scan has of a state, as arrays of room for `capacity` features."""

    bits: np.ndarray  # [capacity, N]
    counts: np.ndarray  # [capacity] rows that have each feature
    loadings: np.ndarray  # [capacity, D]
    weights: np.ndarray  # [capacity, C]
    precision: np.ndarray  # [1, D] or [N, D] pseudo-observations of the entries, 0 where missing
    shift: np.ndarray  # [N, D]
    scores: np.ndarray  # [N, C] what the inputs give
    targets: np.ndarray  # [N, C]
    log_odds: np.ndarray  # [N] log m - log(N - m) of a feature that m others have; truncated: [K] of each feature
    log_number: np.ndarray  # [room] log prior probability of a number of features that the row has alone
    cumulative: np.ndarray  # [room] the same summed up
    loading_precision: np.ndarray  # [D]
    weight_scale: float
    loss: Any  # its compiled form


class Scratch(NamedTuple):
    """What belongs to the row at hand."""

    slope: np.ndarray  # [D] of the log density of its entries in their linear predictor
    scores: np.ndarray  # [C]
    other: np.ndarray  # [C] scores that are proposed
    base: np.ndarray  # [C] scores without the features that it has alone
    alone: np.ndarray  # [capacity] the features that it has alone
    fresh: np.ndarray  # [room, C] weights that are proposed for them
    shares: np.ndarray  # [5, D] and
    halves: np.ndarray  # [5] what `_evidence` says of 0..4 features
    share: np.ndarray  # [D] of another number
    chances: np.ndarray  # [5]

    @classmethod
    def of(cls, rows):
        """Room for whatever a row may need; compiled code makes no arrays, and so counts no references to them."""
        D, C, number, room = rows.loadings.shape[1], rows.scores.shape[1], _NUM_WEIGHED, len(rows.log_number)
        slope, share, halves, chances = np.empty(D), np.empty(D), np.empty(number), np.empty(number)
        scores, other, base = np.empty(C), np.empty(C), np.empty(C)
        alone, fresh, shares = np.empty(len(rows.counts), np.int64), np.empty((room, C)), np.empty((number, D))
        return cls(slope, scores, other, base, alone, fresh, shares, halves, share, chances)


_CERTAIN = 40.0  # log odds beyond which a probability is within rounding of 0 or 1
_NUM_WEIGHED = 5  # numbers 0, 1, .. of features of a row alone whose evidence is compared


@lean_entry
def scan(rows, scratch, uniforms, normals, place):
    """Visit rows from place[0] on; place = (row, number of features, uniforms used, normals used) is moved on.

    It returns before a row for which the arrays or the random numbers might not suffice; at the end place[0] = N.
    """
    num_columns, num_scores, room = rows.loadings.shape[1], rows.scores.shape[1], len(rows.log_number)
    first = place[0]
    for n in range(first, len(rows.scores)):
        needed = 2 * room * num_scores + (place[1] + room + 1) * num_columns
        if place[1] + room > len(rows.counts) or place[2] + place[1] + 4 > len(uniforms):
            return
        if place[3] + needed > len(normals):
            return
        precision = rows.precision[n if len(rows.precision) > 1 else 0]
        _predict(rows, n, precision, place[1], scratch)
        num_alone = _visit_shared(rows, n, precision, uniforms[place[2] :], place[1], scratch, False)
        place[2] += place[1]
        if n == first or len(rows.precision) > 1:
            for number in range(_NUM_WEIGHED):
                scratch.halves[number] = _evidence(rows.loading_precision, precision, number, scratch.shares[number])
        for i in range(num_alone):
            _move(scratch.slope, 1.0, rows.loadings[scratch.alone[i]], precision)
        used = place[2]
        weighed = _weigh(rows.log_number, uniforms[used], scratch)
        drawn = _draw_poisson(rows.cumulative, uniforms[used + 1])
        if num_alone or weighed or drawn:
            _visit_alone(rows, n, precision, weighed, drawn, num_alone, uniforms, normals, place, scratch)
        place[2] = used + 4
        place[0] = n + 1


@lean_entry
def scan_truncated(rows, scratch, levels):
    """Visit the bits of all features of all rows, with uniform numbers [N, K]."""
    for n in range(len(rows.scores)):
        precision = rows.precision[n if len(rows.precision) > 1 else 0]
        _predict(rows, n, precision, len(rows.counts), scratch)
        _visit_shared(rows, n, precision, levels[n], len(rows.counts), scratch, True)


@inner
def _copy(values, out):
    """As out[:] = values, which compiles a message for arrays of different lengths as well."""
    for d in range(len(out)):
        out[d] = values[d]


@inner
def _add(total, sign, values):
    for d in range(len(total)):
        total[d] += sign * values[d]


@inner
def _move(slope, sign, loadings, precision):
    for d in range(len(slope)):
        slope[d] += sign * precision[d] * loadings[d]


@inner
def _predict(rows, n, precision, num_features, scratch):
    """Slope [D] and scores [C] of a row."""
    slope, scores = scratch.slope, scratch.scores
    _copy(rows.shift[n], slope)
    _copy(rows.scores[n], scores)
    for k in range(num_features):
        if rows.bits[k, n]:
            _move(slope, -1.0, rows.loadings[k], precision)
            _add(scores, 1.0, rows.weights[k])


@inner
def _visit_shared(rows, n, precision, levels, num_features, scratch, truncated):
    """The bits of features that other rows have, or of all; returns how many the row has alone."""
    bits, counts, loadings, weights, log_odds = rows.bits, rows.counts, rows.loadings, rows.weights, rows.log_odds
    slope, scores, other, targets, loss = scratch.slope, scratch.scores, scratch.other, rows.targets[n], rows.loss
    current = log_margin(loss, scores, targets)
    num_alone = np.int64(0)  # 0 is a type of its own, for which numba would compile what takes it once more
    for k in range(num_features):
        old = bits[k, n]
        others = counts[k] - old
        if others == 0 and not truncated:
            scratch.alone[num_alone] = k
            num_alone += 1
            continue
        half, sign, gain = 0.5 - old, 1.0 - 2.0 * old, 0.0
        for d in range(len(slope)):
            w = loadings[k, d]
            gain += w * (slope[d] - half * precision[d] * w)
        for c in range(len(scores)):
            other[c] = scores[c] + sign * weights[k, c]
        moved = log_margin(loss, other, targets)
        gain += log_odds[k if truncated else others] + sign * (moved - current)
        new = 1 if gain > 0.0 else 0
        if abs(gain) < _CERTAIN:
            new = 1 if levels[k] * (1.0 + math.exp(-gain)) < 1.0 else 0
        if new != old:
            bits[k, n] = new
            counts[k] += new - old
            _move(slope, -sign, loadings[k], precision)
            _copy(other, scores)
            current = moved
    return num_alone


# -- the features that a row has alone, whose loadings are integrated out ----------------------------------------------


@inner
def _weigh(log_number, level, scratch):
    """A number of 0..4 features by prior and evidence, given the slope without them."""
    chances, largest, total, number = scratch.chances, -np.inf, 0.0, 0
    for i in range(_NUM_WEIGHED):
        chances[i] = log_number[i] + _square(scratch.slope, scratch.shares[i]) - scratch.halves[i]
        largest = max(largest, chances[i])
    for i in range(_NUM_WEIGHED):
        chances[i] = math.exp(chances[i] - largest) if chances[i] - largest > -_CERTAIN else 0.0
        total += chances[i]
    level *= total
    while number < _NUM_WEIGHED - 1 and level >= chances[number]:
        level -= chances[number]
        number += 1
    return number


@inner
def _draw_poisson(cumulative, level):
    number = 0
    while number < len(cumulative) - 1 and level * cumulative[-1] > cumulative[number]:
        number += 1
    return number


@part
def _evidence(prior, precision, number, share):
    """share [D] and the number that is returned give the `_log_evidence` sum_d share_d slope_d^2 - number."""
    half = 0.0
    for first in range(0, len(share), 8):  # one logarithm for eight factors
        product = 1.0
        for d in range(first, min(first + 8, len(share))):
            ratio = prior[d] + number * precision[d]
            share[d] = 0.5 * number / ratio
            product *= ratio / prior[d]
        half += 0.5 * math.log(product)
    return half


@inner
def _square(slope, share):
    total = 0.0
    for d in range(len(slope)):
        total += share[d] * slope[d] * slope[d]
    return total


@part
def _log_evidence(prior, precision, slope, number, share):
    """log E exp(slope . u - u^T diag(precision) u / 2) for u [D] the sum of so many loadings from their prior."""
    half = _evidence(prior, precision, number, share)
    return _square(slope, share) - half


@part
def _visit_alone(rows, n, precision, weighed, drawn, num_alone, uniforms, normals, place, scratch):
    """How many features the row has alone, their weights, and then their loadings; the slope is that without them.

    Two Metropolis-Hastings steps whose proposals have weights from the prior: a number `weighed` by its evidence among
    0..4, if the present one is one of these, and a number `drawn` from its Poisson law.
    """
    slope, scores, other, alone, fresh = scratch.slope, scratch.scores, scratch.other, scratch.alone, scratch.fresh
    targets = rows.targets[n]
    _copy(scores, scratch.base)
    for i in range(num_alone):
        _add(scratch.base, -1.0, rows.weights[alone[i]])
    for step in range(2):
        if step == 0 and num_alone >= _NUM_WEIGHED:
            continue
        number = drawn if step else weighed
        if number == 0 and num_alone == 0:
            continue
        log_ratio = 0.0
        if step == 1:
            log_ratio += _log_evidence(rows.loading_precision, precision, slope, number, scratch.share)
            log_ratio -= _log_evidence(rows.loading_precision, precision, slope, num_alone, scratch.share)
        _copy(scratch.base, other)
        for i in range(number):
            for c in range(len(other)):
                fresh[i, c] = rows.weight_scale * normals[place[3]]
                place[3] += 1
            _add(other, 1.0, fresh[i])
        log_ratio += log_margin(rows.loss, other, targets) - log_margin(rows.loss, scores, targets)
        if math.log1p(-uniforms[place[2] + 2 + step]) < log_ratio:
            num_alone = _replace_alone(rows, n, place, alone, num_alone, fresh, number)
            _copy(other, scores)
    if num_alone:
        _draw_alone(rows, precision, slope, normals, place, alone, num_alone)


@part
def _replace_alone(rows, n, place, alone, old, fresh, new):
    """Give the row `new` features of its own with these weights in place of the `old` ones; loadings come later."""
    for i in range(old - 1, new - 1, -1):
        last = place[1] - 1
        _copy(rows.bits[last], rows.bits[alone[i]])
        rows.counts[alone[i]] = rows.counts[last]
        _copy(rows.loadings[last], rows.loadings[alone[i]])
        _copy(rows.weights[last], rows.weights[alone[i]])
        place[1] = last
    for i in range(old, new):
        k = place[1]
        for m in range(rows.bits.shape[1]):
            rows.bits[k, m] = 1 if m == n else 0
        rows.counts[k] = 1
        alone[i] = k
        place[1] = k + 1
    for i in range(new):
        _copy(fresh[i], rows.weights[alone[i]])
    return new


@part
def _draw_alone(rows, precision, slope, normals, place, alone, number):
    """Loadings of the features that the row has alone: their sum given the row, then each of them given the sum."""
    for d in range(len(slope)):
        prior = rows.loading_precision[d]
        total_precision = prior / number + precision[d]
        total = slope[d] / total_precision
        total += normals[place[3]] / math.sqrt(total_precision)
        drawn = 0.0
        for i in range(number):
            rows.loadings[alone[i], d] = normals[place[3] + 1 + i] / math.sqrt(prior)
            drawn += rows.loadings[alone[i], d]
        for i in range(number):
            rows.loadings[alone[i], d] += (total - drawn) / number
        place[3] += number + 1
