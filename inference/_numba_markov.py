"""Forward-backward recursions compiled: scaled probabilities, one loop over the steps of each sequence.

A message is divided by its sum in every step, and emissions by the largest of a state that can be reached. A sequence
whose weights vanish all the same has log weight -inf on return; `markov` then takes it in logs.
"""

import numpy as np
from numba import njit

__all__ = ["backward_sample", "forward", "smooth", "viterbi"]

# -inf keeps its meaning; a division does not look for zero
_OPTIONS = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy"}


@njit(cache=True, **_OPTIONS)
def forward(start, transition, emission, bounds, slices, filtered, log_weights):
    """filtered [N, K] = p(z_t | up to t) and log_weights [B].

    With slices [N] a step is allowed where its weight is larger, and then weighs 1.
    """
    K = len(start)
    message, sliced = np.empty(K), len(slices) > 0
    for b in range(len(bounds) - 1):
        log_weight = 0.0
        for t in range(bounds[b], bounds[b + 1]):
            if t == bounds[b]:
                for k in range(K):
                    message[k] = start[k]
                    if sliced:
                        message[k] = 1.0 if start[k] > slices[t] else 0.0
            else:
                for k in range(K):
                    message[k] = 0.0
                for j in range(K):
                    weight = filtered[t - 1, j]
                    if weight > 0.0:
                        if sliced:
                            for k in range(K):
                                message[k] += weight if transition[j, k] > slices[t] else 0.0
                        else:
                            for k in range(K):
                                message[k] += weight * transition[j, k]
            top = -np.inf
            for k in range(K):
                if message[k] > 0.0 and emission[t, k] > top:
                    top = emission[t, k]
            total = 0.0
            for k in range(K):
                # a state that cannot be reached must not overflow
                message[k] *= np.exp(min(emission[t, k] - top, 0.0))
                total += message[k]
            if not total > 0.0:
                log_weight = -np.inf
                break
            for k in range(K):
                filtered[t, k] = message[k] / total
            log_weight += np.log(total) + top
        log_weights[b] = log_weight


@njit(cache=True, **_OPTIONS)
def backward_sample(columns, filtered, bounds, slices, uniforms, states, failed):
    """States [N] given filtered probabilities, last step first; columns [K, K] is the transposed transition matrix.

    Sets failed [B] where weights vanish, and passes over sequences that failed before.
    """
    K, sliced = len(columns), len(slices) > 0
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
                        step = 1.0 if step > slices[t + 1] else 0.0
                    weights[j] *= step
                total += weights[j]
            if not total > 0.0:
                failed[b] = True
                break
            level, chosen = uniforms[t] * total, 0
            for j in range(K):
                if weights[j] > 0.0:
                    chosen = j
                    level -= weights[j]
                    if level < 0.0:
                        break
            states[t] = chosen


@njit(cache=True, **_OPTIONS)
def smooth(transition, emission, filtered, bounds, marginals, products, failed):
    """marginals [N, K]; adds to products [K, K] what, times the transition matrix, are expected counts.

    Passes over sequences that failed before.
    """
    K = len(transition)
    message, behind = np.empty(K), np.empty(K)
    for b in range(len(bounds) - 1):
        if failed[b]:
            continue
        last = bounds[b + 1] - 1
        for k in range(K):
            marginals[last, k] = filtered[last, k]
            message[k] = 1.0
        for t in range(last - 1, bounds[b] - 1, -1):
            top = -np.inf
            for k in range(K):
                if filtered[t + 1, k] > 0.0 and message[k] > 0.0 and emission[t + 1, k] > top:
                    top = emission[t + 1, k]
            for k in range(K):
                behind[k] = 0.0
                if filtered[t + 1, k] > 0.0:
                    behind[k] = np.exp(min(emission[t + 1, k] - top, 0.0)) * message[k]
            total = 0.0
            for j in range(K):
                inner = 0.0
                for k in range(K):
                    inner += transition[j, k] * behind[k]
                message[j] = inner
                marginals[t, j] = filtered[t, j] * inner
                total += marginals[t, j]
            for j in range(K):
                marginals[t, j] /= total
                message[j] /= total
                weight = filtered[t, j] / total
                if weight > 0.0:
                    for k in range(K):
                        products[j, k] += weight * behind[k]


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
