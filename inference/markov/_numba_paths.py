"""Compiled forward-backward recursions with scaled probabilities: one loop over the steps of each sequence.

If transitions are forbidden or nearly so, a state whose probability underflows may be the only possible one later.
Filtered probabilities below e^-500 are therefore stored as their logarithms, which are negative, and a state with an
inflow below e^-450 is computed in logs from all states before it. All other neglected terms are below e^-50 of what
they would be added to.
"""

import math

import numpy as np

from ...models.compiled.scalars import exp, multiply_row
from ..compiled.decorators import entry, inner, lean_entry, lean_part, part

BLOCK = 64  # rows whose emissions are weighed together
LEAST_STEP = -200.0  # log weight; the product of its exponential, _KEPT and _SCALED is still a normal number
_LOG_KEPT, _SCALED = -500.0, 1e-3
_KEPT, _CERTAIN = math.exp(_LOG_KEPT), math.exp(-450.0)


@lean_entry
def forward(log_steps, steps, emission, bounds, log_slices, rough, filtered, predicted, log_weights, room):
    """Set filtered [N, K] to p(z_t | up to t), or its log if that is negative, and log_weights [B].

    log_steps [K + 1, K] are transitions and, in the last row, starts; `rough` says that some are below LEAST_STEP.
    steps [Q + 1, Q] are their exponentials, with rows and columns of 0, so that Q is a multiple of 8: vector
    instructions then take whole rows. With slices [N], a transition is allowed if its log weight is above the slice,
    and then has weight 1. Unless empty, predicted [N, K] is set to p(z_t | before t), 0 if computed in logs. `filtered`
    may share the memory of `emission`. room has buffers [Q], [Q], [K], [BLOCK K], [BLOCK K + 8], [BLOCK] of zeros.

    `scale` times source [Q] is p(z_t | up to t): dividing by the total after the next product saves waiting for it.
    """
    K = emission.shape[1]
    message, source, log_message, gaps, weights, tops = room
    for b in range(len(bounds) - 1):
        log_weight, product, hidden, scale = 0.0, 1.0, False, 1.0
        for t in range(bounds[b], bounds[b + 1]):
            first, row = t == bounds[b], t % BLOCK
            if row == 0:
                _weigh(emission, t, gaps, weights, tops)
            log_weight += tops[row]
            _flow(log_steps, steps, filtered, t, first, log_slices, source, message)
            scale = 1.0 if first or len(log_slices) > 0 else scale
            total, doubtful = 0.0, 0.0
            for k in range(len(message)):  # from K on, weights of the next row meet messages of 0
                message[k] *= scale
                source[k] = weights[row * K + k] * message[k]
                total += source[k]
            scale = 1.0 / total
            for k in range(K):
                filtered[t, k] = source[k] * scale
                small = filtered[t, k] < _KEPT or message[k] < _CERTAIN
                doubtful += 1.0 if small and (message[k] > 0.0 or hidden or rough) else 0.0
            if doubtful == 0.0 and total > 1e-100:
                product *= total
                if not 1e-150 < product < 1e150:
                    log_weight += math.log(product)
                    product = 1.0
                hidden = False
            else:
                unsure = hidden or rough
                _fill_logs(log_steps, filtered, t, first, log_slices, unsure, message, log_message)
                log_weight += _normalize_logs(log_message, gaps, row, t, filtered)
                hidden = _has_logs(filtered, t)
            if doubtful > 0.0 or not total > _SCALED:
                scale = 1.0
                for k in range(K):
                    source[k] = max(filtered[t, k], 0.0)
            for k in range(predicted.shape[1]):
                predicted[t, k] = message[k]
        log_weights[b] = log_weight + math.log(product)


@inner
def _top(emission, t):
    """The largest log emission of a step; 0 if all are -inf."""
    top = -np.inf
    for k in range(emission.shape[1]):
        top = max(top, emission[t, k])
    return top if top > -np.inf else 0.0


@inner
def _weigh(emission, first, gaps, weights, tops):
    """For the block of rows from `first` on, set tops to the largest log emissions, gaps to log emissions relative to
    them, and weights to the exponentials of the gaps."""
    K, num_rows = emission.shape[1], min(BLOCK, len(emission) - first)
    for row in range(num_rows):
        tops[row] = _top(emission, first + row)
        for k in range(K):
            gaps[row * K + k] = emission[first + row, k] - tops[row]
    for i in range(num_rows * K):  # a loop of its own over many numbers, for vector instructions
        weight = exp(max(gaps[i], -700.0))
        weights[i] = weight if gaps[i] > -700.0 else 0.0


@inner
def _flow(log_steps, steps, filtered, t, first, log_slices, source, message):
    """Set message [Q] to p(z_t | before t), up to a factor."""
    if first:
        _start(log_steps, steps, t, log_slices, message)
    elif len(log_slices) > 0:
        _flow_allowed(log_steps, filtered, t, log_slices[t], message)
    else:
        multiply_row(source, steps, message)


@inner
def _start(log_steps, steps, t, log_slices, message):
    """Set message [Q] to the start probabilities."""
    K = len(log_steps) - 1
    for k in range(K):
        message[k] = steps[K, k]
        if len(log_slices) > 0:
            message[k] = 1.0 if log_steps[K, k] > log_slices[t] else 0.0


@inner
def _flow_allowed(log_steps, filtered, t, log_slice, message):
    """Set message to p(z_t | before t), up to a factor, where transitions above the slice have weight 1."""
    K = filtered.shape[1]
    for k in range(K):
        message[k] = 0.0
    for j in range(K):
        weight = filtered[t - 1, j]
        if weight > 0.0:
            for k in range(K):
                message[k] += weight if log_steps[j, k] > log_slice else 0.0


@part
def _log(filtered):
    """The log of a stored probability."""
    if filtered > 0.0:
        return math.log(filtered)
    return filtered if filtered < 0.0 else -np.inf


@inner
def _fill_logs(log_steps, filtered, t, first, log_slices, unsure, message, log_message):
    """Set log_message [K] to log p(z_t | before t), and message to 0 where it is computed in logs."""
    for k in range(len(log_message)):
        log_message[k] = -np.inf
        if message[k] >= _CERTAIN:
            log_message[k] = math.log(message[k])
        elif message[k] > 0.0 or unsure:
            message[k] = 0.0
            log_message[k] = _log_inflow(log_steps, filtered, t, k, first, log_slices)


@inner
def _has_logs(filtered, t):
    found = False
    for k in range(filtered.shape[1]):
        found = found or filtered[t, k] < 0.0
    return found


@lean_part
def _log_inflow(log_steps, filtered, t, k, first, log_slices):
    """log p(z_t = k | before t), computed in logs."""
    K, sliced = len(log_steps) - 1, len(log_slices) > 0
    top, total = -np.inf, 0.0
    for j in range(K, K + 1) if first else range(K):
        step = log_steps[j, k]
        if sliced:
            step = 0.0 if step > log_slices[t] else -np.inf
        value = step if first or step == -np.inf else step + _log(filtered[t - 1, j])
        if value > top:
            total = total * math.exp(top - value) + 1.0
            top = value
        elif value > top - 40.0:  # rounding loses smaller ones
            total += math.exp(value - top)
    return top + math.log(total) if total > 0.0 else -np.inf


@inner
def _normalize_logs(log_message, gaps, row, t, filtered):
    """Set row t of filtered, row `row` of its block, from its inflow, all in logs; return the log of its total."""
    K, top, total = len(log_message), -np.inf, 0.0
    for k in range(K):
        if log_message[k] > -np.inf:  # a state that cannot be reached stays at -inf, whatever its emission
            log_message[k] += gaps[row * K + k]
        top = max(top, log_message[k])
    for k in range(K):
        total += math.exp(log_message[k] - top)
    top += math.log(total)
    for k in range(K):
        value = log_message[k] - top
        filtered[t, k] = value if value < _LOG_KEPT else math.exp(value)
        if value == -np.inf:
            filtered[t, k] = 0.0
    return top


@lean_entry
def backward_sample(log_columns, columns, filtered, bounds, log_slices, uniforms, states, weights):
    """Draw states [N] given filtered probabilities, last step first, by inverse CDF; `columns` are transposed.

    weights [K] is a buffer.
    """
    K, sliced = len(columns), len(log_slices) > 0
    for b in range(len(bounds) - 1):
        for t in range(bounds[b + 1] - 1, bounds[b] - 1, -1):
            last, following, total = t == bounds[b + 1] - 1, 0, 0.0
            if not last:
                following = states[t + 1]
            for j in range(K):
                weights[j] = max(filtered[t, j], 0.0)
                if not last:
                    step = columns[following, j]
                    if sliced:
                        step = 1.0 if log_columns[following, j] > log_slices[t + 1] else 0.0
                    weights[j] *= step
                total += weights[j]
            if total < _CERTAIN:
                top, total = -np.inf, 0.0
                for j in range(K):
                    step = log_columns[following, j]
                    if sliced:
                        step = 0.0 if step > log_slices[t + 1] else -np.inf
                    weights[j] = _log(filtered[t, j]) + step
                    top = max(top, weights[j])
                for j in range(K):
                    weights[j] = math.exp(weights[j] - top)
                    total += weights[j]
            level, chosen = uniforms[t] * total, 0
            for j in range(K):
                if weights[j] > 0.0:
                    chosen = j
                    level -= weights[j]
                    if level < 0.0:
                        break
            states[t] = chosen


@lean_entry
def smooth(log_columns, columns, filtered, bounds, marginals, products, moves, room):
    """Replace marginals [N, K], p(z_t | before t) on entry, by p(z_t | all):

        p(j at t, k at t + 1 | all) = p(j | up to t) transition_jk p(k at t + 1 | all) / p(k at t + 1 | up to t)

    columns [Q, Q] are transposed transitions, with rows and columns of 0 as in `forward`. products [K, Q] times the
    transition matrix are expected transition counts; those computed in logs are added to moves. room has buffers [Q],
    [Q], [K], [K] of zeros.
    """
    K = filtered.shape[1]
    ratio, flow, inner, later = room
    for b in range(len(bounds) - 1):
        last = bounds[b + 1] - 1
        for t in range(last, bounds[b] - 1, -1):
            total = 0.0
            if t < last:
                multiply_row(ratio, columns, flow)
                for j in range(K):
                    inner[j] = max(filtered[t, j], 0.0) * flow[j]
                    if filtered[t, j] > 0.0:
                        for k in range(len(ratio)):
                            products[j, k] += filtered[t, j] * ratio[k]
                for k in range(K):
                    if later[k] > 0.0 and ratio[k] == 0.0:
                        _add_moves(log_columns, filtered, t, k, later[k], inner, moves)
            else:
                for j in range(K):
                    inner[j] = max(filtered[t, j], 0.0)
            for j in range(K):
                total += inner[j]
            for j in range(K):
                later[j] = inner[j] / total
                ratio[j] = later[j] / marginals[t, j] if marginals[t, j] > 0.0 else 0.0
                marginals[t, j] = later[j]


@lean_part
def _add_moves(log_columns, filtered, t, k, probability, inner, moves):
    """Add the expected transitions from step t into state k, computed in logs."""
    top, total = -np.inf, 0.0
    for j in range(len(inner)):
        top = max(top, _log(filtered[t, j]) + log_columns[k, j])
    for j in range(len(inner)):
        total += math.exp(_log(filtered[t, j]) + log_columns[k, j] - top)
    for j in range(len(inner)):
        weight = probability * math.exp(_log(filtered[t, j]) + log_columns[k, j] - top) / total
        inner[j] += weight
        moves[j, k] += weight


@entry
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
