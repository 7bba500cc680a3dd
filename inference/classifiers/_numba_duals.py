"""Compiled coordinate ascent on the duals of `duals`.

The tilts (dual variables) are visited one at a time, each set to its optimum given the others. Where the conjugate of
the loss is curved, Newton steps of the primal follow.
The loops use plain indices throughout, because numba takes far longer to compile slices.
"""

from typing import NamedTuple, Self

import numpy as np

from ..compiled._numba_functions import solve, threshold
from ..compiled.decorators import inner, lean_entry, lean_part


class Room(NamedTuple):
    """The buffers that passes write to; compiled code then allocates no arrays and counts no references to them."""

    order: np.ndarray  # [N]
    gaps: np.ndarray  # [N]
    primal: np.ndarray  # [1], the primal objective of the column visited last

    @classmethod
    def of(cls, features: np.ndarray) -> Self:
        return cls(np.empty(len(features), np.int64), np.empty(len(features)), np.empty(1))


class Newton(NamedTuple):
    """The buffers of Newton steps; None where no conjugate is curved, so that these steps are not compiled."""

    scores: np.ndarray  # [N]
    reach: np.ndarray  # [N]
    matrix: np.ndarray  # [P, P]
    way: np.ndarray  # [1, P]

    @classmethod
    def of(cls, features: np.ndarray) -> Self:
        N, P = features.shape
        return cls(*(np.empty(size) for size in (N, N, (P, P), (1, P))))


@lean_entry
def climb_boxes(features, squares, box, ends, tilt, weights, passes, room, newton, tolerance, max_passes):
    """Run `_climb` for K blocks of rows between `ends` [K + 1], with weights [K C, P] and `passes` [K]."""
    for k in range(len(passes)):
        rows, first = (ends[k], ends[k + 1]), k * tilt.shape[1]
        passes[k] = _climb(features, squares, box, rows, tilt, weights, first, room, newton, tolerance, max_passes)


@lean_part
def _climb(features, squares, box, rows, tilt, weights, first, room, newton, tolerance, max_passes):
    """Move the tilts [N, C] of a range of rows to their optimum, column by column; return the largest number of passes.

    The rows are those from `rows[0]` up to `rows[1]`. The weights of column c are row `first + c` of `weights` [.., P]
    and change with the tilts. A column ends when its duality gap is at most `tolerance` times its primal. A pass
    visits, in random order, the rows that still add to the gap. Newton steps, where there are buffers for them, replace
    passes once the passes have cost about as much; each counts as a pass. squares [N] is nu^2 |a_n|^2; box (linear,
    lower, upper [N, C], curvature [N], tube, nu^2) describes the conjugate.
    """
    most = 0
    for c in range(tilt.shape[1]):
        args = features, squares, box, c, rows, tilt, weights, first, room, newton, tolerance, max_passes
        most = max(most, _climb_column(*args))
    return most


@lean_part
def _climb_column(features, squares, box, c, rows, tilt, weights, first, room, newton, tolerance, max_passes):
    """Run `_climb` for column c; its primal objective is left in `room.primal`."""
    seed, num_checks, num_passes = np.uint64(c + 1), 0, 0
    patience = max(_LEAST_PATIENCE, weights.shape[1])
    while True:
        number = _left(features, box, c, rows, tilt, weights, first + c, tolerance, room)
        if number == 0 or num_passes >= max_passes:
            return num_passes
        if newton is not None and num_passes >= patience:
            limit, patience = max_passes - num_passes, max_passes
            num_passes += _step(features, box, c, rows, tilt, weights, first + c, newton, limit)
            continue
        num_checks += 1
        for _ in range(min(num_checks, _MOST_UNCHECKED, max_passes - num_passes)):
            seed = _shuffle(room.order, number, seed)
            _visit(features, squares, box, c, room.order, number, tilt, weights, first + c)
            num_passes += 1


@inner
def _dot(one, n, other, m):
    """The inner product of row n of one matrix and row m of another."""
    total = 0.0
    for p in range(one.shape[1]):
        total += one[n, p] * other[m, p]
    return total


@inner
def _add(factor, source, n, target, m):
    """Add `factor` times row n of one matrix to row m of another."""
    if factor != 0.0:
        for p in range(source.shape[1]):
            target[m, p] += factor * source[n, p]


@lean_part
def _best(slope, n, c, box, square):
    """The best tilt of a row; `slope` is that of the dual at tilt 0, `square` nu^2 |a_n|^2, or 0 for fixed scores."""
    _, lower, upper, curvature, tube, _ = box
    excess, room = max(abs(slope) - tube, 0.0), square + curvature[n]
    if excess == 0.0:
        return 0.0
    if room == 0.0:
        return upper[n, c] if slope > 0.0 else lower[n, c]
    return min(max((excess if slope > 0.0 else -excess) / room, lower[n, c]), upper[n, c])


@inner
def _cost(slope, t, n, box):
    """What tilt t adds to the dual: t slope, minus the conjugate without its linear term."""
    return t * slope - box[4] * abs(t) - box[3][n] / 2.0 * t * t


@inner
def _left(features, box, c, rows, tilt, weights, w, tolerance, room):
    """Write the rows that still add to the gap of column c to `order`; return their number, 0 where the gap is small.

    Rows that add next to nothing are left out: otherwise rounding would decide which rows a pass visits, and so its
    result.
    """
    total, primal, number, order, gaps = 0.0, 0.0, 0, room.order, room.gaps
    for n in range(rows[0], rows[1]):
        score, t = _dot(features, n, weights, w), tilt[n, c]
        slope = box[0][n, c] - score
        cost = _cost(slope, _best(slope, n, c, box, 0.0), n, box)
        gaps[n] = cost - _cost(slope, t, n, box)
        primal += cost + t * score / 2.0
        total += max(gaps[n], 0.0)
    room.primal[0], enough = primal, tolerance * primal
    if total <= enough:
        return 0
    for n in range(rows[0], rows[1]):
        if gaps[n] > _LITTLE * enough / (rows[1] - rows[0]):
            order[number] = n
            number += 1
    return number


@inner
def _shuffle(order, number, seed):
    """Shuffle the first `number` entries of `order`; return the next seed."""
    for last in range(number - 1, 0, -1):
        seed ^= seed << np.uint64(13)
        seed ^= seed >> np.uint64(7)
        seed ^= seed << np.uint64(17)
        other = int(seed % np.uint64(last + 1))
        order[last], order[other] = order[other], order[last]
    return seed


@inner
def _visit(features, squares, box, c, order, number, tilt, weights, w):
    """Set tilt[n, c] of the first `number` rows in `order` to its optimum, one row after another."""
    for i in range(number):
        n = order[i]
        slope = box[0][n, c] + squares[n] * tilt[n, c] - _dot(features, n, weights, w)
        found = _best(slope, n, c, box, squares[n])
        _add(box[5] * (found - tilt[n, c]), features, n, weights, w)
        tilt[n, c] = found


@lean_part
def _step(features, box, c, rows, tilt, weights, w, newton, most):
    """Take at most `most` Newton steps of the weights of column c, then set its tilts; return the number of steps.

    The derivative of a row's loss is minus its tilt. Between its bounds this tilt is linear in the score. A step solves
    for the optimum of this piecewise linear equation with each row on its present piece; a line search shortens it if
    the cost would rise.
    """
    scores, reach, way, variance, num_steps = newton.scores, newton.reach, newton.way, box[5], 0
    for n in range(rows[0], rows[1]):
        scores[n] = _dot(features, n, weights, w)
    while num_steps < most:
        num_steps += 1
        _lines(features, box, c, rows, scores, newton.matrix, way)
        solve(newton.matrix, way[0])
        _add(-1.0, weights, w, way, 0)
        for n in range(rows[0], rows[1]):
            reach[n] = _dot(features, n, way, 0)
        ridge, square = _dot(weights, w, way, 0) / variance, _dot(way, 0, way, 0) / variance
        fall = _rise(box, c, rows, scores, reach, 0.0) + ridge
        size = _length(box, c, rows, scores, reach, ridge, square, _LEVEL * abs(fall))
        _add(size, way, 0, weights, w)
        for n in range(rows[0], rows[1]):
            scores[n] += size * reach[n]
        if -fall <= _SETTLED * _dot(weights, w, weights, w) / variance:
            break
    for p in range(weights.shape[1]):
        weights[w, p] = 0.0
    for n in range(rows[0], rows[1]):
        tilt[n, c] = _best(box[0][n, c] - scores[n], n, c, box, 0.0)
        _add(variance * tilt[n, c], features, n, weights, w)
    return num_steps


@lean_part
def _lines(features, box, c, rows, scores, matrix, way):
    """The linear system of a Newton step: the lower half of its matrix [P, P], and its right-hand side in way[0]."""
    P = features.shape[1]
    for p in range(P):
        way[0, p] = 0.0
        for q in range(p):
            matrix[p, q] = 0.0
        matrix[p, p] = 1.0 / box[5]
    for n in range(rows[0], rows[1]):
        t = _best(box[0][n, c] - scores[n], n, c, box, 0.0)
        if box[1][n, c] < t < box[2][n, c] and t != 0.0:
            t += scores[n] / box[3][n]
            for p in range(P):
                value = features[n, p] / box[3][n]
                for q in range(p + 1):
                    matrix[p, q] += value * features[n, q]
        _add(t, features, n, way, 0)


@lean_part
def _length(box, c, rows, scores, reach, ridge, square, level):
    """The step length of least cost: 1 if the derivative there is at most `level`, otherwise found by bisection."""
    low, high, size = 0.0, 1.0, 1.0
    if _rise(box, c, rows, scores, reach, 1.0) + ridge + square <= level:
        return size
    for _ in range(_NUM_HALVINGS):
        size = (low + high) / 2.0
        if _rise(box, c, rows, scores, reach, size) + ridge + size * square > 0.0:
            high = size
        else:
            low = size
    return size


@lean_part
def _rise(box, c, rows, scores, reach, size):
    """The derivative of the losses along a Newton step at length `size`; `reach` [N] is the change of the scores."""
    total = 0.0
    for n in range(rows[0], rows[1]):
        total -= reach[n] * _best(box[0][n, c] - scores[n] - size * reach[n], n, c, box, 0.0)
    return total


@lean_entry
def improve_boxes(features, squares, box, weights, found, costs, tilt, stays, room, newton, tolerance, max_passes):
    """Lower the cost of weights [C, P], column by column; write the results to `found` [C, P], 0 before, and `costs`.

    No column of `found` costs more, ridge included, than the given one. The tilts [N, C] change in place. A column with
    `stays` [C] keeps its weights. A tilt that is NaN is initialized from the score: at a bound, or between the bounds
    for rows near a kink of the loss.
    """
    rows = (0, len(features))
    for c in range(len(weights)):
        cost = costs[c]
        if not stays[c]:
            cost = _dot(weights, c, weights, c) / (2.0 * box[5])
            for n in range(len(features)):
                slope = box[0][n, c] - _dot(features, n, weights, c)
                cost += _cost(slope, _best(slope, n, c, box, 0.0), n, box)
                if np.isnan(tilt[n, c]):
                    tilt[n, c] = _best(slope, n, c, box, _RISE * squares[n])
                _add(box[5] * tilt[n, c], features, n, found, c)
            _climb_column(features, squares, box, c, rows, tilt, found, 0, room, newton, tolerance, max_passes)
            costs[c] = room.primal[0]
        if stays[c] or cost < costs[c]:
            costs[c] = cost
            for p in range(weights.shape[1]):
                found[c, p] = weights[c, p]


@lean_entry
def turn(before, labels, tilt, stays):
    """Set the tilts [N, K] of the old and the new component of rows that changed component [N] to NaN (-1: none).

    The columns of these components no longer count as optimal: `stays` [K] becomes False.
    """
    for n in range(len(labels)):
        if before[n] != labels[n]:
            for k in (before[n], labels[n]):
                if k >= 0:
                    tilt[n, k], stays[k] = np.nan, False


@lean_entry
def visit_simplices(features, squares, hinge, rows, tilt, weights, values):
    """Set the tilts [L] of each row to their joint optimum; hinge is (own class [N], mass w_n [N], margin, nu^2).

    The optimum of g*(-t) + t . s + h |t|^2 / 2, where s are the scores without the row, is t_m = min(0, theta - v_m /
    h) with v = s + margin 1[m != y] for m != y, and t_y = min(w, theta - v_y / h). theta is such that the t_m sum to 0.
    values [2, L] is a buffer.
    """
    classes, mass, margin, variance = hinge
    num_classes = len(weights)
    for i in range(len(rows)):
        n = rows[i]
        own = classes[n]
        square = max(squares[n], 1e-6 * margin / mass[n])  # steps that are too long lose digits
        for m in range(num_classes):
            values[1, m] = tilt[n, m]
            rise = 0.0 if m == own else margin
            values[0, m] = (_dot(features, n, weights, m) + rise) / square - values[1, m]
        values[0, own] += mass[n]
        least = threshold(values[0], mass[n])
        tilt[n, own] = 0.0
        for m in range(num_classes):
            if m != own:
                tilt[n, m] = min(least - values[0, m], 0.0)
                tilt[n, own] -= tilt[n, m]
        excess = mass[n] / max(tilt[n, own], mass[n])  # 1 up to rounding
        for m in range(num_classes):
            tilt[n, m] *= excess
            _add(variance * (tilt[n, m] - values[1, m]), features, n, weights, m)


_MOST_UNCHECKED = 5  # passes between two checks of the gap; the first rounds have fewer
_LEAST_PATIENCE = 10  # passes before the first Newton step
_LEVEL, _SETTLED = 1e-9, 1e-12  # relative rounding error of a slope, and of the ridge
_NUM_HALVINGS = 30
_LITTLE = 1e-3  # of the mean share of a row in the largest gap allowed
_RISE = 0.01  # factor on squares: how near a kink a row must be to get a tilt between the bounds
