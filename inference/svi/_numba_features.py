"""A block of features of rows with a margin, compiled: the optimum of -H(p) - o p + g(s + p w), feature after feature.

g is a hinge of all scores together (`visit_joint`), or a sum over scores of costs whose conjugates are boxes
(`visit_boxes`). Along w it is made of lines, so that logit p = o + pull, where minus its derivative, the pull, falls
at a few breaks. Of most rows there is none between 0 and 1, and the pull is the same at both ends; of the others, walk
over the breaks until p lies within a piece, or on a break. Rows are independent: a few at a time stay in a cache.
"""

import math

import numpy as np

from ..compiled import entry, inner

_ROWS = 128


@entry
def visit_joint(logits, coupling, psi, lines, slopes, hinge):
    """Set psi [B, N] to their optimum in turn, from logits [B, N] by all but the margin; lines [C, N] follow.

    coupling [B, B] says how much a feature takes from the logits of another, the diagonal from its own; slopes [B, C]
    what it adds to the scores; lines are the scores with the margin added to those of other classes than a row's own.
    hinge is (own class [N], mass [N]: 2 c, or 0 where the class is unknown).
    """
    classes, masses = hinge
    num_features, num_scores = slopes.shape
    odds, own = np.empty((num_features, _ROWS), psi.dtype), np.empty((num_scores, _ROWS), psi.dtype)
    change, best, rise, best_last, rise_last = np.zeros((5, _ROWS), psi.dtype)
    for start in range(0, psi.shape[1], _ROWS):
        stop = min(start + _ROWS, psi.shape[1])
        odds[:, : stop - start], own[:, : stop - start] = logits[:, start:stop], lines[:, start:stop]
        for j in range(num_features):
            slope, probabilities = slopes[j], psi[j, start:stop]
            _add(-1.0, probabilities, slope, own)
            _highest(own, slope, best, rise, best_last, rise_last)
            for i in range(stop - start):
                n = start + i
                logit, right = odds[j, i] + probabilities[i] * coupling[j, j], slope[classes[n]]
                p = _logistic(logit + masses[n] * (right - rise[i]))
                if rise[i] < rise_last[i]:
                    p = _walk_lines(p, logit, own, slope, i, right, best[i], rise[i], masses[n])
                change[i] = p - probabilities[i]
                probabilities[i] = p
            _add(1.0, probabilities, slope, own)
            _tell(change, odds, coupling, j)
        lines[:, start:stop] = own[:, : stop - start]


@entry
def visit_boxes(logits, coupling, psi, scores, slopes, box):
    """The same for scores [C, N] and box (linear, lower, upper [C, N], tube): tilts at a bound, or 0 in the tube."""
    linear, lower, upper, tube = box
    num_features, num_scores = slopes.shape
    odds, own = np.empty((num_features, _ROWS), psi.dtype), np.empty((num_scores, _ROWS), psi.dtype)
    lines, least, most = np.zeros((3, num_scores, _ROWS), psi.dtype)
    change, first, last = np.zeros((3, _ROWS), psi.dtype)  # and the pulls at p = 0 and at p = 1
    breaks, falls = np.empty(2 * num_scores), np.empty(2 * num_scores)
    for start in range(0, psi.shape[1], _ROWS):
        stop = min(start + _ROWS, psi.shape[1])
        odds[:, : stop - start], own[:, : stop - start] = logits[:, start:stop], scores[:, start:stop]
        lines[:, : stop - start] = linear[:, start:stop]
        least[:, : stop - start], most[:, : stop - start] = lower[:, start:stop], upper[:, start:stop]
        for j in range(num_features):
            slope, probabilities = slopes[j], psi[j, start:stop]
            _add(-1.0, probabilities, slope, own)
            first[:], last[:] = 0.0, 0.0
            for c in range(num_scores):
                _pull(slope[c], tube, lines[c], own[c], least[c], most[c], first, last)
            for i in range(stop - start):
                logit = odds[j, i] + probabilities[i] * coupling[j, j]
                p = _logistic(logit + first[i])
                if first[i] != last[i]:
                    p = _walk_boxes(logit, own, slope, i, lines, least, most, tube, breaks, falls)
                change[i] = p - probabilities[i]
                probabilities[i] = p
            _add(1.0, probabilities, slope, own)
            _tell(change, odds, coupling, j)
        scores[:, start:stop] = own[:, : stop - start]


@inner
def _walk_lines(p, logit, lines, slope, i, right, height, rise, mass):
    """From p, the solution if the first line were the highest everywhere, over the upper envelope of line + p slope."""
    while True:
        at, following = 1.0, -1
        for c in range(len(slope)):
            steeper = slope[c] - rise
            if steeper > 0.0:
                cross = (height - lines[c, i]) / steeper
                if cross < at or (cross == at and following >= 0 and slope[c] > slope[following]):
                    at, following = cross, c
        if following < 0 or p <= at:
            return p
        p = _logistic(logit + mass * (right - slope[following]))
        if p <= at:
            return max(at, 0.0)
        height, rise = lines[following, i], slope[following]


@inner
def _walk_boxes(logit, scores, slope, i, linear, lower, upper, tube, breaks, falls):
    """Over the breaks in their order, from the pull at p = 0."""
    pull, count = 0.0, 0
    for c in range(len(slope)):
        size = abs(slope[c])
        if size > 0.0:
            rises = slope[c] > 0.0
            rest = linear[c, i] - scores[c, i] if rises else scores[c, i] - linear[c, i]
            most = upper[c, i] if rises else -lower[c, i]  # pulls per |slope| fall from `most` to `least`
            least = lower[c, i] if rises else -upper[c, i]
            pull += size * (most if rest > tube else (least if rest <= -tube else 0.0))
            if rest > tube and rest < tube + size and most > 0.0:
                breaks[count], falls[count] = (rest - tube) / size, size * most
                count += 1
            if rest > -tube and rest < size - tube and least < 0.0:
                breaks[count], falls[count] = (rest + tube) / size, -size * least
                count += 1
    p = _logistic(logit + pull)
    for _ in range(count):
        place = 0
        for other in range(1, count):
            if breaks[other] < breaks[place]:
                place = other
        at = breaks[place]
        if p <= at:
            break
        pull -= falls[place]
        breaks[place] = math.inf
        p = _logistic(logit + pull)
        if p <= at:
            p = at
            break
    return p


@inner
def _pull(w, tube, linear, scores, lower, upper, first, last):
    """Add what one score pulls at p = 0 and at p = 1."""
    for i in range(len(scores)):
        rest = linear[i] - scores[i]
        first[i] += w * (upper[i] if rest > tube else (lower[i] if rest < -tube else 0.0))
        rest -= w
        last[i] += w * (upper[i] if rest > tube else (lower[i] if rest < -tube else 0.0))


@inner
def _highest(lines, slope, best, rise, best_last, rise_last):
    """The height and slope of the highest line just after p = 0 and just before p = 1."""
    best[:], rise[:], best_last[:], rise_last[:] = lines[0], slope[0], lines[0] + slope[0], slope[0]
    for c in range(1, len(slope)):
        w, line = slope[c], lines[c]
        for i in range(len(line)):
            height = line[i]
            higher = (height > best[i]) | ((height == best[i]) & (w > rise[i]))
            best[i], rise[i] = height if higher else best[i], w if higher else rise[i]
            height += w
            higher = height > best_last[i]
            best_last[i], rise_last[i] = height if higher else best_last[i], w if higher else rise_last[i]


@inner
def _add(sign, psi, slope, scores):
    """scores + sign psi slope."""
    for c in range(len(slope)):
        w, own = sign * slope[c], scores[c]
        for i in range(len(psi)):
            own[i] += psi[i] * w


@inner
def _tell(change, odds, coupling, j):
    """What a change of feature j means to those after it."""
    for later in range(j + 1, len(odds)):
        w, own = coupling[j, later], odds[later]
        for i in range(len(change)):
            own[i] -= w * change[i]


@inner
def _logistic(logit):
    return 1.0 / (1.0 + math.exp(-logit))
