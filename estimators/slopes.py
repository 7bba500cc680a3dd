"""Probabilities of scores that are none: softmax of the scores times a slope, by rows that fits had not seen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
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


_SLOPES = (1e-3, 1e3)
