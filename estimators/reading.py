"""What users pass to estimators, read as scikit-learn does, in sentences that name the argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
from sklearn.utils import check_array
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor

from ..models.numbers import as_tensor, has_text, require_unmasked

T = TypeVar("T")


def read_rows(estimator: Any, X: Any, **checks: Any) -> Any:
    """The rows [N, D] of what a user passes, an array or a sparse matrix, by `validate_data` with these checks.

    Raises
    ------
    ValueError, TypeError    naming X, on whatever holds no numbers; on text too, even of digits ("1_000" would be a
                             thousand).
    """
    X = array_like("X", X)
    if not scipy.sparse.issparse(X) and has_text(named("X", lambda: np.asarray(X))):
        raise ValueError("X has text; expected numbers. Encode it, or convert columns of digits with X.astype(float).")
    # torch shares memory with the array, which it needs to be writable
    return named("X", lambda: validate_data(estimator, X, force_writeable=True, **checks))


def read_both(estimator: Any, read_X: Callable[[], Any], y: Any, **checks: Any) -> tuple[Any, Any]:
    """The rows [N, D] that `read_X` returns, and targets y [N] of theirs, by `validate_data` with these checks."""
    y = array_like("y", y)
    # before the rows: it forgets the names of their columns
    targets = named("y", lambda: validate_data(estimator, y=y, **checks))
    rows = read_X()
    if checks.get("y_numeric") and targets.dtype.kind not in "biuf":
        raise ValueError(f"y has values of type {targets.dtype}; expected numbers.")
    named("X and y", lambda: check_consistent_length(rows, targets))
    return rows, targets


def read_targets(estimator: object, y: Any, **checks: Any) -> Any:
    """Targets [N] or [N, M] that a user passes, NaN where one is missing, by `check_array` with these checks."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    checks |= {"ensure_2d": False, "ensure_all_finite": "allow-nan", "input_name": "y"}
    return named("y", lambda: check_array(array_like("y", y), **checks))


def array_like(name: str, values: Any) -> Any:
    """The argument in a form that numpy reads: a tensor as an array, without its graph; others as they are.

    Raises
    ------
    ValueError    on a tensor that holds no numbers, is sparse, or is on a GPU, and on masked and complex arrays.
    """
    if isinstance(values, Tensor):
        if values.device.type not in {"cpu", "meta"}:
            raise ValueError(f"{name} is on {values.device}; estimators take arrays of the CPU: pass {name}.cpu().")
        return as_tensor(name, values).numpy()
    require_unmasked(name, values)
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":
        raise ValueError(f"{name} has complex values. Complex data not supported: pass real numbers.")
    return values


def named(name: str, read: Callable[[], T]) -> T:
    """What `read` returns; an error of its that does not name the argument, of the same class with the name."""
    try:
        return read()
    except (TypeError, ValueError, OverflowError) as error:
        text = str(error)
        if re.search(rf"\b{name}\b", text):
            raise
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {text}") from None
