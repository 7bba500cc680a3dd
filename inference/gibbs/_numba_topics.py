"""The collapsed scan of a topic model compiled: every token of every document in turn.

The margin of a document enters as weights L_k of the topic of a token. Given the pseudo-observations of its scores,

    log L_k = sum_c shift_c eta_kc / M - precision_c (eta_kc^2 + 2 eta_kc rest_c) / (2 M^2) = log F_k + log E_jk

with rest the sums of eta over its other tokens, j the token's own topic, F the weights at the sums over all M tokens,
and E_jk = exp(sum_c precision_c eta_jc eta_kc / M^2). Rows of E are computed when a document first needs them, and F
changes by one quotient of them with every token that changes its topic: an exponential is rare. F is computed anew
where its entries could leave the range of numbers.
"""

import math
from typing import NamedTuple

import numpy as np

from ...models.compiled.scalars import exp
from ..compiled.decorators import entry, inner, part


class Tokens(NamedTuple):
    """What `topics` has of the tokens, as arrays; K topics are padded to a whole number of `WIDTH`."""

    starts: np.ndarray  # [N + 1]
    words: np.ndarray  # [M]
    assignments: np.ndarray  # [M]
    document_counts: np.ndarray  # [N, K]
    word_counts: np.ndarray  # [V, padded K]
    topic_sizes: np.ndarray  # [padded K]
    uniforms: np.ndarray  # [M]
    acceptance: np.ndarray  # [M] uniform, or [0] where nothing is proposed
    alpha: float
    beta: float


WIDTH = 8  # weights that are summed together
_FAR = 100.0  # the largest exponent of E
_DRIFT = 200.0  # by how much log F may move before it is computed anew


@entry
def scan(tokens, precision, shift, eta, first, last):
    """Visit the tokens of documents first : last, given pseudo-observations [N, C] and weights eta [C, padded K]."""
    work = _workspace(tokens, eta)
    largest = np.zeros(len(eta))
    for c in range(len(eta)):
        largest[c] = np.abs(eta[c]).max()
    for n in range(first, last):
        if not (np.any(precision[n]) or np.any(shift[n])):
            _visit_plain(tokens, n, work)
            continue
        length, reach = max(1, tokens.starts[n + 1] - tokens.starts[n]), 0.0
        for c in range(len(eta)):
            reach += precision[n, c] * (largest[c] / length) ** 2
        _visit(tokens, n, precision[n], shift[n], eta, reach, work)


@entry
def scan_crammer_singer(tokens, classes, strength, margin, eta, first, last):
    """Visit the tokens of documents first : last under exp(-2c max_y (l 1[y != y_n] + f_y - f_{y_n})).

    y_n [N] are the classes, -1 where missing. A Metropolis-Hastings step for each token: the maximum is linear while
    the same class attains it, so the proposal has the class that does at the sums over the other tokens.
    """
    work = _workspace(tokens, eta)
    for n in range(first, last):
        if classes[n] < 0:
            _visit_plain(tokens, n, work)
        else:
            _visit_maximum(tokens, n, classes[n], strength, margin, eta, work)


class _Work(NamedTuple):
    factor: np.ndarray  # [padded K] tilt_k (C_nk + alpha) / (C_k. + V beta), 0 beyond K
    tilt: np.ndarray  # [padded K] F when the factors were last computed
    weights: np.ndarray  # [padded K]
    ones: np.ndarray  # [padded K]
    up: np.ndarray  # [padded K, padded K] rows of E
    down: np.ndarray  # [padded K, padded K] rows of 1 / E
    known: np.ndarray  # [padded K] the document whose row it is
    scores: np.ndarray  # [C]


@inner
def _workspace(tokens, eta):
    width, num_scores = tokens.word_counts.shape[1], len(eta)
    rows = max(width, num_scores)
    return _Work(
        np.zeros(width),
        np.ones(width),
        np.zeros(width),
        np.ones(width),
        np.empty((rows, width)),
        np.empty((rows, width)),
        np.full(rows, -1),
        np.zeros(num_scores),
    )


# -- one token ---------------------------------------------------------------------------------------------------------


@inner
def _shift_token(tokens, n, word, k, by, work):
    """Count a token in or out; the factor of its topic changes by a quotient."""
    alpha, rest = tokens.alpha, tokens.beta * len(tokens.word_counts)
    count, size = tokens.document_counts[n, k], tokens.topic_sizes[k]
    work.factor[k] *= ((count + by + alpha) * (size + rest)) / ((count + alpha) * (size + by + rest))
    tokens.document_counts[n, k] = count + by
    tokens.topic_sizes[k] = size + by
    tokens.word_counts[word, k] += by


@inner
def _set_factors(tokens, n, work):
    rest = tokens.beta * len(tokens.word_counts)
    for k in range(tokens.document_counts.shape[1]):
        count, size = tokens.document_counts[n, k], tokens.topic_sizes[k]
        work.factor[k] = work.tilt[k] * (count + tokens.alpha) / (size + rest)


@inner
def _draw(tokens, word, uniform, work, row):
    """A topic with weights (C_kw + beta) factor_k row_k: first its block of `WIDTH`, then its place there."""
    counts, factor, weights, beta, total = tokens.word_counts[word], work.factor, work.weights, tokens.beta, 0.0
    for k in range(len(factor)):
        weight = (counts[k] + beta) * factor[k] * row[k]
        weights[k] = weight
        total += weight
    level, first = uniform * total, 0
    while first < len(factor) - WIDTH:
        partial = 0.0
        for k in range(first, first + WIDTH):
            partial += weights[k]
        if level < partial:
            break
        level -= partial
        first += WIDTH
    chosen, partial = first, 0.0
    for k in range(first, first + WIDTH - 1):  # without a branch, which nobody could predict
        partial += weights[k]
        chosen += 1 if level >= partial else 0
    while chosen > 0 and weights[chosen] <= 0.0:  # rounding went beyond the last topic that has a weight
        chosen -= 1
    return chosen


# -- one document ------------------------------------------------------------------------------------------------------


@part
def _visit_plain(tokens, n, work):
    """A document without a target."""
    work.tilt[:] = 1.0
    _set_factors(tokens, n, work)
    for m in range(tokens.starts[n], tokens.starts[n + 1]):
        word, old = tokens.words[m], tokens.assignments[m]
        _shift_token(tokens, n, word, old, -1, work)
        new = _draw(tokens, word, tokens.uniforms[m], work, work.ones)
        _shift_token(tokens, n, word, new, 1, work)
        tokens.assignments[m] = new


@part
def _visit(tokens, n, precision, shift, eta, reach, work):
    """A document with pseudo-observations [C] of its scores; |log E| <= reach."""
    length, drift, direct = tokens.starts[n + 1] - tokens.starts[n], 0.0, reach > _FAR
    _set_tilt(tokens, n, precision, shift, eta, length, work)
    for m in range(tokens.starts[n], tokens.starts[n + 1]):
        word, old = tokens.words[m], tokens.assignments[m]
        _shift_token(tokens, n, word, old, -1, work)
        if direct:
            _set_tilt(tokens, n, precision, shift, eta, length, work)
            new = _draw(tokens, word, tokens.uniforms[m], work, work.ones)
        else:
            _require_row(n, old, precision, eta, length, work)
            new = _draw(tokens, word, tokens.uniforms[m], work, work.up[old])
        _shift_token(tokens, n, word, new, 1, work)
        tokens.assignments[m] = new
        if new == old or direct:
            continue
        drift += 2 * reach
        if drift > _DRIFT:
            _set_tilt(tokens, n, precision, shift, eta, length, work)
            drift = 0.0
        else:
            _require_row(n, new, precision, eta, length, work)
            for k in range(len(work.factor)):
                work.factor[k] *= work.up[old, k] * work.down[new, k]


@part
def _set_tilt(tokens, n, precision, shift, eta, length, work):
    """F [padded K] of the tokens that the counts have, relative to its largest entry."""
    tilt, counts = work.tilt, tokens.document_counts
    tilt[:] = 0.0
    for c in range(len(eta)):
        score = 0.0
        for k in range(counts.shape[1]):
            score += counts[n, k] * eta[c, k]
        slope = (shift[c] - precision[c] * score / length) / length
        curvature = precision[c] / (2.0 * length * length)
        for k in range(len(tilt)):
            tilt[k] += (slope - curvature * eta[c, k]) * eta[c, k]
    largest = tilt[0]
    for k in range(counts.shape[1]):
        largest = max(largest, tilt[k])
    for k in range(len(tilt)):
        tilt[k] = math.exp(min(0.0, tilt[k] - largest))
    _set_factors(tokens, n, work)


@inner
def _require_row(n, j, precision, eta, length, work):
    """Compute row j of E, and of 1 / E, unless the document has them."""
    if work.known[j] != n:
        _set_row(n, j, precision, eta, length, work)


@part
def _set_row(n, j, precision, eta, length, work):
    work.known[j] = n
    up, down = work.up[j], work.down[j]
    up[:] = 0.0
    for c in range(len(eta)):
        own = precision[c] * eta[c, j] / length / length
        for k in range(len(up)):
            up[k] += own * eta[c, k]
    for k in range(len(up)):
        up[k] = exp(up[k])
        down[k] = 1.0 / up[k]


@part
def _visit_maximum(tokens, n, own, strength, margin, eta, work):
    """A document of class `own`; rows of `up` are exp(-2c (eta_yk - eta_own k) / M) for the classes y."""
    length, scores = tokens.starts[n + 1] - tokens.starts[n], work.scores
    slope, cost = 2.0 * strength / max(1, length), margin * length
    work.tilt[:] = 1.0
    _set_factors(tokens, n, work)
    for c in range(len(eta)):
        scores[c] = 0.0 if c == own else cost
        for k in range(tokens.document_counts.shape[1]):
            scores[c] += tokens.document_counts[n, k] * eta[c, k]
    for m in range(tokens.starts[n], tokens.starts[n + 1]):
        word, old = tokens.words[m], tokens.assignments[m]
        _shift_token(tokens, n, word, old, -1, work)
        top, before = 0, -np.inf
        for c in range(len(eta)):
            before = max(before, scores[c])
            scores[c] -= eta[c, old]
            if scores[c] > scores[top]:
                top = c
        if work.known[top] != n:
            _set_linear(n, top, own, slope, eta, tokens.document_counts.shape[1], work)
        new = _draw(tokens, word, tokens.uniforms[m], work, work.up[top])
        if new != old:
            after = -np.inf
            for c in range(len(eta)):
                after = max(after, scores[c] + eta[c, new])
            # the change of the maximum less that of the linear piece which the proposal has
            excess = slope * (after - eta[top, new] - before + eta[top, old])
            if excess > 0.0 and tokens.acceptance[m] >= math.exp(-excess):
                new = old
        for c in range(len(eta)):
            scores[c] += eta[c, new]
        _shift_token(tokens, n, word, new, 1, work)
        tokens.assignments[m] = new


@part
def _set_linear(n, top, own, slope, eta, num_topics, work):
    work.known[top] = n
    row = work.up[top]
    for k in range(len(row)):
        row[k] = slope * (eta[own, k] - eta[top, k])
    largest = row[0]
    for k in range(num_topics):
        largest = max(largest, row[k])
    for k in range(num_topics):
        row[k] = math.exp(row[k] - largest)
    row[num_topics:] = 0.0
