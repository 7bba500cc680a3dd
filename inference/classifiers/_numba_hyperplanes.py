"""Compiled updates of repelling hyperplanes: Gaussian fits to their posteriors, draws, and elliptical slice steps.

Every hyperplane scores all rows, with sign +1 for the rows of its own component and -1 for the others. The factor of a
row is phi^t; t is 1, or less at the start of a chain (`gibbs/moves/tempering`). The loops use plain indices throughout,
because numba takes far longer to compile slices.
"""

import math
from typing import Any, NamedTuple, Self

import numpy as np

from ..compiled._numba_functions import back, solve, some_rows
from ..compiled._numba_losses import log_factor, observe
from ..compiled.decorators import inner, lean_entry, lean_part


class Rows(NamedTuple):
    """The rows that hyperplanes score, and their loss."""

    columns: np.ndarray  # the features, [P, N]
    loss: Any  # its compiled form; `power` below is t
    power: float
    precision: float  # 1 / nu^2


class Quadrature(NamedTuple):
    """Gauss-Hermite nodes of a standard normal, for expectations over a score."""

    nodes: np.ndarray  # [G]
    masses: np.ndarray  # [3, G], for the mean, slope and curvature
    least_scale: float  # the least standard deviation of a score


class Room(NamedTuple):
    """The buffers that compiled code writes to; it then allocates no arrays and counts no references to them."""

    tril: np.ndarray  # [P, P]
    inverse: np.ndarray  # [P, P]
    mean: np.ndarray  # [P]
    tile: np.ndarray  # [6, _TILE]

    @classmethod
    def of(cls, rows: Rows) -> Self:
        P = len(rows.columns)
        return cls(np.empty((P, P)), np.empty((P, P)), np.empty(P), np.empty((6, _TILE)))


@lean_entry
def improve(rows, quadrature, shares, natural, goal, bound, trial, trial_goal, room, num_steps):
    """Take the fit steps of `block_fits` for K blocks with shares [K, N] in 0..1.

    `natural`, `goal` [K, 2, N] and `bound` [K] change in place; `trial` and `trial_goal` are buffers. With `num_steps`
    0, `goal` (0 before) and `bound` are set to those of `natural`.
    """
    tril, inverse, mean, tile = room
    for k in range(len(bound)):
        step = 0.5 if num_steps else 0.0
        for _ in range(max(1, num_steps)):
            for i in range(2):
                for n in range(natural.shape[2]):
                    value = natural[k, i, n]
                    trial[k, i, n] = value - step * value + step * goal[k, i, n]
            log_det = _law(rows.columns, rows.precision, trial, k, tril, mean, tile)
            _invert(tril, inverse)
            trial_bound = -_divergence(inverse, mean, log_det, rows.precision)
            for first in range(0, natural.shape[2], _TILE):
                start, size = some_rows(first, natural.shape[2], _TILE)
                _moments(rows.columns, mean, inverse, start, size, tile)
                _expect(rows, quadrature, shares, k, start, size, tile)
                trial_bound += _lead(trial_goal, k, start, size, tile)
            if num_steps == 0 or trial_bound > bound[k]:
                bound[k], step = trial_bound, min(1.5 * step, 0.75)
                for i in range(2):
                    for n in range(natural.shape[2]):
                        natural[k, i, n], goal[k, i, n] = trial[k, i, n], trial_goal[k, i, n]
            else:
                step /= 4.0


@lean_entry
def see(rows, owners, labels, halves, uniforms, weights, natural, room):
    """Write to `natural` [K, 2, N] the pseudo-observation of each row for each hyperplane [K, P], drawn by `observe`.

    `owners` [N] are the components of the rows, `labels` [K] those of the hyperplanes; `halves` and `uniforms` [K, N]
    are the random numbers that `observe` takes.
    """
    tile = room.tile
    for k in range(len(weights)):
        for first in range(0, len(owners), _TILE):
            start, size = some_rows(first, len(owners), _TILE)
            for n in range(size):
                tile[0, n] = 0.0
            for p in range(weights.shape[1]):
                weight = weights[k, p]
                for n in range(size):
                    tile[0, n] += weight * rows.columns[p, start + n]
            for n in range(size):
                side = 1.0 if owners[start + n] == labels[k] else -1.0
                half, uniform = halves[k, start + n], uniforms[k, start + n]
                precision, shift = observe(rows.loss, tile[0, n], side, half, uniform)
                natural[k, 0, start + n], natural[k, 1, start + n] = rows.power * precision, rows.power * shift


@lean_entry
def draw(rows, natural, noise, room):
    """Replace standard normal noise [K, P] by draws of the Gaussians with pseudo-observations `natural` [K, 2, N].

    Zeros in place of noise give the means.
    """
    tril, _, mean, tile = room
    for k in range(len(noise)):
        _law(rows.columns, rows.precision, natural, k, tril, mean, tile)
        back(tril, noise[k])
        for p in range(len(mean)):
            noise[k, p] += mean[p]


@lean_entry
def margins(loss, power, scores):
    """Replace scores f [N] by log phi^t(+1 | f) - log phi^t(-1 | f)."""
    for n in range(len(scores)):
        scores[n] = power * (log_factor(loss, scores[n], 1.0) - log_factor(loss, scores[n], -1.0))


@lean_entry
def turn(rows, owners, weights, other, levels, angles, scores):
    """Find the angles [K] of elliptical slice steps of hyperplanes [K, P] towards the prior draws `other` [K, P].

    `levels` [K, 2 + M] are uniform numbers: one for the height, one for the first angle, and M for the angles within
    the shrinking bracket. `owners` [N] are the components 0..K-1 of the rows. scores [2, N] is a buffer.
    """
    for k in range(len(angles)):
        for n in range(len(owners)):
            scores[0, n] = scores[1, n] = 0.0
        for p in range(weights.shape[1]):
            one, two = weights[k, p], other[k, p]
            for n in range(len(owners)):
                scores[0, n] += one * rows.columns[p, n]
                scores[1, n] += two * rows.columns[p, n]
        level, angle, high, low = 0.0, 0.0, 0.0, 0.0
        angles[k] = 0.0
        for step in range(1, levels.shape[1]):
            total, across, up = 0.0, math.cos(angle), math.sin(angle)
            for n in range(len(owners)):
                side = 1.0 if owners[n] == k else -1.0
                total += log_factor(rows.loss, scores[0, n] * across + scores[1, n] * up, side)
            total *= rows.power  # of all rows
            if step == 1:
                level = total + math.log1p(-levels[k, 0])
                angle = high = 2.0 * math.pi * levels[k, 1]
                low = high - 2.0 * math.pi
                continue
            if total >= level:
                angles[k] = angle
                break
            low, high = (angle, high) if angle < 0.0 else (low, angle)
            angle = low + (high - low) * levels[k, step]


@lean_part
def _law(columns, precision, natural, k, tril, mean, tile):
    """The Cholesky factor of A and the mean m = A^-1 B, from the pseudo-observations natural[k]; returns log det A."""
    P, N = columns.shape
    for p in range(P):
        mean[p] = 0.0
        for q in range(p):
            tril[p, q] = 0.0
        tril[p, p] = precision
    for first in range(0, N, _TILE):
        start, size = some_rows(first, N, _TILE)
        for p in range(P):
            total = 0.0
            for n in range(size):
                value = columns[p, start + n]
                tile[0, n] = natural[k, 0, start + n] * value
                total += natural[k, 1, start + n] * value
            mean[p] += total
            for q in range(p + 1):
                total = 0.0
                for n in range(size):
                    total += columns[q, start + n] * tile[0, n]
                tril[p, q] += total
    return solve(tril, mean)


@inner
def _invert(tril, inverse):
    """The lower half of L^-1 [P, P]."""
    for p in range(len(tril)):
        for q in range(p):
            inverse[p, q] = 0.0
        inverse[p, p] = 1.0
        for q in range(p):
            for o in range(q + 1):
                inverse[p, o] -= tril[p, q] * inverse[q, o]
        for q in range(p + 1):
            inverse[p, q] /= tril[p, p]


@inner
def _divergence(inverse, mean, log_det, precision):
    """KL(N(m, A^-1) || N(0, nu^2 I))."""
    square, P = 0.0, len(mean)
    for p in range(P):
        square += mean[p] * mean[p]
        for q in range(p + 1):
            square += inverse[p, q] * inverse[p, q]  # tr A^-1 = |L^-1|_F^2
    return (square * precision + log_det - P * (math.log(precision) + 1.0)) / 2.0


@inner
def _moments(columns, mean, inverse, start, size, tile):
    """The means tile[3] and variances tile[4] = |L^-1 a_n|^2 of the scores of `size` rows."""
    for n in range(size):
        tile[3, n] = tile[4, n] = 0.0
    for p in range(len(columns)):
        for n in range(size):
            tile[5, n] = 0.0
        for q in range(p + 1):
            weight = inverse[p, q]
            for n in range(size):
                tile[5, n] += weight * columns[q, start + n]
        weight = mean[p]
        for n in range(size):
            tile[3, n] += weight * columns[p, start + n]
            tile[4, n] += tile[5, n] * tile[5, n]


@inner
def _expect(rows, quadrature, shares, k, start, size, tile):
    """Expectations of log phi^t for scores N(tile[3], tile[4]), and the scale (standard deviation) in place of tile[4].

    tile[0] is E log phi^t; tile[1] and tile[2] are its slope and curvature, in units of the scale.
    """
    nodes, masses, least = quadrature.nodes, quadrature.masses, quadrature.least_scale
    for n in range(size):
        tile[0, n] = tile[1, n] = tile[2, n] = 0.0
        tile[4, n] = math.sqrt(max(tile[4, n], least * least))
    for g in range(len(nodes)):
        for n in range(size):
            score = tile[3, n] + nodes[g] * tile[4, n]
            value = rows.power * _log_factor(rows.loss, score, shares[k, start + n])
            tile[0, n] += masses[0, g] * value
            tile[1, n] += masses[1, g] * value
            tile[2, n] += masses[2, g] * value


@inner
def _log_factor(loss, score, share):
    """(1 - r) log phi(-1 | f) + r log phi(+1 | f) of a row whose share r belongs to the block."""
    if share == 1.0:
        return log_factor(loss, score, 1.0)
    if share == 0.0:
        return log_factor(loss, score, -1.0)
    return (1.0 - share) * log_factor(loss, score, -1.0) + share * log_factor(loss, score, 1.0)


@inner
def _lead(goal, k, start, size, tile):
    """Write the next pseudo-observations of `size` rows to goal[k] [2, N]; return the sum of their E log phi^t."""
    total = 0.0
    for n in range(size):
        scale = tile[4, n]
        toward = max(-tile[2, n] / (scale * scale), 0.0)
        goal[k, 0, start + n] = toward
        goal[k, 1, start + n] = tile[1, n] / scale + toward * tile[3, n]
        total += tile[0, n]
    return total


_TILE = 512  # rows at a time, few enough for a cache
