"""What rows that fits had not seen say of decisions: the slope that makes probabilities of them, and how much each of
several fits counts in their mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import brentq, nnls
from scipy.special import log_softmax, softmax


def logits(decisions: NDArray[Any]) -> NDArray[Any]:
    """A column for each class [n, L], of two classes 0 and the decision [n]."""
    return decisions if decisions.ndim == 2 else np.column_stack([np.zeros_like(decisions), decisions])


def log_probabilities(slope: float, decisions: NDArray[Any]) -> NDArray[Any]:
    """log softmax(slope f) [n, L] of decisions f [n, L], or of two classes [n]."""
    found: NDArray[Any] = log_softmax(slope * logits(decisions), axis=1)
    return found


def likeliest_slope(decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> float:
    """The slope at which the labels y [M] of rows with decisions [M, L] or [M] are likeliest; one of each class is
    added and spread over all rows, so that it stays finite where all are told apart."""
    scores = logits(decisions)
    total, L = weights.sum(), scores.shape[1]
    targets = (np.eye(L)[y] * total + 1) / (total + L)

    def uphill(slope: float) -> float:
        """Minus the derivative of the log likelihood, which rises with the slope."""
        return float(weights @ ((softmax(slope * scores, axis=1) - targets) * scores).sum(1))

    low, high = _SLOPES
    if uphill(low) >= 0:
        return low
    return high if uphill(high) <= 0 else float(brentq(uphill, low, high, rtol=1e-12))


def likeliest_shares(decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares [J] of the decisions [J, M, L] or [J, M] of several fits, at least 0 and 1 in all, with which their mean
    makes the labels y [M] likeliest at its slope (stacking: Wolpert 1992; none below 0: Breiman 1996).

    One of each class is added as in `likeliest_slope`. Newton steps, each the minimum over slopes of at least 0 of a
    quadratic.
    """
    scores = np.stack([logits(each) for each in decisions]).astype(np.float64)
    sizes = np.sqrt(np.average((scores**2).mean(2), axis=1, weights=weights)).clip(min=np.finfo(np.float64).tiny)
    scores /= sizes[:, None, None]
    total, (J, _, L) = weights.sum(), scores.shape
    targets = (np.eye(L)[y] * total + 1) / (total + L)

    def cost(slopes: NDArray[np.float64]) -> float:
        return -float(weights @ (targets * log_softmax(np.tensordot(slopes, scores, 1), axis=1)).sum(1))

    slopes = np.full(J, 1 / J)
    for _ in range(_MOST_STEPS):
        p = softmax(np.tensordot(slopes, scores, 1), axis=1)
        mean = np.einsum("ml,jml->jm", p, scores)
        gradient = np.einsum("m,ml,jml->j", weights, p - targets, scores)
        curvature = np.einsum("m,ml,jml,kml->jk", weights, p, scores, scores, optimize=True) - (mean * weights) @ mean.T
        root = cholesky(curvature + _DAMPING * (1 + np.trace(curvature)) * np.eye(J))
        best = nnls(root, solve_triangular(root, curvature @ slopes - gradient, trans="T"))[0]
        step, before = best - slopes, cost(slopes)
        while cost(slopes + step) > before and np.abs(step).max() > _SETTLED:
            step /= 2
        slopes = slopes + step
        if np.abs(step).max() <= _SETTLED * slopes.max():
            break
    slopes = slopes / sizes
    found: NDArray[np.float64] = slopes / slopes.sum() if slopes.any() else np.eye(J)[0]
    return found


def least_squares_shares(decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares [J] of the decisions [J, M] of several fits, at least 0 and 1 in all, whose mean is nearest to targets y
    [M] (Breiman 1996).

    The minimum of |E w|^2 + c^2 (sum w - 1)^2 over w of at least 0, E being the errors of the decisions, is a multiple
    of that on sum w = 1.
    """
    errors = np.sqrt(weights) * (decisions.astype(np.float64) - y)
    size = max(np.sqrt((errors**2).sum(1).mean()), np.finfo(np.float64).tiny)
    found = nnls(np.vstack([errors.T / size, np.ones(len(errors))]), np.append(np.zeros(errors.shape[1]), 1.0))[0]
    shares: NDArray[np.float64] = found / found.sum()
    return shares


_SLOPES = (1e-3, 1e3)
_MOST_STEPS = 100
_DAMPING = 1e-9  # fits that decide alike leave shares open
_SETTLED = 1e-12
