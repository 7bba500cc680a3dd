"""Labels that a user gives for rows: which are label sets, and what is missing of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from .reading import missing_in


def missing_labels(labels: Any) -> Any:
    """Where labels [...] are NaN; a sparse matrix misses none."""
    return np.zeros(labels.shape, dtype=bool) if scipy.sparse.issparse(labels) else missing_in(labels)


def is_matrix(labels: Any, classes: ArrayLike | None) -> bool:
    """Whether labels [N] or [N, L] are label sets: they have columns, or one of 0, 1 and what is missing alone, without
    the `classes` of a vector."""
    if labels.ndim == 1 or labels.shape[1] > 1 or classes is not None:
        return labels.ndim == 2 and bool(labels.shape[1] > 1)
    values = labels.data if scipy.sparse.issparse(labels) else labels
    return bool((np.isin(values, (-1, 0, 1)) | missing_labels(values)).all())


def with_holes(labels: Any) -> Any:
    """Label sets [N, L] with NaN where they have -1, which sparse ones have not; ValueError on -1 and 1 alone."""
    if scipy.sparse.issparse(labels) or not (missing := labels == -1).any():
        return labels
    if (labels == 1).any() and not (labels == 0).any():
        raise ValueError(
            "y has -1 and 1 but no 0, and -1 is a label that is missing. If it is one that a row does not have, pass "
            "(y > 0).astype(int); else NaN in its place."
        )
    return np.where(missing, np.nan, labels)
