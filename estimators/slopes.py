"""Calibration on held-out rows: the slope that turns decisions into probabilities, and the shares of several fits in
their mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import brentq, nnls
from scipy.special import log_softmax, softmax


def logits(decisions: NDArray[Any]) -> NDArray[Any]:
    """Decisions as [n, L]; a decision [n] between two classes becomes the columns 0 and the decision."""
    return decisions if decisions.ndim == 2 else np.column_stack([np.zeros_like(decisions), decisions])


def log_probabilities(slope: float, decisions: NDArray[Any]) -> NDArray[Any]:
    """log softmax(slope f) [n, L] of decisions f [n, L], or of two classes [n]."""
    found: NDArray[Any] = log_softmax(slope * logits(decisions), axis=1)
    return found


def likeliest_slope(decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> float:
    """The slope that maximizes the likelihood of labels y [M] given decisions [M, L] or [M].

    One further label of each class is spread over all rows, so that the slope stays finite for separable classes.
    """
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
    """Stacking (Wolpert 1992; Breiman 1996): the shares [J] of fits that maximize the likelihood of labels y [M].

    The decisions [J, M, L] or [J, M] are averaged with these shares, which are at least 0 and sum to 1, and scaled by
    the best slope. Labels are added as in `likeliest_slope`. Each Newton step minimizes a quadratic over slopes >= 0.
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
    """Stacking of regressions (Breiman 1996): the shares [J] of several fits that minimize the squared error.

    The decisions [J, M] are averaged with these shares, which are at least 0 and sum to 1, to predict targets y [M].

    With E the errors of the decisions, the minimum of |E w|^2 + c^2 (sum w - 1)^2 over w >= 0 is a multiple of the
    minimum under sum w = 1.
    """
    errors = np.sqrt(weights) * (decisions.astype(np.float64) - y)
    size = max(np.sqrt((errors**2).sum(1).mean()), np.finfo(np.float64).tiny)
    found = nnls(np.vstack([errors.T / size, np.ones(len(errors))]), np.append(np.zeros(errors.shape[1]), 1.0))[0]
    shares: NDArray[np.float64] = found / found.sum()
    return shares


_SLOPES = (1e-3, 1e3)
_MOST_STEPS = 100
_DAMPING = 1e-9  # fits with equal decisions do not determine their shares
_SETTLED = 1e-12
