"""Compiled forward-backward recursions with scaled probabilities: one loop over the steps of each sequence.

Where log weights differ by more than the range of a double, a state whose probability underflows may be the only
possible one later. So the filter keeps a bound on the probability that it has neglected: products that underflowed, and
states that are hardly more probable than the bound itself. The bound usually stays near the smallest numbers. If it
rises so far that neglected states may count, the caller filters the sequence again, in logs. Probabilities below e^-500
are then stored as their logarithms, which are negative.
"""

import math

import numpy as np

from ...models.compiled.scalars import exp, multiply_row
from ..compiled.decorators import entry, inner, lean_entry, lean_part, part

BLOCK = 64  # rows whose emissions are weighed together
LEAST_STEP = -250.0  # log weight; if all steps are more probable, all states are sure
TINY = 1e-300  # more than the sum of all products of a step that underflow
_SURE, _NEGLIGIBLE = math.exp(44.0), math.exp(-60.0)
_LOG_KEPT, _LOG_CERTAIN = -500.0, -450.0
_CERTAIN = math.exp(_LOG_CERTAIN)


@lean_entry
def forward(log_steps, steps, emission, bounds, log_slices, filtered, predicted, log_weights, room):
    """Set filtered [N, K] to p(z_t | up to t), and log_weights [B]: NaN of sequences that `forward_in_logs` must do.

    log_steps [K + 1, K] are transitions and, in the last row, starts, at most 0. steps [Q + 1, Q] are their
    exponentials, with rows and columns of 0, so that Q is a multiple of 8: vector instructions then take whole rows.
    With slices [N], a transition is allowed if its log weight is above the slice, and then has weight 1. Unless empty,
    predicted [N, K] is set to p(z_t | before t), or to 0 where that is tiny. `filtered` may share the memory of
    `emission` if all log_steps are above LEAST_STEP. room has buffers [Q], [Q], [BLOCK K], [BLOCK K + 8], [BLOCK], and
    TINY in the first K of [Q].
    """
    for b in range(len(bounds) - 1):
        rows = bounds[b], bounds[b + 1]
        log_weights[b] = _filter(log_steps, steps, emission, rows, log_slices, filtered, predicted, room)


@inner
def _filter(log_steps, steps, emission, rows, log_slices, filtered, predicted, room):
    """The log weight of a sequence, from scaled probabilities; NaN if neglected states may count.

    `scale` times source [Q] is p(z_t | up to t): dividing by the total one step later saves waiting for it. A state is
    sure if its message is e^44 times what the neglected ones can add to it. The others are neglected; `neglected` is
    a bound on their total, with what has underflowed, and `floor` is added so that their own source stays one too.
    """
    message, source, gaps, weights, tops, floor = room
    K = emission.shape[1]
    log_weight, product, scale, neglected = 0.0, 1.0, 1.0, TINY
    for t in range(rows[0], rows[1]):
        row, total = (t - rows[0]) % BLOCK, 0.0
        if row == 0:
            _weigh(emission, t, min(t + BLOCK, rows[1]), gaps, weights, tops)
        _flow(log_steps, steps, t, t == rows[0], log_slices, source, message)
        least, neglected = _SURE * neglected * scale, TINY
        for k in range(len(message)):  # from K on, weights of the next row meet messages of 0
            message[k] = (message[k] + floor[k]) * scale
            source[k] = weights[row * K + k] * message[k]
            total += source[k]
            neglected += source[k] if message[k] < least else 0.0
        scale = 1.0 / total
        if not neglected * scale < _NEGLIGIBLE:
            return np.nan
        for k in range(K):
            filtered[t, k] = source[k] * scale if message[k] >= least else 0.0
        for k in range(predicted.shape[1]):
            predicted[t, k] = message[k] if message[k] >= least else 0.0
        log_weight += tops[row]
        product *= total
        if not 1e-30 < product < 1e30:  # each total is above 1e-274
            log_weight += math.log(product)
            product = 1.0
    return log_weight + math.log(product)


@inner
def _top(emission, t):
    """The largest log emission of a step; 0 if all are -inf."""
    top = -np.inf
    for k in range(emission.shape[1]):
        top = max(top, emission[t, k])
    return top if top > -np.inf else 0.0


@inner
def _weigh(emission, first, end, gaps, weights, tops):
    """For the rows from `first` to `end`, set tops to the largest log emissions, gaps to log emissions relative to
    them, and weights to the exponentials of the gaps."""
    K, num_rows = emission.shape[1], end - first
    for row in range(num_rows):
        tops[row] = _top(emission, first + row)
        for k in range(K):
            gaps[row * K + k] = emission[first + row, k] - tops[row]
    for i in range(num_rows * K):  # a loop of its own over many numbers, for vector instructions
        weight = exp(max(gaps[i], -700.0))
        weights[i] = weight if gaps[i] > -700.0 else (0.0 if gaps[i] <= -700.0 else gaps[i])  # NaN stays


@inner
def _flow(log_steps, steps, t, first, log_slices, source, message):
    """Set message [Q] to p(z_t | before t), up to a factor."""
    if first:
        _start(log_steps, steps, t, log_slices, message)
    elif len(log_slices) > 0:
        _flow_allowed(log_steps, log_slices[t], source, message)
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
def _flow_allowed(log_steps, log_slice, source, message):
    """Set message to p(z_t | before t), up to a factor, where transitions above the slice have weight 1."""
    K = log_steps.shape[1]
    for k in range(K):
        message[k] = 0.0
    for j in range(K):
        if source[j] > 0.0:
            for k in range(K):
                message[k] += source[j] if log_steps[j, k] > log_slice else 0.0


@lean_entry
def forward_in_logs(log_steps, emission, bounds, log_slices, filtered, predicted, log_weights, room):
    """What `forward` sets, of sequences whose log weight is NaN, from logs of the probabilities.

    Most fits never need it: a function of its own is compiled only when it is called. room has buffers [K], [K], [K].
    """
    for b in range(len(bounds) - 1):
        if np.isnan(log_weights[b]):
            rows = bounds[b], bounds[b + 1]
            log_weights[b] = _filter_in_logs(log_steps, emission, rows, log_slices, filtered, predicted, room)


@lean_part
def _filter_in_logs(log_steps, emission, rows, log_slices, filtered, predicted, room):
    """The log weight of a sequence, as `_filter`, from logs of the probabilities."""
    before, inflow, total = room
    K, log_weight = emission.shape[1], 0.0
    for t in range(rows[0], rows[1]):
        if t == rows[0]:
            for k in range(K):
                inflow[k] = _log_step(log_steps, K, k, log_slices, t)
        else:
            _flow_in_logs(log_steps, t, log_slices, before, inflow, total)
        top, weight = -np.inf, 0.0
        for k in range(K):
            before[k] = inflow[k] + emission[t, k] if inflow[k] > -np.inf else -np.inf
            top = max(top, before[k])
        for k in range(K):
            weight += math.exp(before[k] - top)
        top += math.log(weight)
        log_weight += top
        for k in range(K):
            before[k] -= top
            filtered[t, k] = math.exp(before[k]) if before[k] >= _LOG_KEPT else before[k]
            filtered[t, k] = filtered[t, k] if before[k] > -np.inf else 0.0
        for k in range(predicted.shape[1]):
            predicted[t, k] = math.exp(inflow[k]) if inflow[k] >= _LOG_CERTAIN else 0.0
    return log_weight


@inner
def _log_step(log_steps, j, k, log_slices, t):
    """The log weight of a transition into step t."""
    step = log_steps[j, k]
    if len(log_slices) > 0:
        step = 0.0 if step > log_slices[t] else -np.inf
    return step


@lean_part
def _flow_in_logs(log_steps, t, log_slices, before, inflow, total):
    """Set inflow [K] to log p(z_t | before t), from log p(z_{t-1} | before t) in `before`; total [K] is a buffer."""
    K = len(before)
    for k in range(K):
        inflow[k], total[k] = -np.inf, 0.0
    for j in range(K):
        for k in range(K):
            inflow[k] = max(inflow[k], before[j] + _log_step(log_steps, j, k, log_slices, t))
    for j in range(K):
        near = 0.0
        for k in range(K):
            near += 1.0 if before[j] + _log_step(log_steps, j, k, log_slices, t) > inflow[k] - 40.0 else 0.0
        if near > 0.0:  # rounding loses smaller terms
            for k in range(K):
                gap = before[j] + _log_step(log_steps, j, k, log_slices, t) - inflow[k]
                total[k] += exp(max(gap, -40.0)) if gap > -40.0 else 0.0
    for k in range(K):
        inflow[k] += math.log(total[k]) if total[k] > 0.0 else 0.0


@part
def _log(filtered):
    """The log of a stored probability."""
    if filtered > 0.0:
        return math.log(filtered)
    return filtered if filtered < 0.0 else -np.inf


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
