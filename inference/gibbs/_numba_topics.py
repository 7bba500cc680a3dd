"""The compiled collapsed scan of a topic model: every token of every document in turn.

The margin factor of a document enters as weights L_k of topic k for a token. Given the pseudo-observations of its
scores,

    log L_k = sum_c shift_c eta_kc / M - precision_c (eta_kc^2 + 2 eta_kc rest_c) / (2 M^2) = log F_k + log E_jk

where rest are the sums of eta over the document's other tokens, j is the token's own topic, F are the weights at the
sums over all M tokens, and E_jk = exp(sum_c precision_c eta_jc eta_kc / M^2). A row of E is computed when a document
first needs it. Each token that changes its topic multiplies F by a quotient of two such rows, so that exponentials are
rare. F is computed anew where its entries could overflow or underflow.

The counts include the visited token. Only the weight of its own topic has to be corrected for that, and if the token
stays where it is, nothing changes.
"""

import math
from typing import NamedTuple

import numpy as np

from ...models.compiled.scalars import exp, prefetch
from ..compiled.decorators import inner, lean_entry, lean_part


class Tokens(NamedTuple):
    """The tokens and counts of `topics` as arrays; K is padded to a multiple of `WIDTH` ("padded K")."""

    starts: np.ndarray  # [N + 1]
    words: np.ndarray  # [M]
    assignments: np.ndarray  # [M]
    document_counts: np.ndarray  # [N, K]
    word_counts: np.ndarray  # [V, padded K]
    topic_sizes: np.ndarray  # [padded K]
    uniforms: np.ndarray  # [M]
    acceptance: np.ndarray  # [M] uniform numbers of Metropolis-Hastings tests, or [0] where nothing is proposed
    alpha: float
    beta: float


WIDTH = 8  # topics whose weights are summed as one block
_AHEAD = 4  # how many tokens in advance counts are fetched from memory
_FAR = 100.0  # the largest exponent of E
_LOST = 1e-6  # of a sum: a smaller difference has lost digits, and is summed anew
_DRIFT = 200.0  # by how much log F may move before it is computed anew


@lean_entry
def scan(tokens, work, precision, shift, eta, first, last):
    """Visit the tokens of documents first .. last - 1, given pseudo-observations [N, C] and eta [C, padded K]."""
    largest = work.scores
    for c in range(len(eta)):
        largest[c] = 0.0
        for k in range(eta.shape[1]):
            largest[c] = max(largest[c], abs(eta[c, k]))
    for n in range(first, last):
        is_plain = True
        for c in range(len(eta)):
            is_plain = is_plain and precision[n, c] == 0.0 and shift[n, c] == 0.0
        if is_plain:
            _visit_plain(tokens, n, work)
            continue
        length, reach = max(1, tokens.starts[n + 1] - tokens.starts[n]), 0.0
        for c in range(len(eta)):
            reach += precision[n, c] * (largest[c] / length) ** 2
        _visit(tokens, n, precision[n], shift[n], eta, reach, work)


@lean_entry
def scan_crammer_singer(tokens, work, classes, strength, margin, eta, first, last):
    """Visit the tokens of documents first .. last - 1 under exp(-2c max_y (l 1[y != y_n] + f_y - f_{y_n})).

    y_n [N] are the classes, -1 where missing. Each token takes a Metropolis-Hastings step. The factor is log-linear as
    long as the same class attains the maximum; the proposal uses the class that attains it without the token.
    """
    for n in range(first, last):
        if classes[n] < 0:
            _visit_plain(tokens, n, work)
        else:
            _visit_maximum(tokens, n, classes[n], strength, margin, eta, work)


class Work(NamedTuple):
    """The buffers of a scan; compiled code then allocates no arrays and counts no references to them."""

    factor: np.ndarray  # [padded K] tilt_k (C_nk + alpha) / (C_k. + V beta), 0 for padding
    tilt: np.ndarray  # [padded K] F when `factor` was last computed from scratch
    weights: np.ndarray  # [padded K]
    ones: np.ndarray  # [padded K]
    up: np.ndarray  # [padded K, padded K] rows of E
    down: np.ndarray  # [padded K, padded K] rows of 1 / E
    known: np.ndarray  # [padded K] the document for which row k of `up` and `down` was computed
    scores: np.ndarray  # [C] scores of a document, or max |eta|

    @classmethod
    def of(cls, eta):
        """Buffers for weights eta [C, padded K]; no row of E is computed yet."""
        (C, width), rows = eta.shape, max(eta.shape)
        square = np.empty((2, rows, width))
        vectors = np.zeros(width), np.ones(width), np.zeros(width), np.ones(width)
        return cls(*vectors, *square, np.full(rows, -1), np.zeros(C))


# -- one token ---------------------------------------------------------------------------------------------------------


@inner
def _left_out(tokens, n, word, k, work):
    """The factor of topic k without one of its tokens; k's weight for that token, without the row of E."""
    alpha, rest = tokens.alpha, tokens.beta * len(tokens.word_counts)
    count, size = tokens.document_counts[n, k], tokens.topic_sizes[k]
    factor = work.factor[k] * ((count - 1 + alpha) * (size + rest)) / ((count + alpha) * (size - 1 + rest))
    return factor, (tokens.word_counts[word, k] - 1 + tokens.beta) * factor


@inner
def _move_token(tokens, n, m, word, old, new, factor, work):
    """Move a token to its new topic; `factor` is that of the old topic without the token."""
    alpha, rest = tokens.alpha, tokens.beta * len(tokens.word_counts)
    count, size = tokens.document_counts[n, new], tokens.topic_sizes[new]
    work.factor[old] = factor
    work.factor[new] *= ((count + 1 + alpha) * (size + rest)) / ((count + alpha) * (size + 1 + rest))
    tokens.document_counts[n, old] -= 1
    tokens.topic_sizes[old] -= 1
    tokens.word_counts[word, old] -= 1
    tokens.document_counts[n, new] = count + 1
    tokens.topic_sizes[new] = size + 1
    tokens.word_counts[word, new] += 1
    tokens.assignments[m] = new


@inner
def _set_factors(tokens, n, work):
    rest = tokens.beta * len(tokens.word_counts)
    for k in range(tokens.document_counts.shape[1]):
        count, size = tokens.document_counts[n, k], tokens.topic_sizes[k]
        work.factor[k] = work.tilt[k] * (count + tokens.alpha) / (size + rest)


@inner
def _draw(tokens, m, old, own, work, row):
    """Draw a topic with weights (C_kw + beta) factor_k row_k, except that topic `old` has weight `own`."""
    counts, factor, weights, beta = tokens.word_counts[tokens.words[m]], work.factor, work.weights, tokens.beta
    _fetch(tokens, m)
    total = 0.0
    for k in range(len(factor)):
        weights[k] = (counts[k] + beta) * factor[k] * row[k]
        total += weights[k]
    return _choose(tokens.uniforms[m], total, old, own, weights)


@inner
def _draw_plain(tokens, m, old, own, work):
    """`_draw` where every row_k is 1."""
    counts, factor, weights, beta = tokens.word_counts[tokens.words[m]], work.factor, work.weights, tokens.beta
    _fetch(tokens, m)
    total = 0.0
    for k in range(len(factor)):
        weights[k] = (counts[k] + beta) * factor[k]
        total += weights[k]
    return _choose(tokens.uniforms[m], total, old, own, weights)


@inner
def _fetch(tokens, m):
    """Ask for the counts of a token that follows token m."""
    width = tokens.word_counts.shape[1]
    following = tokens.words[min(m + _AHEAD, len(tokens.words) - 1)] * width
    for k in range(0, width, 16):
        prefetch(tokens.word_counts, following + k)


@inner
def _choose(uniform, total, old, own, weights):
    """Draw a topic with weights [padded K] of sum `total`, except that topic `old` has weight `own` and comes first.

    The inverse CDF finds the block of `WIDTH` topics first, then the topic in it.
    """
    rest = total - weights[old]
    weights[old] = 0.0
    if rest < _LOST * total:
        rest = 0.0
        for k in range(len(weights)):
            rest += weights[k]
    level, first = uniform * (own + rest) - own, 0
    if level < 0.0 or rest <= 0.0:
        return old
    while first < len(weights) - WIDTH:
        partial = 0.0
        for k in range(first, first + WIDTH):
            partial += weights[k]
        if level < partial:
            break
        level -= partial
        first += WIDTH
    chosen, partial = first, 0.0
    for k in range(first, first + WIDTH - 1):  # without a branch, which would be hard to predict
        partial += weights[k]
        chosen += 1 if level >= partial else 0
    while chosen > 0 and weights[chosen] <= 0.0:  # rounding went past the last topic with a positive weight
        chosen -= 1
    return chosen


# -- one document ------------------------------------------------------------------------------------------------------


@lean_part
def _visit_plain(tokens, n, work):
    """Visit the tokens of a document without a target."""
    work.tilt[:] = 1.0
    _set_factors(tokens, n, work)
    for m in range(tokens.starts[n], tokens.starts[n + 1]):
        word, old = tokens.words[m], tokens.assignments[m]
        factor, own = _left_out(tokens, n, word, old, work)
        new = _draw_plain(tokens, m, old, own, work)
        if new != old:
            _move_token(tokens, n, m, word, old, new, factor, work)


@inner
def _visit(tokens, n, precision, shift, eta, reach, work):
    """Visit the tokens of a document with pseudo-observations [C] of its scores; `reach` bounds |log E|."""
    length, drift, direct = tokens.starts[n + 1] - tokens.starts[n], 0.0, reach > _FAR
    _set_tilt(tokens, n, precision, shift, eta, length, work)
    for m in range(tokens.starts[n], tokens.starts[n + 1]):
        word, old = tokens.words[m], np.int64(tokens.assignments[m])  # int64, so that `_set_row` is compiled once
        if direct:  # E could overflow: F is computed for each token, without it
            tokens.document_counts[n, old] -= 1
            _set_tilt(tokens, n, precision, shift, eta, length, work)
            tokens.document_counts[n, old] += 1
            _set_factors(tokens, n, work)
        else:
            _require_row(n, old, precision, eta, length, work)
        row = work.ones if direct else work.up[old]
        factor, own = _left_out(tokens, n, word, old, work)
        new = _draw(tokens, m, old, own * row[old], work, row)
        if new == old:
            continue
        _move_token(tokens, n, m, word, old, new, factor, work)
        drift += 2 * reach
        if direct:
            continue
        if drift > _DRIFT:
            _set_tilt(tokens, n, precision, shift, eta, length, work)
            drift = 0.0
        else:
            _require_row(n, new, precision, eta, length, work)
            for k in range(len(work.factor)):
                work.factor[k] *= work.up[old, k] * work.down[new, k]


@lean_part
def _set_tilt(tokens, n, precision, shift, eta, length, work):
    """Compute F [padded K] for the tokens in the counts, relative to its largest entry, and the factors."""
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
    """Compute row j of E and of 1 / E, unless they are those of this document already."""
    if work.known[j] != n:
        _set_row(n, j, precision, eta, length, work)


@lean_part
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


@lean_part
def _visit_maximum(tokens, n, own, strength, margin, eta, work):
    """Visit the tokens of a document of class `own`; row y of `up` is exp(-2c (eta_yk - eta_own k) / M)."""
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
        top, before = 0, -np.inf
        for c in range(len(eta)):
            before = max(before, scores[c])
            scores[c] -= eta[c, old]
            if scores[c] > scores[top]:
                top = c
        if work.known[top] != n:
            _set_linear(n, top, own, slope, eta, tokens.document_counts.shape[1], work)
        factor, own_weight = _left_out(tokens, n, word, old, work)
        new = _draw(tokens, m, old, own_weight * work.up[top, old], work, work.up[top])
        if new != old:
            after = -np.inf
            for c in range(len(eta)):
                after = max(after, scores[c] + eta[c, new])
            # the change of the maximum, minus the change of the linear term used by the proposal
            excess = slope * (after - eta[top, new] - before + eta[top, old])
            if excess > 0.0 and tokens.acceptance[m] >= math.exp(-excess):
                new = old
        for c in range(len(eta)):
            scores[c] += eta[c, new]
        if new != old:
            _move_token(tokens, n, m, word, old, new, factor, work)


@lean_part
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
