"""Tells label sets from classes in the labels that a user gives, and finds the missing ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from .reading import missing_in


def missing_labels(labels: Any) -> Any:
    """Where labels [...] are NaN; a sparse matrix has no missing labels."""
    return np.zeros(labels.shape, dtype=bool) if scipy.sparse.issparse(labels) else missing_in(labels)


def is_matrix(labels: Any, classes: ArrayLike | None) -> bool:
    """Whether labels [N] or [N, L] are label sets and not a vector of classes.

    A matrix of several columns is. A matrix of one column is if it has only 0, 1 and missing labels, and the user names
    no `classes`.
    """
    if labels.ndim == 1 or labels.shape[1] > 1 or classes is not None:
        return labels.ndim == 2 and bool(labels.shape[1] > 1)
    values = labels.data if scipy.sparse.issparse(labels) else labels
    return bool((np.isin(values, (-1, 0, 1)) | missing_labels(values)).all())


def with_holes(labels: Any) -> Any:
    """Replace -1 by NaN in dense label sets [N, L]; ValueError if there is -1 and 1 but no 0."""
    if scipy.sparse.issparse(labels) or not (missing := labels == -1).any():
        return labels
    if (labels == 1).any() and not (labels == 0).any():
        raise ValueError(
            "y has -1 and 1 but no 0, and -1 is a label that is missing. If it is one that a row does not have, pass "
            "(y > 0).astype(int); else NaN in its place."
        )
    return np.where(missing, np.nan, labels)
