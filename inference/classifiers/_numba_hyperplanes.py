"""Hyperplanes that score all rows, each with a sign of its own, compiled: fits of Gaussians to their laws, draws, slice
steps.

The factor of a row is phi^t; t is 1, or less at the start of a chain (`gibbs/moves/tempering`).
"""

import math
from typing import Any, NamedTuple

import numpy as np

from ..compiled._numba_functions import add, back, copy, dot, solve
from ..compiled._numba_losses import log_factor, observe
from ..compiled.decorators import entry, inner, part


class Rows(NamedTuple):
    """What the hyperplanes see."""

    columns: np.ndarray  # [P, N]
    loss: Any  # its compiled form
    power: float
    precision: float  # 1 / nu^2


class Quadrature(NamedTuple):
    """Of a standard normal."""

    nodes: np.ndarray  # [G]
    masses: np.ndarray  # [3, G] for mean, slope and curvature
    least_scale: float  # of scores


@entry
def improve(rows, quadrature, shares, natural, goal, bound, num_steps):
    """Steps of `block_fits` for K blocks by their shares [K, N] in 0..1: all of `natural` and `goal` [K, 2, 1, N] and
    `bound` [K] change in place. Without steps goal and bound become those of `natural`."""
    room, trial, trial_goal = _room(rows), np.empty(natural.shape[1:]), np.empty(natural.shape[1:])
    for k in range(len(bound)):
        if num_steps == 0:
            bound[k] = _evaluate(rows, quadrature, shares[k], natural[k, :, 0], goal[k, :, 0], room)
        step = 0.5
        for _ in range(num_steps):
            for i in range(len(trial)):
                copy(natural[k, i, 0], trial[i, 0])
                add(-step, natural[k, i, 0], trial[i, 0])
                add(step, goal[k, i, 0], trial[i, 0])
            trial_bound = _evaluate(rows, quadrature, shares[k], trial[:, 0], trial_goal[:, 0], room)
            if trial_bound > bound[k]:
                bound[k], step = trial_bound, min(1.5 * step, 0.75)
                for i in range(len(trial)):
                    copy(trial[i, 0], natural[k, i, 0])
                    copy(trial_goal[i, 0], goal[k, i, 0])
            else:
                step /= 4.0


@entry
def fill_means(rows, natural, means):
    """The means [K, P] of Gaussians from what each row adds to them, [K, 2, 1, N]."""
    tril, _, _, tile = _room(rows)
    for k in range(len(means)):
        _law(rows, natural[k, :, 0], tril, means[k], tile[0])


@entry
def draw(rows, owners, labels, halves, uniforms, noise, weights):
    """Draws [K, P] in place of weights, of hyperplanes with labels [K] and of owners [N], whose pseudo-observations are
    drawn by numbers [K, N] each for `observe`."""
    tril, _, mean, tile = _room(rows)
    for k in range(len(weights)):
        tril[:], mean[:] = 0.0, 0.0
        for start in range(0, len(owners), _TILE):
            size = min(_TILE, len(owners) - start)
            tile[0] = 0.0
            for p in range(len(mean)):
                add(weights[k, p], rows.columns[p, start : start + size], tile[0])
            stop = start + size
            own, half, uniform = owners[start:stop], halves[k, start:stop], uniforms[k, start:stop]
            for n in range(size):
                side = 1.0 if own[n] == labels[k] else -1.0
                precision, shift = observe(rows.loss, tile[0, n], side, half[n], uniform[n])
                tile[1, n], tile[2, n] = rows.power * precision, rows.power * shift
            _gather(rows.columns, start, tile[1, :size], tile[2, :size], tile[3], tril, mean)
        _finish(rows, tril, mean)
        copy(noise[k], weights[k])
        back(tril, weights[k])
        add(1.0, mean, weights[k])


@entry
def margins(loss, power, scores):
    """log phi^t(+1 | f) - log phi^t(-1 | f) in place of scores f [N]."""
    for n in range(len(scores)):
        scores[n] = power * (log_factor(loss, scores[n], 1.0) - log_factor(loss, scores[n], -1.0))


@entry
def turn(rows, owners, weights, other, levels, angles):
    """Angles [K] of elliptical slice steps of hyperplanes [K, P] towards others, by uniform numbers [K, 2 + M]: one for
    the height, one for the first angle, and the rest for where its bracket shrinks; owners [N] are labels in 0..K-1."""
    N = len(owners)
    first, second = np.empty(N), np.empty(N)
    for k in range(len(angles)):
        first[:], second[:] = 0.0, 0.0
        for p in range(weights.shape[1]):
            add(weights[k, p], rows.columns[p], first)
            add(other[k, p], rows.columns[p], second)
        level = _log_likelihood(rows, owners, k, first, second, 0.0) + math.log1p(-levels[k, 0])
        high = 2.0 * math.pi * levels[k, 1]
        low, angle, angles[k] = high - 2.0 * math.pi, high, 0.0
        for step in range(2, levels.shape[1]):
            if _log_likelihood(rows, owners, k, first, second, angle) >= level:
                angles[k] = angle
                break
            low, high = (angle, high) if angle < 0.0 else (low, angle)
            angle = low + (high - low) * levels[k, step]


@part
def _log_likelihood(rows, owners, k, first, second, angle):
    """Sum of log phi^t of a hyperplane with scores first cos + second sin [N]."""
    total, across, up = 0.0, math.cos(angle), math.sin(angle)
    for n in range(len(owners)):
        total += log_factor(rows.loss, first[n] * across + second[n] * up, 1.0 if owners[n] == k else -1.0)
    return rows.power * total


@part
def _evaluate(rows, quadrature, shares, natural, goal, room):
    """The bound of the Gaussian of a hyperplane, from what each row adds to it, `natural` [2, N]; and `goal` [2, N], to
    which a step leads."""
    tril, inverse, mean, tile = room
    found, center, scale = tile[:3], tile[3], tile[4]
    log_det = _law(rows, natural, tril, mean, center)
    _invert(tril, inverse)
    bound = -_divergence(inverse, mean, log_det, rows.precision)
    for start in range(0, len(shares), _TILE):
        size = min(_TILE, len(shares) - start)
        _moments(rows.columns, mean, inverse, start, size, center, scale, tile[5])
        for n in range(size):
            scale[n] = math.sqrt(max(scale[n], quadrature.least_scale * quadrature.least_scale))
        _expect(rows, quadrature, shares, start, size, center, scale, found)
        toward, pull = goal[0, start : start + size], goal[1, start : start + size]
        for n in range(size):
            slope, toward[n] = found[1, n] / scale[n], max(-found[2, n] / (scale[n] * scale[n]), 0.0)
            pull[n] = slope + toward[n] * center[n]
            bound += found[0, n]
    return bound


@inner
def _room(rows):
    """For two matrices, a mean and six columns of a tile."""
    P = len(rows.columns)
    return np.empty((P, P)), np.empty((P, P)), np.empty(P), np.empty((6, _TILE))


@part
def _law(rows, natural, tril, mean, weighted):
    """The Cholesky factor of A, and the mean, from what each row adds [2, N]; the log determinant of A."""
    N = natural.shape[1]
    tril[:], mean[:] = 0.0, 0.0
    for start in range(0, N, _TILE):
        stop = min(start + _TILE, N)
        _gather(rows.columns, start, natural[0, start:stop], natural[1, start:stop], weighted, tril, mean)
    return _finish(rows, tril, mean)


@part
def _gather(columns, start, precision, shift, weighted, tril, mean):
    """Add what the rows from `start` on say to the lower half of A, and A m, of precisions and shifts [size]."""
    stop = start + len(precision)
    for p in range(len(columns)):
        column = columns[p, start:stop]
        for n in range(len(precision)):
            weighted[n] = precision[n] * column[n]
        mean[p] += dot(shift, column)
        for q in range(p + 1):
            tril[p, q] += dot(columns[q, start:stop], weighted)


@inner
def _finish(rows, tril, mean):
    """With the prior, which A is yet without."""
    for p in range(len(mean)):
        tril[p, p] += rows.precision
    return solve(tril, mean)


@inner
def _invert(tril, inverse):
    """L^-1 [P, P], its lower half."""
    for p in range(len(tril)):
        inverse[p] = 0.0
        inverse[p, p] = 1.0
        for q in range(p):
            for o in range(q + 1):
                inverse[p, o] -= tril[p, q] * inverse[q, o]
        for q in range(p + 1):
            inverse[p, q] /= tril[p, p]


@part
def _moments(columns, mean, inverse, start, size, center, variance, reach):
    """Mean and variance of the scores of some rows, |L^-1 a_n|^2."""
    center[:], variance[:] = 0.0, 0.0
    for p in range(len(columns)):
        reach[:] = 0.0
        for q in range(p + 1):
            add(inverse[p, q], columns[q, start : start + size], reach)
        add(mean[p], columns[p, start : start + size], center)
        for n in range(size):
            variance[n] += reach[n] * reach[n]


@part
def _expect(rows, quadrature, shares, start, size, center, scale, found):
    """E log phi^t, and E of its slope and curvature in units of the scale [3, size], for scores N(center, scale^2)."""
    nodes, masses, own = quadrature.nodes, quadrature.masses, shares[start : start + size]
    found[:] = 0.0
    for g in range(len(nodes)):
        for n in range(size):
            score = center[n] + nodes[g] * scale[n]
            value = rows.power * _log_factor(rows.loss, score, own[n])
            found[0, n] += masses[0, g] * value
            found[1, n] += masses[1, g] * value
            found[2, n] += masses[2, g] * value


@inner
def _log_factor(loss, score, share):
    """Of a row that a block has so much of: (1 - r) log phi(-1 | f) + r log phi(+1 | f)."""
    if share == 1.0:
        return log_factor(loss, score, 1.0)
    if share == 0.0:
        return log_factor(loss, score, -1.0)
    return (1.0 - share) * log_factor(loss, score, -1.0) + share * log_factor(loss, score, 1.0)


@inner
def _divergence(inverse, mean, log_det, precision):
    """KL(N(m, A^-1) || N(0, nu^2 I))."""
    square, P = 0.0, len(mean)
    for p in range(P):
        square += mean[p] * mean[p]
        for q in range(p + 1):
            square += inverse[p, q] * inverse[p, q]  # tr A^-1 = |L^-1|_F^2
    return (square * precision + log_det - P * (math.log(precision) + 1.0)) / 2.0


_TILE = 512  # rows at a time, few enough for a cache
