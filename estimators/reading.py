"""Arguments of estimators, read as scikit-learn reads them; error messages are sentences that name the argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor

from ..models.domains import shown
from ..models.numbers import as_tensor, has_text, in_words, require_unmasked
from .streams import is_source

T = TypeVar("T")


def read_rows(estimator: Any, X: Any, **checks: Any) -> Any:
    """The rows [N, D] of what a user passes, an array or a sparse matrix, by `validate_data` with these checks.

    Raises
    ------
    ValueError, TypeError    naming X, and the columns of a frame, on whatever holds no numbers; on text too, even of
                             digits ("1_000" would be a thousand); on a file, which `fit` alone may take.
    """
    if is_source(X):
        raise ValueError(
            "X is a file or another source of rows; expected rows [N, D] in memory. For all rows of a source take "
            "map_rows of regbayes.inference: map_rows(model.predict, rows_of(path, columns=[...]))."
        )
    if type(X).__name__ == "LazyFrame":
        raise TypeError("X is a LazyFrame, whose rows are not yet computed: pass X.collect().")
    X = array_like("X", X)
    if not scipy.sparse.issparse(X):
        values = named("X", lambda: np.asarray(X))
        # dates and durations alone would pass as nanoseconds, and polars makes numbers of them beside numbers
        if values.dtype.kind in "OmM" or hasattr(X, "get_columns"):
            _require_numbers(X)
        if values.dtype.kind in "mM":
            raise TypeError(f"X has values of type {values.dtype}; expected numbers. Turn dates into numbers.")
        if has_text(values):
            raise ValueError(
                "X has text; expected numbers. Encode it, or convert columns of digits with X.astype(float)."
            )
    # torch shares memory with the array, which it needs to be writable
    return named("X", lambda: validate_data(estimator, X, force_writeable=True, **checks))


def read_both(estimator: Any, read_X: Callable[[], Any], y: Any, **checks: Any) -> tuple[Any, Any]:
    """The rows [N, D] that `read_X` returns, and targets y [N] of theirs, by `validate_data` with these checks."""
    if isinstance(y, str):
        raise ValueError(f"y is the text {y!r}; expected an array. Only fit(path, y=...) takes the name of a column.")
    y = array_like("y", y)
    _require_known(estimator, y, "target" if checks.get("y_numeric") else "label")
    if checks.get("y_numeric"):
        y = _numbers_of(y)
    # before the rows: it forgets the names of their columns
    targets = named("y", lambda: validate_data(estimator, y=y, **checks))
    rows = read_X()
    if checks.get("y_numeric") and targets.dtype.kind not in "biuf":
        raise ValueError(f"y has values of type {targets.dtype}; expected numbers.")
    named("X and y", lambda: check_consistent_length(rows, targets))
    return rows, targets


def read_targets(estimator: object, y: Any, **checks: Any) -> Any:
    """Targets [N] or [N, M] that a user passes, NaN where one is missing (None, NA), by `check_array` with these
    checks."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    checks |= {"ensure_2d": False, "ensure_all_finite": "allow-nan", "input_name": "y"}
    found = _with_nan(array_like("y", y))
    if checks.get("dtype") is not None:
        found = _numbers_of(found)
    return named("y", lambda: check_array(found, **checks))


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


def read_classes(classes: Any) -> NDArray[Any]:
    """The sorted labels [L] of the classes that a user names.

    Raises
    ------
    ValueError    unless they are a list or an array [n] of at least two, of one type, none of them missing.
    """
    given = array_like("classes", classes)
    labels = named("classes", lambda: np.asarray(given))
    try:
        found: NDArray[Any] = np.unique(labels if labels.ndim == 1 and not missing_in(labels).any() else [])
    except TypeError:  # text beside numbers
        found = labels[:0]
    if len(found) < 2:
        raise ValueError(
            f"classes is {shown(classes)}; expected a list of labels of one type, none of them missing: a classifier "
            "needs at least two."
        )
    return found


def require_labels(y: Any) -> None:
    """Raise ValueError unless y [N] or [N, L], none of it missing, has labels, of one type."""
    if y.dtype.kind == "O":
        try:
            np.unique(y)
        except TypeError:  # text beside numbers
            types = " and ".join(sorted({type(entry).__name__ for entry in y.flat}))
            raise ValueError(f"y has labels of the types {types}; expected one: text, or numbers.") from None
    named("y", lambda: check_classification_targets(y))


def require_classes(classes: Any, known: NDArray[Any]) -> None:
    """Raise ValueError if a later batch names other classes than those of the fit [L]; None names none."""
    if classes is not None and not np.array_equal(read_classes(classes), known):
        raise ValueError(
            f"classes is {shown(classes)}; the fit has the classes {shown(known.tolist())}. Pass these, or "
            "fit again with all classes."
        )


def missing_in(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where entries [...] of any kind are missing: NaN, NaT, None or NA."""
    if values.dtype.kind == "O":
        found = np.fromiter(map(_is_missing, values.flat), bool, values.size)
        return found.reshape(values.shape)
    if values.dtype.kind in "fcmM":
        return np.asarray(np.isnan(values))
    return np.zeros(values.shape, dtype=bool)


def _is_missing(entry: Any) -> bool:
    try:
        return entry is None or bool(entry != entry)
    except TypeError:  # NA of pandas is neither true nor false
        return True
    except ValueError:  # an array
        return False


def _with_nan(y: Any) -> Any:
    """Targets with NaN for what is missing of objects, numbers as such; others as they are."""
    if scipy.sparse.issparse(y):
        return y
    values = np.asarray(y)
    if values.dtype.kind != "O" or not (missing := missing_in(values)).any():
        return y
    filled = np.where(missing, np.nan, values)
    return filled if has_text(filled) else filled.astype(np.float64)


def _numbers_of(y: Any) -> Any:
    """Targets [...] whose objects are numbers; ValueError on text, even of digits ("1_000" would be a thousand)."""
    values = named("y", lambda: np.asarray(y))
    if has_text(values):
        raise ValueError("y has text; expected numbers. Convert digits with y.astype(float).")
    return named("y", lambda: values.astype(np.float64)) if values.dtype.kind == "O" else y


def _require_known(estimator: object, y: Any, what: str) -> None:
    """Raise ValueError if a label or target of y [N] is missing."""
    values = named("y", lambda: np.asarray(y))
    if y is None or not values.ndim:
        return
    rows = np.flatnonzero(missing_in(values).any(tuple(range(1, values.ndim))))
    if rows.size:
        raise ValueError(
            f"y has no {what} in {rows.size} of {len(values)} rows, the first of them row {rows[0]}; "
            f"{type(estimator).__name__} needs one in each. Drop these rows, or call a backend, such as "
            "SVI().fit(model, X, y): it takes a y of numbers with NaN where one is missing."
        )


def _require_numbers(X: Any) -> None:
    """Raise ValueError (of text) or TypeError, naming columns, if X is a frame and some of them are not numeric."""
    wrong, text = [], False
    for name, column in _columns(X):
        if getattr(column.dtype, "kind", "O") not in "biuf":
            values = np.asarray(column)
            is_text = has_text(values)
            if is_text or not _is_numeric(values):
                wrong.append(f"{name!r} ({column.dtype})")
                text |= is_text
    if wrong:
        more = f" and {len(wrong) - _MOST_NAMES} more" if len(wrong) > _MOST_NAMES else ""
        raise (ValueError if text else TypeError)(
            f"X has columns that are not numeric: {', '.join(wrong[:_MOST_NAMES])}{more}; expected numbers. Drop them, "
            "encode or convert text, turn dates into numbers, or fill in what is missing."
        )


def _columns(X: Any) -> Iterable[tuple[Any, Any]]:
    """The columns of a frame, of pandas or polars, by name; none of other tables."""
    if not (hasattr(X, "columns") and hasattr(X, "dtypes")):
        return ()
    return X.items() if hasattr(X, "items") else ((name, X[name]) for name in X.columns)


def _is_numeric(values: NDArray[Any]) -> bool:
    """Whether entries [N] that are no text are numbers, NaN and None included."""
    try:
        return values.dtype.kind in "biuf" or (values.dtype.kind == "O" and values.astype(np.float64).ndim == 1)
    except (TypeError, ValueError, OverflowError):
        return False


def named(name: str, read: Callable[[], T]) -> T:
    """The result of `read`; an error that does not name the argument is raised again with its name."""
    try:
        return read()
    except (TypeError, ValueError, OverflowError) as error:
        text = in_words(error)
        if re.search(rf"\b{name}\b", text):
            raise
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {text}") from None


_MOST_NAMES = 4
