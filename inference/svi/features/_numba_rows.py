"""Compiled updates of a block of features for rows with a margin: each minimizes -H(p) - o p + g(s + p w).

p is the feature's probability, o its log odds, s are the scores without it and w is its slope in them. g is a hinge of
all scores together (`visit_joint`) or a sum of hinges of single scores (`visit_hinges`). It is piecewise linear in p,
so that logit p = o + pull, where the pull is minus the slope of g and falls at breakpoints. In most rows the pull at
the old p equals the pull at the p that it gives, which is then the optimum. In the other rows the optimum lies between
the two, and the breakpoints are visited until p lies within a piece or on a breakpoint. Rows are independent; `ROWS` at
a time stay in a cache.
"""

import math
from typing import NamedTuple, Self

import numpy as np

from ...compiled._numba_functions import some_rows
from ...compiled.decorators import inner, lean_entry

ROWS = 128


class Room(NamedTuple):
    """Buffers for `ROWS` rows; compiled code then allocates no arrays and counts no references to them."""

    odds: np.ndarray  # [B, ROWS]
    own: np.ndarray  # [C, ROWS] scores, as lines or rests
    rows: np.ndarray  # [6, ROWS], with the row numbers defined below
    breaks: np.ndarray  # [2, C]

    @classmethod
    def of(cls, slopes: np.ndarray) -> Self:
        """Buffers for slopes [B, C]."""
        B, C = slopes.shape
        return cls(*(np.empty(shape, slopes.dtype) for shape in ((B, ROWS), (C, ROWS), (6, ROWS), (2, C))))


_FOUND, _CHANGE, _TOP, _RISE, _TOP_AHEAD, _RISE_AHEAD = range(6)
_PULL, _PULL_AHEAD = _TOP, _RISE


@lean_entry
def visit_joint(logits, coupling, psi, lines, slopes, masses, room):
    """Set psi [B, N] feature by feature to the optimum for g = mass max_c line_c; the lines [C, N] are updated.

    logits [B, N] are log odds without g. coupling [B, B] is subtracted from the other features' logits per change of a
    feature; its diagonal from its own. slopes [B, C] are the features' slopes in the lines; masses are [1, N].
    """
    odds, own, rows, _ = room
    for first in range(0, psi.shape[1], ROWS):
        start, size = some_rows(first, psi.shape[1], ROWS)
        _take(logits, start, size, odds)
        _take(lines, start, size, own)
        for j in range(len(slopes)):
            for i in range(size):
                rows[_CHANGE, i] = 0.0
            _highest(own, slopes, j, size, rows, _TOP, _RISE)
            for i in range(size):
                odds[j, i] += psi[j, start + i] * coupling[j, j]
                rows[_FOUND, i] = _logistic(odds[j, i] - masses[0, start + i] * rows[_RISE, i])
                rows[_CHANGE, i] = rows[_FOUND, i] - psi[j, start + i]
            _highest(own, slopes, j, size, rows, _TOP_AHEAD, _RISE_AHEAD)
            for i in range(size):
                if rows[_RISE, i] != rows[_RISE_AHEAD, i]:
                    ends, line = (psi[j, start + i], rows[_FOUND, i]), (rows[_TOP, i], rows[_RISE, i])
                    rows[_FOUND, i] = _walk_lines(ends, odds[j, i], masses[0, start + i], own, slopes, j, i, line)
                    rows[_CHANGE, i] = rows[_FOUND, i] - psi[j, start + i]
                psi[j, start + i] = rows[_FOUND, i]
            _follow(own, slopes, odds, coupling, j, size, rows)
        _give(own, lines, start, size)


@lean_entry
def visit_hinges(logits, coupling, psi, rests, slopes, heights, room):
    """As `visit_joint`, for g = sum_c height_c (-rest_c)_+ with rests and heights [C, N]."""
    odds, own, rows, breaks = room
    for first in range(0, psi.shape[1], ROWS):
        start, size = some_rows(first, psi.shape[1], ROWS)
        _take(logits, start, size, odds)
        _take(rests, start, size, own)
        for j in range(len(slopes)):
            for i in range(size):
                rows[_CHANGE, i] = 0.0
            _pull(own, slopes, j, heights, start, size, rows, _PULL)
            for i in range(size):
                odds[j, i] += psi[j, start + i] * coupling[j, j]
                rows[_FOUND, i] = _logistic(odds[j, i] + rows[_PULL, i])
                rows[_CHANGE, i] = rows[_FOUND, i] - psi[j, start + i]
            _pull(own, slopes, j, heights, start, size, rows, _PULL_AHEAD)
            for i in range(size):
                if rows[_PULL, i] != rows[_PULL_AHEAD, i]:
                    ends, given = (psi[j, start + i], rows[_FOUND, i]), (odds[j, i], rows[_PULL, i])
                    rows[_FOUND, i] = _walk_hinges(ends, given, own, slopes, j, i, heights, start + i, breaks)
                    rows[_CHANGE, i] = rows[_FOUND, i] - psi[j, start + i]
                psi[j, start + i] = rows[_FOUND, i]
            _follow(own, slopes, odds, coupling, j, size, rows)
        _give(own, rests, start, size)


@inner
def _take(source, start, size, target):
    """Copy columns start, ..., start + size - 1 of a table."""
    for c in range(len(source)):
        for i in range(size):
            target[c, i] = source[c, start + i]


@inner
def _give(source, target, start, size):
    """Copy the buffer back to these columns."""
    for c in range(len(source)):
        for i in range(size):
            target[c, start + i] = source[c, i]


@inner
def _walk_lines(ends, logit, mass, lines, slopes, j, i, first):
    """The optimal p between the old p and `ahead`, along the upper envelope of line + slope (p - old p).

    `first` is the height and slope of the envelope at the old p.
    """
    (p, ahead), (height, rise) = ends, first
    side = 1.0 if ahead > p else -1.0
    while True:
        at, following = side * (ahead - p), -1
        for c in range(len(lines)):
            steeper = side * (slopes[j, c] - rise)
            cross = (height - lines[c, i]) / steeper
            if (steeper > 0.0) & (cross < at):
                at, following = cross, c
        if following < 0:
            return ahead
        ahead = _logistic(logit - mass * slopes[j, following])
        if side * (ahead - p) <= at:
            return p + side * at
        height, rise = lines[following, i], slopes[j, following]


@inner
def _walk_hinges(ends, given, rests, slopes, j, i, heights, n, breaks):
    """The optimal p between the old p and `ahead`, visiting the breakpoints in order, from the pull at the old p."""
    (p, ahead), (logit, pull) = ends, given
    side = 1.0 if ahead > p else -1.0
    reach, count = side * (ahead - p), 0
    for c in range(len(rests)):
        speed, rest = side * slopes[j, c], rests[c, i]
        at = -rest / speed
        breaks[0, count], breaks[1, count] = at, side * abs(speed) * heights[c, n]
        count += ((rest < 0.0) == (speed > 0.0)) & (speed != 0.0) & (at < reach)
    for _ in range(count):
        place = 0
        for other in range(1, count):
            if breaks[0, other] < breaks[0, place]:
                place = other
        at = breaks[0, place]
        if side * (ahead - p) <= at:
            break
        pull -= breaks[1, place]
        breaks[0, place] = math.inf
        ahead = _logistic(logit + pull)
        if side * (ahead - p) <= at:
            return p + side * at
    return ahead


@inner
def _pull(rests, slopes, j, heights, start, size, rows, pull):
    """The pull of all hinges at p + change."""
    for i in range(size):
        rows[pull, i] = 0.0
    for c in range(len(rests)):
        w = slopes[j, c]
        for i in range(size):
            force = w * heights[c, start + i]
            rows[pull, i] += force if rests[c, i] + rows[_CHANGE, i] * w < 0.0 else 0.0


@inner
def _highest(lines, slopes, j, size, rows, top, rise):
    """The height and slope of the highest line at p + change."""
    for i in range(size):
        rows[top, i] = -math.inf
    for c in range(len(lines)):
        w = slopes[j, c]
        for i in range(size):
            height = lines[c, i] + rows[_CHANGE, i] * w
            higher = height > rows[top, i]
            rows[top, i], rows[rise, i] = height if higher else rows[top, i], w if higher else rows[rise, i]


@inner
def _follow(scores, slopes, odds, coupling, j, size, rows):
    """Add change times slope to the scores; subtract the coupling from the logits of later features."""
    for c in range(len(scores)):
        w = slopes[j, c]
        for i in range(size):
            scores[c, i] += rows[_CHANGE, i] * w
    for later in range(j + 1, len(odds)):
        w = coupling[j, later]
        for i in range(size):
            odds[later, i] -= w * rows[_CHANGE, i]


@inner
def _logistic(logit):
    return 1.0 / (1.0 + math.exp(-logit))
