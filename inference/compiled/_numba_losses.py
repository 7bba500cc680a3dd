"""Placeholders for the functions that the compiled form of a loss brings (see `regbayes.models.compiled`)."""

import math

from numba.extending import overload

from .decorators import OPTIONS, brought, entry


@brought
def log_factor(loss, score, y):
    """log phi(y | f) of one score."""
    raise NotImplementedError


@brought
def log_factors(loss, scores, y):
    """log phi(y | f) of a row whose scores meet in one factor."""
    raise NotImplementedError


@brought
def observe(loss, score, y, half, uniform):
    """Precision and shift of one score, at a draw of its augmentation variable from `half` and `uniform`."""
    raise NotImplementedError


def log_margin(loss, scores, targets):
    """log phi(y | f) of a row: scores [C], targets [C], NaN where missing."""
    raise NotImplementedError


@overload(log_margin, jit_options=OPTIONS)
def _choose(loss, scores, targets):
    return _of_all if hasattr(loss.instance_class, "log_factors") else _of_each


def _of_all(loss, scores, targets):
    for y in targets:
        if math.isnan(y):
            return 0.0
    return log_factors(loss, scores, targets)


def _of_each(loss, scores, targets):
    total = 0.0
    for c in range(len(scores)):
        if not math.isnan(targets[c]):
            total += log_factor(loss, scores[c], targets[c])
    return total


@entry
def margins(loss, scores, targets, out):
    """Set out [N] to log phi(y | f) of all rows."""
    for n in range(len(scores)):
        out[n] = log_margin(loss, scores[n], targets[n])
