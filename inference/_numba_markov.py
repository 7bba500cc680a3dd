"""Forward-backward recursions compiled: scaled probabilities, one loop over the steps of each sequence.

What underflows may be all that is left later, where steps are forbidden or nearly so. Filtered probabilities below
_KEPT therefore become 0, but an upper bound of their logs goes on (`_careful_row`); so does that of a state into which
no more than _CERTAIN flows. As long as every bound stays below _KEPT, what is left out is below e^-50 of what is kept,
wherever the two meet. Otherwise the sequence has log weight -inf on return; `markov` then takes it in logs.
"""

import math

import numpy as np
from numba import njit

__all__ = ["LEAST_STEP", "backward_sample", "forward", "smooth", "viterbi"]

# -inf keeps its meaning; a division does not look for zero
_OPTIONS = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy"}
LEAST_STEP = -200.0  # log weight; with _KEPT still a normal number
_LOG_KEPT = -500.0
_KEPT, _CERTAIN = math.exp(_LOG_KEPT), math.exp(-450.0)


@njit(cache=True, **_OPTIONS)
def forward(log_steps, steps, emission, tops, bounds, log_slices, rough, filtered, predicted, log_weights):
    """Fills filtered [N, K] = p(z_t | up to t) and log_weights [B]; predicted [N, K] = p(z_t | before t) unless empty.

    steps [K + 1, K] are transitions and, last, starts; rough says that some are below LEAST_STEP. On entry, filtered is
    exp(emission - tops) with tops [N] the largest of each row. With slices [N] a step is allowed where its log weight
    is larger, and then weighs 1.
    """
    K, sliced = emission.shape[1], len(log_slices) > 0
    message, hidden, before = np.empty(K), np.empty(K), np.empty(K + 1)
    for b in range(len(bounds) - 1):
        log_weight, lost = 0.0, False
        for t in range(bounds[b], bounds[b + 1]):
            for k in range(K):
                message[k] = 0.0
            first = t == bounds[b]
            for j in range(K, K + 1) if first else range(K):
                weight = 1.0 if first else filtered[t - 1, j]
                if weight > 0.0:
                    if sliced:
                        for k in range(K):
                            message[k] += weight if log_steps[j, k] > log_slices[t] else 0.0
                    else:
                        for k in range(K):
                            message[k] += weight * steps[j, k]
            total = 0.0
            for k in range(K):
                filtered[t, k] *= message[k]
                total += filtered[t, k]
            doubtful = 0.0
            for k in range(K):
                filtered[t, k] /= total
                small = filtered[t, k] < _KEPT or message[k] < _CERTAIN
                doubtful += 1.0 if small and (message[k] > 0.0 or lost or rough) else 0.0
            log_total = math.log(total) + tops[t]
            if doubtful > 0.0 or not total > 1e-100:
                for j in range(K + 1):
                    before[j] = -np.inf
                    if first:
                        before[j] = 0.0 if j == K else -np.inf
                    elif j < K and filtered[t - 1, j] > 0.0:
                        before[j] = math.log(filtered[t - 1, j])
                    elif j < K and lost:
                        before[j] = hidden[j]
                log_total = _careful_row(log_steps, before, emission, t, log_slices, message, filtered, hidden)
                if log_total == -np.inf:
                    log_weight = -np.inf
                    break
                lost = False
                for k in range(K):
                    lost = lost or hidden[k] > -np.inf
            log_weight += log_total
            if len(predicted) > 0:
                for k in range(K):
                    predicted[t, k] = message[k]
        log_weights[b] = log_weight


@njit(cache=True, **_OPTIONS)
def _careful_row(log_steps, before, emission, t, log_slices, message, filtered, hidden):
    """One row of `forward` relative to the states that are reached; returns the log of its total, -inf if in doubt.

    before [K + 1] are logs of the row before, or their bounds; hidden [K] become the bounds of what is left out.
    """
    K, sliced = len(message), len(log_slices) > 0
    top = -np.inf
    for k in range(K):
        hidden[k] = -np.inf
        if message[k] < _CERTAIN:
            message[k] = 0.0
            own, others = -np.inf, -np.inf
            for j in range(K + 1):
                step = log_steps[j, k]
                if sliced:
                    step = 0.0 if step > log_slices[t] else -np.inf
                if j == k:  # apart, so that a state that only stays is bounded by its own weight, however long
                    own = before[j] + step
                else:
                    others = max(others, before[j] + step)
            others += math.log(K)
            larger = max(own, others)
            if larger > -np.inf:
                hidden[k] = larger + math.log1p(math.exp(min(own, others) - larger))
        elif emission[t, k] > top:
            top = emission[t, k]
    total = 0.0
    for k in range(K):
        # a state that cannot be reached must not overflow
        filtered[t, k] = message[k] * math.exp(emission[t, k] - top) if message[k] > 0.0 else 0.0
        total += filtered[t, k]
    if not total > 0.0:
        return -np.inf
    log_total = math.log(total)
    for k in range(K):
        filtered[t, k] /= total
        if message[k] > 0.0 and filtered[t, k] < _KEPT:
            filtered[t, k] = 0.0
            hidden[k] = math.log(message[k]) + emission[t, k] - top - log_total
        elif message[k] == 0.0:
            hidden[k] += emission[t, k] - top - log_total
            if hidden[k] > _LOG_KEPT:
                return -np.inf
    return log_total + top


@njit(cache=True, **_OPTIONS)
def backward_sample(columns, filtered, bounds, log_slices, uniforms, failed, states):
    """States [N] given filtered probabilities, last step first, by inverse CDF; passes over sequences that failed.

    columns [K, K] is the transposed transition matrix, in logs if there are slices.
    """
    K, sliced = len(columns), len(log_slices) > 0
    weights = np.empty(K)
    for b in range(len(bounds) - 1):
        if failed[b]:
            continue
        for t in range(bounds[b + 1] - 1, bounds[b] - 1, -1):
            total = 0.0
            for j in range(K):
                weights[j] = filtered[t, j]
                if t + 1 < bounds[b + 1]:
                    step = columns[states[t + 1], j]
                    if sliced:
                        step = 1.0 if step > log_slices[t + 1] else 0.0
                    weights[j] *= step
                total += weights[j]
            level, chosen = uniforms[t] * total, 0
            for j in range(K):
                if weights[j] > 0.0:
                    chosen = j
                    level -= weights[j]
                    if level < 0.0:
                        break
            states[t] = chosen


@njit(cache=True, **_OPTIONS)
def smooth(transition, filtered, bounds, failed, marginals, products):
    """Turns marginals [N, K], p(z_t | before t) on entry, into p(z_t | all); passes over sequences that failed.

    p(j at t | all) = p(j | up to t) sum_k transition_jk p(k at t + 1 | all) / p(k at t + 1 | up to t)

    Adds to products [K, K] what, times the transition matrix, are expected counts.
    """
    K = len(transition)
    ratio, inner = np.empty(K), np.empty(K)
    for b in range(len(bounds) - 1):
        if failed[b]:
            continue
        last = bounds[b + 1] - 1
        for t in range(last, bounds[b] - 1, -1):
            total = 0.0
            for j in range(K):
                inner[j] = 1.0
                if t < last:
                    value = 0.0
                    for k in range(K):
                        value += transition[j, k] * ratio[k]
                    inner[j] = value
                inner[j] *= filtered[t, j]
                total += inner[j]
            if t < last:
                for j in range(K):
                    weight = filtered[t, j] / total
                    if weight > 0.0:
                        for k in range(K):
                            products[j, k] += weight * ratio[k]
            for j in range(K):
                ratio[j] = inner[j] / (total * marginals[t, j]) if inner[j] > 0.0 else 0.0
                marginals[t, j] = inner[j] / total


@njit(cache=True, **_OPTIONS)
def viterbi(log_start, log_columns, emission, bounds, paths, scores):
    """Best paths [N] and their log weights [B]; log_columns [K, K] is the transposed log transition matrix."""
    K = len(log_start)
    best, previous = np.empty(K), np.empty(K)
    longest = 0
    for b in range(len(bounds) - 1):
        longest = max(longest, bounds[b + 1] - bounds[b])
    origin = np.empty((longest, K), np.int32)
    for b in range(len(bounds) - 1):
        first, last = bounds[b], bounds[b + 1] - 1
        for k in range(K):
            best[k] = log_start[k] + emission[first, k]
        for t in range(first + 1, last + 1):
            for k in range(K):
                previous[k] = best[k]
            for k in range(K):
                top, chosen = -np.inf, 0
                for j in range(K):
                    value = previous[j] + log_columns[k, j]
                    if value > top:
                        top, chosen = value, j
                best[k] = top + emission[t, k]
                origin[t - first, k] = chosen
        state = 0
        for k in range(1, K):
            if best[k] > best[state]:
                state = k
        scores[b] = best[state]
        for t in range(last, first - 1, -1):
            paths[t] = state
            if t > first:
                state = origin[t - first, state]
