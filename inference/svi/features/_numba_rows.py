"""A block of features of rows with a margin, compiled: the optimum of -H(p) - o p + g(s + p w), feature after feature.

g is a hinge of all scores together (`visit_joint`), or a sum of hinges of each (`visit_hinges`). Along w it is made of
lines, so that logit p = o + pull, where the pull is minus a slope of g and falls at a few breaks. In most rows the pull
at the old p is also the pull at the new p that it gives, which is then the optimum. In the others the optimum lies
between the two: the breaks are walked over until p lies within a piece, or on a break. Rows are independent: a few at a
time stay in a cache.
"""

import math

import numpy as np

from ...compiled._numba_functions import copy
from ...compiled.decorators import entry, inner

_ROWS = 128


@entry
def visit_joint(logits, coupling, psi, lines, slopes, masses):
    """Set psi [B, N] to their optimum in turn for g = mass max_c line_c; lines [C, N] follow.

    logits [B, N] are by all but g; coupling [B, B] says how much a feature takes from the logits of another, the
    diagonal from its own; slopes [B, C] what it adds to the lines; masses are [1, N].
    """
    num_features, num_scores = slopes.shape
    odds, own = np.empty((num_features, _ROWS), psi.dtype), np.empty((num_scores, _ROWS), psi.dtype)
    found, change, top, rise, top_ahead, rise_ahead = np.zeros((6, _ROWS), psi.dtype)
    for start in range(0, psi.shape[1], _ROWS):
        stop = min(start + _ROWS, psi.shape[1])
        _copy(logits, start, odds, 0, stop - start)
        _copy(lines, start, own, 0, stop - start)
        for j in range(num_features):
            slope, probabilities = slopes[j], psi[j, start:stop]
            change[:] = 0.0
            _highest(change, own, slope, top, rise)
            for i in range(stop - start):
                odds[j, i] += probabilities[i] * coupling[j, j]
                found[i] = _logistic(odds[j, i] - masses[0, start + i] * rise[i])
                change[i] = found[i] - probabilities[i]
            _highest(change, own, slope, top_ahead, rise_ahead)
            for i in range(stop - start):
                if rise[i] != rise_ahead[i]:
                    ends, first = (probabilities[i], found[i]), (top[i], rise[i])
                    found[i] = _walk_lines(ends, odds[j, i], masses[0, start + i], own, slope, i, first)
                    change[i] = found[i] - probabilities[i]
                probabilities[i] = found[i]
            _add(change, slope, own)
            _tell(change, odds, coupling, j)
        _copy(own, 0, lines, start, stop - start)


@entry
def visit_hinges(logits, coupling, psi, rests, slopes, heights):
    """The same for g = sum_c height_c (-rest_c)_+, with rests and heights [C, N]."""
    num_features, num_scores = slopes.shape
    odds = np.empty((num_features, _ROWS), psi.dtype)
    own, height = np.zeros((2, num_scores, _ROWS), psi.dtype)
    found, change, pull, pull_ahead = np.zeros((4, _ROWS), psi.dtype)
    breaks, falls = np.empty((2, num_scores), psi.dtype)
    for start in range(0, psi.shape[1], _ROWS):
        stop = min(start + _ROWS, psi.shape[1])
        _copy(logits, start, odds, 0, stop - start)
        _copy(rests, start, own, 0, stop - start)
        _copy(heights, start, height, 0, stop - start)
        for j in range(num_features):
            slope, probabilities = slopes[j], psi[j, start:stop]
            change[:] = 0.0
            _pull(change, own, slope, height, pull)
            for i in range(stop - start):
                odds[j, i] += probabilities[i] * coupling[j, j]
                found[i] = _logistic(odds[j, i] + pull[i])
                change[i] = found[i] - probabilities[i]
            _pull(change, own, slope, height, pull_ahead)
            for i in range(stop - start):
                if pull[i] != pull_ahead[i]:
                    ends = probabilities[i], found[i]
                    found[i] = _walk_hinges(ends, odds[j, i], pull[i], own, slope, i, height, breaks, falls)
                    change[i] = found[i] - probabilities[i]
                probabilities[i] = found[i]
            _add(change, slope, own)
            _tell(change, odds, coupling, j)
        _copy(own, 0, rests, start, stop - start)


@inner
def _copy(source, start, target, place, number):
    """Write some columns of a table over those of another one."""
    for i in range(len(source)):
        copy(source[i, start : start + number], target[i, place : place + number])


@inner
def _walk_lines(ends, logit, mass, lines, slope, i, first):
    """Between the old p and the one ahead, over the upper envelope of line + slope (p - old p), from its first line."""
    (p, ahead), (height, rise) = ends, first
    side = 1.0 if ahead > p else -1.0
    while True:
        at, following = side * (ahead - p), -1
        for c in range(len(slope)):
            steeper = side * (slope[c] - rise)
            cross = (height - lines[c, i]) / steeper
            if (steeper > 0.0) & (cross < at):
                at, following = cross, c
        if following < 0:
            return ahead
        ahead = _logistic(logit - mass * slope[following])
        if side * (ahead - p) <= at:
            return p + side * at
        height, rise = lines[following, i], slope[following]


@inner
def _walk_hinges(ends, logit, pull, rests, slope, i, height, breaks, falls):
    """Between the old p and the one ahead, over the breaks in their order, from the pull at the old p."""
    p, ahead = ends
    side = 1.0 if ahead > p else -1.0
    reach, count = side * (ahead - p), 0
    for c in range(len(slope)):
        speed, rest = side * slope[c], rests[c, i]
        at = -rest / speed
        breaks[count], falls[count] = at, side * abs(speed) * height[c, i]
        count += ((rest < 0.0) == (speed > 0.0)) & (speed != 0.0) & (at < reach)
    for _ in range(count):
        place = 0
        for other in range(1, count):
            if breaks[other] < breaks[place]:
                place = other
        at = breaks[place]
        if side * (ahead - p) <= at:
            break
        pull -= falls[place]
        breaks[place] = math.inf
        ahead = _logistic(logit + pull)
        if side * (ahead - p) <= at:
            return p + side * at
    return ahead


@inner
def _pull(change, rests, slope, heights, pull):
    """The pull of all hinges after a change of p."""
    pull[:] = 0.0
    for c in range(len(slope)):
        w, own, height = slope[c], rests[c], heights[c]
        for i in range(len(pull)):
            force = w * height[i]
            pull[i] += force if own[i] + change[i] * w < 0.0 else 0.0


@inner
def _highest(change, lines, slope, top, rise):
    """The height and slope of the highest line where p has changed."""
    top[:] = -math.inf
    for c in range(len(slope)):
        w, own = slope[c], lines[c]
        for i in range(len(top)):
            height = own[i] + change[i] * w
            higher = height > top[i]
            top[i], rise[i] = height if higher else top[i], w if higher else rise[i]


@inner
def _add(change, slope, scores):
    """scores + change slope."""
    for c in range(len(slope)):
        w, own = slope[c], scores[c]
        for i in range(len(change)):
            own[i] += change[i] * w


@inner
def _tell(change, odds, coupling, j):
    """Pass a change of feature j on to the features after it."""
    for later in range(j + 1, len(odds)):
        w, own = coupling[j, later], odds[later]
        for i in range(len(change)):
            own[i] -= w * change[i]


@inner
def _logistic(logit):
    return 1.0 / (1.0 + math.exp(-logit))
