"""Compiled updates of the documents of variational topic models, one by one; see `documents` and `tokens`."""

import math

import numpy as np

from ...compiled._numba_functions import digamma, threshold
from ...compiled.decorators import entry, inner, lean_entry, lean_part, part


@lean_entry
def fit_documents(rows, weights, log_weights, concentration, slopes, dual, limits, counts, tilt, sums, room):
    """Set q(theta) q(z) of each document, and its dual variables t, to their optimum (`documents`).

    rows are (starts, columns, values); weights are exp(E log topic) [V, K], with the largest entry of each word 1;
    slopes are mu [K, C]; dual holds the conjugates; limits are (steps, change of the counts, passes, gap). counts [N,
    K] and tilt [N, C] start and end the updates; sums, word_counts [V, K] and local [N], are the results; room [7, K]
    and [3, C] are buffers.
    """
    starts, _, values = rows
    most_steps, most_change, most_passes, most_gap = limits
    word_counts, local = sums
    num_topics, spread = len(slopes), _spread(slopes)
    vectors, _ = room
    base, log_share, new = vectors[0], vectors[1], vectors[2]
    for n in range(len(counts)):
        length = 0.0
        for e in range(starts[n], starts[n + 1]):
            length += values[e]
        log_total = 0.0
        for k in range(num_topics):
            log_share[k] = 0.0
        for _ in range(most_steps if length > 0.0 else 0):
            for k in range(num_topics):
                base[k] = digamma(concentration + counts[n, k])
            limit = spread / (4.0 * length), most_passes, most_gap * (1.0 + length)
            log_total = _solve(n, rows, length, weights, log_weights, base, slopes, dual, limit, tilt[n], room, new)
            _tilted(base, slopes, tilt[n], length, log_share)
            change = 0.0
            for k in range(num_topics):
                change = max(change, abs(new[k] - counts[n, k]))
                counts[n, k] = new[k]
            if change <= most_change * length:
                break
        _add_words(n, rows, weights, log_weights, log_share, word_counts, vectors[3])
        local[n] = _log_ratio(concentration, counts[n]) - log_total
        for k in range(num_topics):
            local[n] += counts[n, k] * log_share[k]


@inner
def _solve(n, rows, length, weights, log_weights, base, slopes, dual, limit, tilt, room, counts):
    """Minimize sum_e n_e log Z_e(t) + g*(-t) over t by projected gradient steps; also compute the counts.

    The step size follows from the last curvature seen. A step is accepted if the first term stays below its quadratic
    bound, which is certain at the largest possible curvature.
    """
    largest, most_passes, most_gap = limit
    num_topics, num_scores = slopes.shape
    vectors, work = room
    score, following, next_score = work[0], work[1], work[2]
    log_share, next_counts, share, pull = vectors[3], vectors[4], vectors[5], vectors[6]
    total, curvature = 0.0, largest
    for c in range(num_scores):
        following[c] = tilt[c]
    for index in range(1 + most_passes):
        _tilted(base, slopes, following, length, log_share)
        next_total = _expect(n, rows, weights, log_weights, log_share, share, pull, next_counts)
        _scores(next_counts, slopes, length, next_score)
        square, slope, bend = 0.0, 0.0, 0.0
        for c in range(num_scores):
            step = following[c] - tilt[c]
            square += step * step
            slope += step * score[c]
            bend += step * (next_score[c] - score[c])
        allowed = total + slope + curvature / 2 * square + 1e-13 * (1.0 + abs(total))
        if index > 0 and next_total > allowed and curvature < largest:
            curvature = min(4.0 * curvature, largest)
        else:
            if index > 0:
                curvature = min(max(bend / square, 1e-6 * largest), largest)
            total = next_total
            for c in range(num_scores):
                tilt[c], score[c] = following[c], next_score[c]
            for k in range(num_topics):
                counts[k] = next_counts[k]
            if largest == 0.0 or _gap(n, score, tilt, dual) <= most_gap:
                break
        _best(n, score, curvature, tilt, dual, following)
        moved = 0.0
        for c in range(num_scores):
            moved = max(moved, abs(following[c] - tilt[c]))
        if moved == 0.0:
            break
    return total


@lean_part
def _expect(n, rows, weights, log_weights, log_share, share, pull, counts):
    """Set counts [K] to sum_e n_e phi_e, phi_ek prop. to weights * exp(log_share); return sum_e n_e log Z_e."""
    starts, columns, values = rows
    num_topics = len(counts)
    top = _fill_shares(log_share, share)
    for k in range(num_topics):
        counts[k] = pull[k] = 0.0
    total = 0.0
    for e in range(starts[n], starts[n + 1]):
        word, scale = columns[e], 0.0
        for k in range(num_topics):
            scale += weights[word, k] * share[k]
        if scale > 1e-200:
            total += values[e] * (math.log(scale) + top)
            factor = values[e] / scale
            for k in range(num_topics):
                pull[k] += factor * weights[word, k]
        else:
            total += values[e] * _expect_log(log_weights[word], log_share, values[e], counts)
    for k in range(num_topics):
        counts[k] += pull[k] * share[k]
    return total


@lean_part
def _fill_shares(log_share, share):
    """Set share [K] to exp(log_share) relative to its largest entry; return the log of that entry."""
    top = -np.inf
    for k in range(len(share)):
        top = max(top, log_share[k])
    for k in range(len(share)):
        share[k] = math.exp(log_share[k] - top)
    return top


@lean_part
def _expect_log(log_own, log_share, number, counts):
    """`_expect` for an entry whose products underflow: add n_e phi_e to counts [K]; return log Z_e."""
    top, scale = -np.inf, 0.0
    for k in range(len(counts)):
        top = max(top, log_own[k] + log_share[k])
    for k in range(len(counts)):
        scale += math.exp(log_own[k] + log_share[k] - top)
    for k in range(len(counts)):
        counts[k] += number * math.exp(log_own[k] + log_share[k] - top) / scale
    return top + math.log(scale)


@inner
def _add_words(n, rows, weights, log_weights, log_share, word_counts, share):
    starts, columns, values = rows
    _fill_shares(log_share, share)
    for e in range(starts[n], starts[n + 1]):
        word, scale = columns[e], 0.0
        for k in range(len(share)):
            scale += weights[word, k] * share[k]
        if scale > 1e-200:
            for k in range(len(share)):
                word_counts[word, k] += values[e] / scale * weights[word, k] * share[k]
        else:
            _expect_log(log_weights[word], log_share, values[e], word_counts[word])


@lean_part
def _tilted(base, slopes, tilt, length, log_share):
    for k in range(len(base)):
        total = 0.0
        for c in range(len(tilt)):
            total += slopes[k, c] * tilt[c]
        log_share[k] = base[k] + total / length


@lean_part
def _scores(counts, slopes, length, scores):
    for c in range(len(scores)):
        scores[c] = 0.0
    for k in range(len(counts)):
        for c in range(len(scores)):
            scores[c] += counts[k] / length * slopes[k, c]


@inner
def _spread(slopes):
    """The largest |mu_j - mu_k|^2."""
    largest = 0.0
    for j in range(len(slopes)):
        for k in range(j):
            square = 0.0
            for c in range(slopes.shape[1]):
                square += (slopes[j, c] - slopes[k, c]) ** 2
            largest = max(largest, square)
    return largest


@inner
def _log_ratio(concentration, counts):
    """log B(alpha 1) - log B(alpha 1 + counts)."""
    total, length = 0.0, 0.0
    for k in range(len(counts)):
        total += math.lgamma(concentration) - math.lgamma(concentration + counts[k])
        length += counts[k]
    return total + math.lgamma(len(counts) * concentration + length) - math.lgamma(len(counts) * concentration)


# -- conjugates: a box for each score, or a simplex for all of them ----------------------------------------------------


@inner
def _best(n, score, step, tilt, dual, following):
    """Set `following` to the tilt that minimizes g*(-t) + t . score + step |t - tilt|^2 / 2."""
    simplex, box, curvature, tube, classes, mass, margin = dual
    if not simplex:
        for c in range(len(tilt)):
            slope = box[0, n, c] - score[c] + step * tilt[c]
            excess = max(abs(slope) - tube, 0.0)
            found = (excess if slope > 0.0 else -excess) / max(step + curvature, 1e-300)
            following[c] = min(max(found, box[1, n, c]), box[2, n, c])
        return
    own, total = classes[n], 0.0
    for c in range(len(tilt)):
        following[c] = (score[c] + (0.0 if c == own else margin)) / step - tilt[c]
    following[own] += mass[n]
    least = threshold(following, mass[n])
    for c in range(len(tilt)):
        if c != own:
            following[c] = min(least - following[c], 0.0)
            total -= following[c]
    following[own] = min(total, mass[n])


@inner
def _gap(n, score, tilt, dual):
    """The duality gap g(f) + g*(-t) + t . f, 0 if -t is a subgradient at the score."""
    simplex, box, curvature, tube, classes, mass, margin = dual
    total = 0.0
    if not simplex:
        for c in range(len(tilt)):
            slope = box[0, n, c] - score[c]
            excess = max(abs(slope) - tube, 0.0)
            best = (excess if slope > 0.0 else -excess) / max(curvature, 1e-300)
            best = min(max(best, box[1, n, c]), box[2, n, c])
            total += best * slope - tube * abs(best) - curvature / 2 * best * best
            total -= tilt[c] * slope - tube * abs(tilt[c]) - curvature / 2 * tilt[c] * tilt[c]
        return total
    own, largest = classes[n], -np.inf
    for c in range(len(tilt)):
        largest = max(largest, score[c] + (0.0 if c == own else margin))
        total += tilt[c] * score[c]
    return total + mass[n] * (largest - score[own]) - margin * tilt[own]


# -- token by token, for a quadratic in the scores ---------------------------------------------------------------------


@entry
def visit_tokens(rows, log_weights, log_share, linear, precision, moments, phi, counts):
    """Update phi in one pass over the words of each document; the tokens of a word are updated together (`tokens`).

    log_share [N, K] is E log theta; linear [N, K] the margin's linear term; precision [N, C] and moments E eta eta^T
    [C, K, K] give its curvature; phi [nnz, K] and counts [N, K] change in place.
    """
    starts, columns, values = rows
    num_topics = phi.shape[1]
    curvature, logits = np.empty((num_topics, num_topics)), np.empty(num_topics)
    pulled, step = np.empty(num_topics), np.empty(num_topics)
    for n in range(len(counts)):
        length = 0.0
        for e in range(starts[n], starts[n + 1]):
            length += values[e]
        largest = _curvature(precision[n], moments, length, curvature)
        for k in range(num_topics):
            pulled[k] = 0.0
        _add_product(curvature, counts[n], 1.0, pulled)
        for e in range(starts[n], starts[n + 1]):
            own, number = phi[e], values[e]
            damping = largest * (number - 1.0)
            _add_product(curvature, own, -1.0, pulled)  # subtract the curvature term of one token
            top, scale = -np.inf, 0.0
            for k in range(num_topics):
                others = pulled[k] + curvature[k, k] / 2
                logits[k] = log_share[n, k] + log_weights[columns[e], k] + linear[n, k] - others
                if damping > 0.0:
                    logits[k] = (logits[k] + damping * math.log(max(own[k], 1e-300))) / (1.0 + damping)
                top = max(top, logits[k])
            for k in range(num_topics):
                logits[k] = math.exp(logits[k] - top)
                scale += logits[k]
            for k in range(num_topics):
                new = logits[k] / scale
                step[k] = number * (new - own[k])
                counts[n, k] += step[k]
                step[k] += own[k]  # and add that of one token again
                own[k] = new
            _add_product(curvature, step, 1.0, pulled)


@entry
def add_grams(starts, values, phi, grams):
    """Add sum_e n_e phi_e phi_e^T of each document to grams [N, K, K]."""
    for n in range(len(grams)):
        for e in range(starts[n], starts[n + 1]):
            own = phi[e]
            for j in range(len(own)):
                times = values[e] * own[j]
                if times > 0.0:
                    for k in range(len(own)):
                        grams[n, j, k] += times * own[k]


@part
def _add_product(matrix, vector, times, total):
    """Add `times` the product of a symmetric matrix and a vector to `total`, row by row."""
    for j in range(len(vector)):
        factor = times * vector[j]
        if factor != 0.0:
            for k in range(len(total)):
                total[k] += factor * matrix[j, k]


@part
def _curvature(precision, moments, length, curvature):
    """Set `curvature` to sum_c a_c E[eta_c eta_c^T] / M^2 [K, K]; return its largest absolute entry."""
    curvature[:] = 0.0
    largest = 0.0
    for c in range(len(precision)):
        times = precision[c] / max(length, 1.0) ** 2
        for j in range(len(curvature)):
            for k in range(len(curvature)):
                curvature[j, k] += times * moments[c, j, k]
    for j in range(len(curvature)):
        for k in range(len(curvature)):
            largest = max(largest, abs(curvature[j, k]))
    return largest
