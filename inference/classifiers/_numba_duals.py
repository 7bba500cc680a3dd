"""Dual coordinate ascent compiled: points take turns, each at its optimum given the others; then, where a conjugate is
curved, Newton steps."""

import numpy as np

from ..compiled._numba_functions import add, copy, dot, solve, threshold
from ..compiled.decorators import entry, inner, part


@entry
def climb_boxes(features, squares, box, ends, tilt, weights, passes, tolerance, max_passes):
    """As `climb`, of K blocks of points between ends [K + 1], with weights [K, C, P] and passes [K] of their own."""
    linear, lower, upper, curvature, tube, variance = box
    for k in range(len(passes)):
        start, stop = ends[k], ends[k + 1]
        own = linear[start:stop], lower[start:stop], upper[start:stop], curvature[start:stop], tube, variance
        arrays = features[start:stop], squares[start:stop], own, tilt[start:stop], weights[k]
        passes[k] = climb(*arrays, tolerance, max_passes)


@part
def climb(features, squares, box, tilt, weights, tolerance, max_passes):
    """Set tilt [N, C] to optima, column by column, with weights [C, P] in step; the most passes that one took.

    A column ends with a gap of at most `tolerance` of its primal. A pass is over the points that still add to the gap,
    in random order, or a Newton step: these take over after as many passes as cost about as much. squares [N] is nu^2
    |a_n|^2; box (linear, lower, upper [N, C], curvature [N], tube, nu^2) is the conjugate.
    """
    most, order, gaps = 0, np.empty(len(features), np.int64), np.empty(len(features))
    least = max(_LEAST_PATIENCE, weights.shape[1]) if len(features) and box[3][0] > 0.0 else max_passes
    for c in range(len(weights)):
        seed, num_checks, num_passes, patience = np.uint64(c + 1), 0, 0, least
        while True:
            number = _left(features, box, c, tilt, weights[c], tolerance, order, gaps)
            if number == 0 or num_passes >= max_passes:
                break
            if num_passes >= patience:
                num_passes += _newton(features, box, c, tilt, weights[c], max_passes - num_passes)
                patience = max_passes
                continue
            num_checks += 1
            for _ in range(min(num_checks, _MOST_UNCHECKED, max_passes - num_passes)):
                seed = _shuffle(order, number, seed)
                _visit(features, squares, box, c, order[:number], tilt, weights[c])
                num_passes += 1
        most = max(most, num_passes)
    return most


@inner
def _best(slope, n, c, box, square):
    """The best tilt of a point, from its slope at 0 and nu^2 |a_n|^2. With 0 in place of the latter, the tilt that
    attains its cost."""
    _, lower, upper, curvature, tube, _ = box
    excess, room = max(abs(slope) - tube, 0.0), square + curvature[n]
    if excess == 0.0:
        return 0.0
    if room == 0.0:
        return upper[n, c] if slope > 0.0 else lower[n, c]
    return min(max((excess if slope > 0.0 else -excess) / room, lower[n, c]), upper[n, c])


@inner
def _cost(slope, t, n, box):
    """What a tilt gains: t slope, less the conjugate without its linear term."""
    return t * slope - box[4] * abs(t) - box[3][n] / 2.0 * t * t


@inner
def _left(features, box, c, tilt, own, tolerance, order, gaps):
    """How many points of column c still add to its gap, first in `order`; 0 where it is small enough. gaps [N] is room.

    Not those that add next to nothing: rounding would decide which of them a pass visits, and so where it ends.
    """
    total, primal, number = 0.0, 0.0, 0
    for n in range(len(features)):
        score, t = dot(features[n], own), tilt[n, c]
        slope = box[0][n, c] - score
        cost = _cost(slope, _best(slope, n, c, box, 0.0), n, box)
        gaps[n] = cost - _cost(slope, t, n, box)
        primal += cost + t * score / 2.0
        total += max(gaps[n], 0.0)
    enough = tolerance * primal
    if total <= enough:
        return 0
    for n in range(len(features)):
        if gaps[n] > _LITTLE * enough / len(features):
            order[number] = n
            number += 1
    return number


@inner
def _shuffle(order, number, seed):
    """Put the first ones of `order` into a random order; the next seed."""
    for last in range(number - 1, 0, -1):
        seed ^= seed << np.uint64(13)
        seed ^= seed >> np.uint64(7)
        seed ^= seed << np.uint64(17)
        other = int(seed % np.uint64(last + 1))
        order[last], order[other] = order[other], order[last]
    return seed


@inner
def _visit(features, squares, box, c, rows, tilt, own):
    """Set tilt[n, c] of some rows to their optimum, one after another."""
    for n in rows:
        point = features[n]
        slope = box[0][n, c] + squares[n] * tilt[n, c] - dot(point, own)
        found = _best(slope, n, c, box, squares[n])
        add(box[5] * (found - tilt[n, c]), point, own)
        tilt[n, c] = found


@part
def _newton(features, box, c, tilt, own, most):
    """At most so many Newton steps of weights [P] to the optimum of column c, then its tilts; how many it took.

    The slope of the cost of a point is minus the tilt that attains it, which between its bounds is a line in the score:
    a step leads to the optimum of the lines and the bounds that points are at, or to the least cost on the way.
    """
    (num_points, num_features), variance, num_steps = features.shape, box[5], 0
    scores, reach, room = np.empty(num_points), np.empty(num_points), np.empty((num_features, num_features))
    way = np.empty(num_features)
    for n in range(num_points):
        scores[n] = dot(features[n], own)
    while num_steps < most:
        num_steps += 1
        room[:], way[:] = 0.0, 0.0
        for n in range(num_points):
            t = _best(box[0][n, c] - scores[n], n, c, box, 0.0)
            if box[1][n, c] < t < box[2][n, c] and t != 0.0:
                t += scores[n] / box[3][n]
                for p in range(num_features):
                    add(features[n, p] / box[3][n], features[n, : p + 1], room[p, : p + 1])
            add(t, features[n], way)
        for p in range(num_features):
            room[p, p] += 1.0 / variance
        solve(room, way)
        add(-1.0, own, way)
        for n in range(num_points):
            reach[n] = dot(features[n], way)
        ridge, square = dot(own, way) / variance, dot(way, way) / variance
        fall = _rise(box, c, scores, reach, 0.0) + ridge
        size = _length(box, c, scores, reach, ridge, square, _LEVEL * abs(fall))
        add(size, way, own)
        add(size, reach, scores)
        if -fall <= _SETTLED * dot(own, own) / variance:
            break
    own[:] = 0.0
    for n in range(num_points):
        tilt[n, c] = _best(box[0][n, c] - scores[n], n, c, box, 0.0)
        add(variance * tilt[n, c], features[n], own)
    return num_steps


@inner
def _length(box, c, scores, reach, ridge, square, level):
    """How far along the way the cost is least, 1 if it rises by no more than `level` there, or else by bisection."""
    low, high, size = 0.0, 1.0, 1.0
    if _rise(box, c, scores, reach, 1.0) + ridge + square <= level:
        return size
    for _ in range(_NUM_HALVINGS):
        size = (low + high) / 2.0
        if _rise(box, c, scores, reach, size) + ridge + size * square > 0.0:
            high = size
        else:
            low = size
    return size


@part
def _rise(box, c, scores, reach, size):
    """How fast the costs of points rise a step further along the way, so much of which is `reach` [N] in the scores."""
    total = 0.0
    for n in range(len(scores)):
        total -= reach[n] * _best(box[0][n, c] - scores[n] - size * reach[n], n, c, box, 0.0)
    return total


@entry
def improve_boxes(features, squares, box, weights, tolerance, max_passes):
    """Weights [C, P] nearer to their optima, and what each costs [C], ridge included: no more than those given.

    Tilts start where the scores put them: at a bound, or between bounds for points near a kink.
    """
    found, tilt = np.zeros_like(weights), np.empty((len(features), len(weights)))
    before, cost = np.empty(len(weights)), np.empty(len(weights))
    for c in range(len(weights)):
        before[c] = dot(weights[c], weights[c]) / (2.0 * box[5])
        for n in range(len(features)):
            slope = box[0][n, c] - dot(features[n], weights[c])
            before[c] += _cost(slope, _best(slope, n, c, box, 0.0), n, box)
            tilt[n, c] = _best(slope, n, c, box, _RISE * squares[n])
            add(box[5] * tilt[n, c], features[n], found[c])
    climb(features, squares, box, tilt, found, tolerance, max_passes)
    for c in range(len(weights)):
        cost[c] = dot(found[c], found[c]) / (2.0 * box[5])
        for n in range(len(features)):
            slope = box[0][n, c] - dot(features[n], found[c])
            cost[c] += _cost(slope, _best(slope, n, c, box, 0.0), n, box)
        if before[c] < cost[c]:
            cost[c] = before[c]
            copy(weights[c], found[c])
    return found, cost


@entry
def visit_simplices(features, squares, hinge, rows, tilt, weights):
    """The same for the tilts [L] of a row together, hinge (own class [N], mass w_n [N], margin, nu^2).

    The optimum of g*(-t) + t . s + h |t|^2 / 2, s the scores without the row, is t_m = min(0, theta - v_m / h) for
    v = s + margin 1[m != y], m != y, and t_y = min(w, theta - v_y / h), with theta such that they sum to 0.
    """
    classes, mass, margin, variance = hinge
    num_classes = len(weights)
    values, before = np.empty(num_classes), np.empty(num_classes)
    for n in rows:
        point, own = features[n], classes[n]
        square = max(squares[n], 1e-6 * margin / mass[n])  # a shorter step than the best, where digits would be lost
        for m in range(num_classes):
            before[m] = tilt[n, m]
            values[m] = (dot(point, weights[m]) + (0.0 if m == own else margin)) / square - before[m]
        values[own] += mass[n]
        least = threshold(values, mass[n])
        tilt[n, own] = 0.0
        for m in range(num_classes):
            if m != own:
                tilt[n, m] = min(least - values[m], 0.0)
                tilt[n, own] -= tilt[n, m]
        excess = mass[n] / max(tilt[n, own], mass[n])  # 1, but for rounding
        for m in range(num_classes):
            tilt[n, m] *= excess
            add(variance * (tilt[n, m] - before[m]), point, weights[m])


_MOST_UNCHECKED = 5  # passes in turns, fewer at first
_LEAST_PATIENCE = 10  # passes before Newton steps
_LEVEL, _SETTLED = 1e-9, 1e-12  # of a slope, and of the ridge: no more than rounding
_NUM_HALVINGS = 30
_LITTLE = 1e-3  # of a point's share in the gap that is left at the end
_RISE = 0.01  # of the squares: how far from its kink a point has a tilt between the bounds
