"""Bits of latent features row by row, compiled, with the probabilities of the features integrated out.

Margins are those of `log_margin`, by the number that `feature_rows` gives a loss.
"""

import math
from typing import NamedTuple

import numpy as np

from ..compiled import entry, inner, part


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
    log_odds: np.ndarray  # [N] log m - log(N - m) of a feature that m others have
    log_number: np.ndarray  # [room] log prior probability of a number of features that the row has alone
    cumulative: np.ndarray  # [room] the same summed up
    loading_precision: np.ndarray  # [D]
    weight_scale: float
    loss: tuple[int, float, float]  # see `log_margin`


HINGE, SQUARED_HINGE, LOGISTIC, EPSILON_INSENSITIVE, STUDENT_T, CRAMMER_SINGER = range(6)
_NUM_WEIGHED = 5  # numbers 0, 1, .. of features of a row alone whose evidence is compared


@part
def log_margin(loss, scores, targets):
    """log phi(y | f) of a row: scores [C], targets [C], NaN where missing."""
    kind, a, b = loss
    total = 0.0
    if kind == CRAMMER_SINGER:
        own, largest = 0.0, -np.inf
        for c in range(len(scores)):
            if math.isnan(targets[c]):
                return 0.0
            if targets[c] > 0:
                own = scores[c]
                largest = max(largest, scores[c])
            else:
                largest = max(largest, scores[c] + b)
        return -2.0 * a * (largest - own)
    for c in range(len(scores)):
        y, f = targets[c], scores[c]
        if math.isnan(y):
            continue
        if kind == HINGE:
            total -= 2.0 * a * max(0.0, b - y * f)
        elif kind == SQUARED_HINGE:
            total -= 2.0 * a * max(0.0, b - y * f) ** 2
        elif kind == LOGISTIC:
            total -= max(0.0, -y * f) + math.log1p(math.exp(-abs(f)))
        elif kind == EPSILON_INSENSITIVE:
            total -= 2.0 * a * max(0.0, abs(y - f) - b)
        else:
            total -= (a + 1.0) / 2.0 * math.log1p(((y - f) / b) ** 2 / a)
    return total


@entry
def margins(loss, scores, targets, out):
    """log phi(y | f) of all rows, to `out` [N]."""
    for n in range(len(scores)):
        out[n] = log_margin(loss, scores[n], targets[n])


@entry
def scan(rows, uniforms, normals, place):
    """Visit rows from place[0] on; place = (row, number of features, uniforms used, normals used) is moved on.

    It returns before a row for which the arrays or the random numbers might not suffice; at the end place[0] = N.
    """
    num_data, num_columns, num_scores = rows.bits.shape[1], rows.loadings.shape[1], rows.scores.shape[1]
    capacity, room = len(rows.counts), len(rows.log_number)
    mean, slope, scores = np.empty(num_columns), np.empty(num_columns), np.empty(num_scores)
    other, base, fresh = np.empty(num_scores), np.empty(num_scores), np.empty((room, num_scores))
    alone = np.empty(capacity, np.int64)
    for n in range(place[0], num_data):
        num_alone = 0
        for k in range(place[1]):
            if rows.bits[k, n] and rows.counts[k] == 1:
                alone[num_alone] = k
                num_alone += 1
        needed = 2 * room * num_scores + (max(num_alone, room) + 1) * num_columns
        if place[1] + room > capacity or len(uniforms) - place[2] < place[1] + 4 or len(normals) - place[3] < needed:
            return
        _predict(rows, n, place[1], mean, scores)
        _visit_shared(rows, n, uniforms, place, mean, scores, other)
        _leave_alone(rows, n, mean, scores, alone, num_alone, slope, base)
        num_alone = _visit_alone(rows, n, uniforms, normals, place, slope, base, scores, other, fresh, alone, num_alone)
        if num_alone:
            _draw_alone(rows, n, normals, place, mean, alone, num_alone)
        place[0] = n + 1


@inner
def _predict(rows, n, num_features, mean, scores):
    """Linear predictor [D] and scores [C] of a row."""
    mean[:] = 0.0
    scores[:] = rows.scores[n]
    for k in range(num_features):
        if rows.bits[k, n]:
            _add(mean, 1.0, rows.loadings[k])
            _add(scores, 1.0, rows.weights[k])


@inner
def _add(total, sign, values):
    for d in range(len(total)):
        total[d] += sign * values[d]


@inner
def _precision(rows, n):
    return rows.precision[n if len(rows.precision) > 1 else 0]


@part
def _visit_shared(rows, n, uniforms, place, mean, scores, other):
    """The bits of features that other rows have."""
    precision, shift, targets, loss = _precision(rows, n), rows.shift[n], rows.targets[n], rows.loss
    bits, counts, loadings, weights, log_odds = rows.bits, rows.counts, rows.loadings, rows.weights, rows.log_odds
    current = log_margin(loss, scores, targets)
    for k in range(place[1]):
        old = bits[k, n]
        others = counts[k] - old
        if others == 0:
            continue
        half, sign, gain = 0.5 - old, 1.0 - 2.0 * old, 0.0
        for d in range(len(mean)):
            w = loadings[k, d]
            gain += w * (shift[d] - precision[d] * (mean[d] + half * w))
        for c in range(len(scores)):
            other[c] = scores[c] + sign * weights[k, c]
        moved = log_margin(loss, other, targets)
        gain += log_odds[others] + sign * (moved - current)
        new = 1 if uniforms[place[2]] * (1.0 + math.exp(-gain)) < 1.0 else 0
        place[2] += 1
        if new != old:
            bits[k, n] = new
            counts[k] += new - old
            for d in range(len(mean)):
                mean[d] += sign * loadings[k, d]
            scores[:] = other
            current = moved


@inner
def _leave_alone(rows, n, mean, scores, alone, num_alone, slope, base):
    """Take the features that the row has alone out of its predictor, and of its scores to `base` [C]."""
    base[:] = scores
    for i in range(num_alone):
        _add(mean, -1.0, rows.loadings[alone[i]])
        _add(base, -1.0, rows.weights[alone[i]])
    precision, shift = _precision(rows, n), rows.shift[n]
    for d in range(len(slope)):
        slope[d] = shift[d] - precision[d] * mean[d]


@part
def _visit_alone(rows, n, uniforms, normals, place, slope, base, scores, other, fresh, alone, num_alone):
    """The features that the row has alone, their loadings integrated out: how many there are, and their weights.

    Two Metropolis-Hastings steps whose proposals have weights from the prior: the number by its evidence among 0..4,
    if it is one of these, and by its Poisson law.
    """
    for step in range(2):
        level, height = uniforms[place[2]], uniforms[place[2] + 1]
        place[2] += 2
        if step == 0 and num_alone >= _NUM_WEIGHED:
            continue
        if step == 0:
            number = _weigh(rows, n, slope, level)
        else:
            number = np.searchsorted(rows.cumulative, level * rows.cumulative[-1])
        if number == 0 and num_alone == 0:
            continue
        log_ratio = 0.0
        if step == 1:
            log_ratio = _log_evidence(rows, n, slope, number) - _log_evidence(rows, n, slope, num_alone)
        other[:] = base
        for i in range(number):
            for c in range(len(other)):
                fresh[i, c] = rows.weight_scale * normals[place[3]]
                place[3] += 1
            _add(other, 1.0, fresh[i])
        log_ratio += log_margin(rows.loss, other, rows.targets[n]) - log_margin(rows.loss, scores, rows.targets[n])
        if math.log1p(-height) < log_ratio:
            num_alone = _replace_alone(rows, n, place, alone, num_alone, fresh, number)
            scores[:] = other
    return num_alone


@inner
def _weigh(rows, n, slope, level):
    """A number of 0..4 features by prior and evidence."""
    weights, total = np.empty(_NUM_WEIGHED), 0.0
    for number in range(_NUM_WEIGHED):
        weights[number] = rows.log_number[number] + _log_evidence(rows, n, slope, number)
    largest = weights.max()
    for number in range(_NUM_WEIGHED):
        weights[number] = math.exp(weights[number] - largest)
        total += weights[number]
    level *= total
    number = 0
    while number < _NUM_WEIGHED - 1 and level >= weights[number]:
        level -= weights[number]
        number += 1
    return number


@part
def _log_evidence(rows, n, slope, number):
    """log E exp(slope . u - u^T diag(precision) u / 2) for u [D] the sum of so many loadings from their prior."""
    total, precision, prior = 0.0, _precision(rows, n), rows.loading_precision
    if number == 0:
        return 0.0
    for first in range(0, len(slope), 8):  # one logarithm for eight factors
        product = 1.0
        for d in range(first, min(first + 8, len(slope))):
            ratio = prior[d] + number * precision[d]
            total += slope[d] * slope[d] * number / ratio
            product *= ratio / prior[d]
        total -= math.log(product)
    return total / 2.0


@part
def _replace_alone(rows, n, place, alone, old, fresh, new):
    """Give the row `new` features of its own with these weights in place of the `old` ones; loadings come later."""
    for i in range(old - 1, new - 1, -1):  # from the last: what moves into the gap is no feature to be closed
        last = place[1] - 1
        rows.bits[alone[i], :] = rows.bits[last, :]
        rows.counts[alone[i]] = rows.counts[last]
        rows.loadings[alone[i], :] = rows.loadings[last, :]
        rows.weights[alone[i], :] = rows.weights[last, :]
        for j in range(i):
            if alone[j] == last:
                alone[j] = alone[i]
        place[1] = last
    for i in range(old, new):
        k = place[1]
        rows.bits[k, :] = 0
        rows.bits[k, n] = 1
        rows.counts[k] = 1
        alone[i] = k
        place[1] = k + 1
    for i in range(new):
        rows.weights[alone[i], :] = fresh[i]
    return new


@part
def _draw_alone(rows, n, normals, place, mean, alone, number):
    """Loadings of the features that the row has alone: their sum given the row, then each of them given the sum."""
    precision = _precision(rows, n)
    for d in range(len(mean)):
        prior = rows.loading_precision[d]
        total_precision = prior / number + precision[d]
        total = (rows.shift[n, d] - precision[d] * mean[d]) / total_precision
        total += normals[place[3]] / math.sqrt(total_precision)
        drawn = 0.0
        for i in range(number):
            rows.loadings[alone[i], d] = normals[place[3] + 1 + i] / math.sqrt(prior)
            drawn += rows.loadings[alone[i], d]
        for i in range(number):
            rows.loadings[alone[i], d] += (total - drawn) / number
        place[3] += number + 1
