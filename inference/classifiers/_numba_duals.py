"""Dual coordinate ascent compiled: points take turns, each at its optimum given the others."""

import numpy as np

from ..compiled._numba_functions import threshold
from ..compiled.decorators import entry, inner


@entry
def visit_boxes(features, squares, box, rows, columns, tilt, weights):
    """Set tilt[n, c] of the pairs (rows, columns) to their optimum, one after another, with weights [C, P] in step.

    squares [N] is nu^2 |a_n|^2; box (linear, lower, upper [N, C], curvature [N], tube, nu^2) is the conjugate.
    """
    linear, lower, upper, curvature, tube, variance = box
    for index in range(len(rows)):
        n, c = rows[index], columns[index]
        point, own = features[n], weights[c]
        slope = linear[n, c] + squares[n] * tilt[n, c] - _dot(point, own)
        excess = max(abs(slope) - tube, 0.0)
        found = (excess if slope > 0.0 else -excess) / max(squares[n] + curvature[n], 1e-300)
        found = min(max(found, lower[n, c]), upper[n, c])
        _add(variance * (found - tilt[n, c]), point, own)
        tilt[n, c] = found


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
            values[m] = (_dot(point, weights[m]) + (0.0 if m == own else margin)) / square - before[m]
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
            _add(variance * (tilt[n, m] - before[m]), point, weights[m])


@inner
def _dot(left, right):
    total = 0.0
    for p in range(len(left)):
        total += left[p] * right[p]
    return total


@inner
def _add(step, point, weights):
    if step != 0.0:
        for p in range(len(point)):
            weights[p] += step * point[p]
