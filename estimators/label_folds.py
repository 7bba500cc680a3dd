"""Folds for calibration of an estimator's probabilities, and folds of rows with label sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..models.domains import Whole, read
from .rows import deal, sort_rows


def deal_rows(X: Any, targets: Any, number: int) -> NDArray[np.int64]:
    """The rows of X [N, D], with labels [N, C] of 0 and 1, NaN where missing, that the folds hold out: 0 and 1 [N, F].

    Rows are dealt out in the order of the rarest label that they have, so that each label is spread evenly.
    """
    ordered = sort_rows(X, targets, None, merge=False)
    labels: Any = ordered.y
    rows, columns = (labels == 1).nonzero()
    C = labels.shape[1]
    rank = np.empty(C, dtype=np.int64)
    rank[np.bincount(columns, minlength=C).argsort(kind="stable")] = np.arange(C)
    rarest = np.full(labels.shape[0], C)
    np.minimum.at(rarest, rows, rank[columns])
    return deal(ordered, rarest, number)


def number_of_folds(name: str, given: Any, auto: int | None) -> int | None:
    """The number of folds that a user asks for: `auto` for "auto", None for no folds. ValueError on anything else."""
    if isinstance(given, str) and given == "auto":
        return auto
    if isinstance(given, str):
        raise ValueError(f'{name} is {given!r}; it must be "auto", an integer of at least 2, or None.')
    found: int | None = read(name, given, Whole(2), optional=True)
    return found


def can_be_fitted(sizes: NDArray[np.int64]) -> bool:
    """Whether there are at least two folds, of so many rows each [F], and at least two rows outside of each to fit."""
    return len(sizes) > 1 and bool((sizes.sum() - sizes >= 2).all())


def taught(targets: Any, seen: Any) -> NDArray[Any]:
    """Dense labels [n, C] of a held-out fold, with NaN for labels that the fit to `seen` [m, C] had in all or no rows.

    Such a fit cannot tell how well a fit to all rows predicts these labels.
    """
    if scipy.sparse.issparse(targets):
        targets, known = targets.toarray(), seen.shape[0]  # a sparse matrix misses none
    else:
        known = (~np.isnan(seen)).sum(0)
    present = np.asarray((seen == 1).sum(0)).ravel()
    return np.where((present > 0) & (present < known), targets, np.nan)
