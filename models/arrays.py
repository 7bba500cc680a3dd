"""Validation of the arrays that a user passes to a model or a posterior.

Each check raises a ValueError that names what was found, what is accepted, and how to mend it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from .domains import LARGEST, shown
from .numbers import as_tensor, require_readable
from .sparse import Rows, SparseRows, first_entry
from .sums import all_count, all_values


def as_features(
    X: Any,
    *,
    num_features: int | None = None,
    min_rows: int = 1,
    like: Tensor | None = None,
    missing: bool = False,
) -> Rows:
    """X as a finite floating-point tensor [N, D]; numpy-like input is converted, a tensor keeps its device.

    A scipy matrix in any format and a torch tensor in CSR or COO stay sparse: they become `SparseRows`, which act as a
    tensor where counts or bits are modelled.

    Parameters
    ----------
    num_features : the width that a fitted model expects, if any
    min_rows : the fewest rows accepted
    like : a tensor of the fitted model; a *tensor* X must match its device and dtype, other input is converted
    missing : whether entries may be NaN, missing
    """
    return _admit(read_rows(X), isinstance(X, Tensor | SparseRows), num_features, min_rows, like, missing)


def as_incomplete(
    X: Any, *, num_features: int | None = None, min_rows: int = 1, like: Tensor | None = None
) -> tuple[Rows, Tensor | None]:
    """X [N, D] as by `as_features`, but NaN is a missing entry: it becomes 0, and observed [N, D] has 0 there.

    observed is None where nothing is missing.
    """
    rows = read_rows(X)
    missing = rows.isnan() if isinstance(rows, Tensor) and rows.is_floating_point() else None
    if missing is None or not missing.any():
        return _admit(rows, isinstance(X, Tensor | SparseRows), num_features, min_rows, like), None
    filled = _admit(rows.masked_fill(missing, 0.0), isinstance(X, Tensor), num_features, min_rows, like)
    return filled, (~missing).to(filled)


def _admit(
    X: Rows, given_tensor: bool, num_features: int | None, min_rows: int, like: Tensor | None, missing: bool = False
) -> Rows:
    if not X.dtype.is_floating_point:
        X = X.to(torch.get_default_dtype() if given_tensor else torch.float64)
    if like is not None:
        if given_tensor and X.device != like.device:
            raise ValueError(
                f"X is on {X.device}, the model on {like.device}. Move X there with X.to({str(like.device)!r})."
            )
        if given_tensor and X.dtype != like.dtype:
            raise ValueError(f"X has dtype {X.dtype}, the model {like.dtype}. Convert X with X.to({like.dtype}).")
        X = X.to(like)
    if X.shape[0] < min_rows:
        raise ValueError(
            f"X has n_samples={X.shape[0]}; expected at least {min_rows} (a minimum of {min_rows} is required)."
        )
    if X.shape[1] == 0:
        raise ValueError(
            f"X has no columns: Found array with 0 feature(s) (shape={tuple(X.shape)}) while a minimum of 1 is "
            "required."
        )
    if num_features is not None and X.shape[1] != num_features:
        raise ValueError(
            f"X has {X.shape[1]} features, but the model was fitted with {num_features} features as input "
            f"(num_features)."
        )
    if isinstance(X, SparseRows) or not X.requires_grad:  # an engine that tries rows out may leave the reals
        require_finite(X, to_fit=like is None, missing=missing)
    return X if like is None else _within_reach(X)


def require_finite(X: Rows, *, to_fit: bool = False, missing: bool = False) -> None:
    """ValueError on inf, NaN unless it may be `missing` and, in rows to fit, numbers whose squares would overflow."""
    limit = _largest(X) if to_fit else torch.finfo(X.dtype).max
    if _is_within(X, limit):
        return
    if not (found := first_entry(X, lambda x: ~(x.abs() <= limit) & ~(x.isnan() & missing))):
        return
    value, row, column = found
    if math.isfinite(value):
        raise ValueError(
            f"X has the value {value:g} in row {row}, column {column}; expected at most {limit:g}. Scale X down."
        )
    raise ValueError(
        f"Input X contains NaN or inf: the first one, {value}, is in row {row}, column {column}. "
        "Drop or impute such rows."
    )


def _within_reach(X: Rows) -> Rows:
    """Rows [N, D] with every row that has too large entries scaled down; its nearest component stays the same."""
    limit = _largest(X)
    if isinstance(X, SparseRows) or _is_within(X, limit):
        return X
    size = X.nan_to_num().abs().amax(1, keepdim=True)
    return X if (size <= limit).all() else torch.where(size > limit, X / size * limit, X)


def _is_within(X: Rows, limit: float) -> bool:
    """Whether no entry of X [N, D] is larger than `limit` in size, or NaN; in one pass and without copies."""
    entries = X if isinstance(X, Tensor) else X.values
    if not entries.numel():
        return True
    low, high = torch.aminmax(entries)
    return bool((low >= -limit) & (high <= limit))


def _largest(X: Rows) -> float:
    """The largest size of a number whose fourth power is still finite in the dtype of X [N, D]."""
    return float(torch.finfo(X.dtype).max ** 0.25)


def _is_sparse(X: Any) -> bool:
    if isinstance(X, Tensor):
        return X.layout != torch.strided
    return isinstance(X, SparseRows) or scipy.sparse.issparse(X)


def read_rows(X: Any, name: str = "X") -> Rows:
    """X [N, D] of any dtype, as a tensor or as `SparseRows`; errors call the argument `name`."""
    if isinstance(X, Tensor) and X.layout not in {torch.strided, torch.sparse_csr, torch.sparse_coo}:
        raise ValueError(
            f"{name} has layout {X.layout}; accepted are CSR and COO. Convert it with {name}.to_sparse_csr()."
        )
    X = _as_sparse(X, name) if _is_sparse(X) else as_tensor(name, X)
    if X.ndim != 2:
        remedy = f"{name}.reshape(-1, 1) for a single feature, {name}.reshape(1, -1) for a single row"
        if X.ndim > 2:
            remedy = f"{name}.reshape(len({name}), -1) for a row of each array"
        raise ValueError(f"{name} has shape {tuple(X.shape)}; expected [N, D]. Reshape your data: {remedy}.")
    return SparseRows.of(X) if _is_sparse(X) else X


def _as_sparse(X: Any, name: str) -> Any:
    """A sparse matrix [N, D] whose dtype torch can compute with."""
    if isinstance(X, Tensor):
        require_readable(name, X)
    elif not isinstance(X, SparseRows):
        if X.dtype.kind not in "biuf":
            raise ValueError(f"{name} has values of type {X.dtype}; pass real numbers.")
        return X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)
    if X.dtype.is_complex:
        raise ValueError(f"{name} has complex values. Complex data not supported: pass real numbers.")
    return X


def as_sequences(
    X: Any, lengths: Any = None, *, num_features: int | None = None, min_rows: int = 1, like: Tensor | None = None
) -> tuple[Tensor, list[int], Tensor]:
    """(rows [N, D] with 0 where missing, lengths of the sequences, observed [N]) of sequences stacked in X.

    A row that is all NaN is a missing observation.

    Parameters
    ----------
    lengths : rows of each sequence, one after another, as in hmmlearn; None: one sequence
    num_features, like : as in `as_features`
    min_rows : the fewest observed rows accepted

    Raises
    ------
    ValueError    on sequences that are not stacked, sparse rows, rows of which a part is missing, and `lengths` that
                  are not those of all rows.
    """
    require_stacked(X)
    if _is_sparse(X):
        raise ValueError("X is sparse; models of sequences need dense rows: pass X.toarray().")
    rows = read_rows(X)
    missing = rows.isnan()
    observed = ~missing.all(1)
    if partly := torch.nonzero(missing.any(1) & observed).flatten().tolist():
        raise ValueError(
            f"X has rows with some values missing: {partly[:5]}. A missing step is a row of NaN alone; "
            "impute the others, or set the whole row to NaN."
        )
    rows = rows if observed.all() else rows.masked_fill(missing, 0.0)
    rows = _admit(rows, isinstance(X, Tensor), num_features, 1, like)
    observed = observed.to(rows.device)
    if int(observed.sum()) < min_rows:
        raise ValueError(f"X has {int(observed.sum())} observed rows; expected at least {min_rows}.")
    if lengths is None:
        return rows, [len(rows)], observed
    sizes = as_tensor("lengths", lengths)
    whole = not sizes.is_floating_point() and sizes.dtype != torch.bool
    if sizes.ndim != 1 or not whole or not len(sizes) or bool((sizes < 1).any()):
        raise ValueError(f"lengths is {shown(lengths)}; expected whole numbers of at least 1, one for each sequence.")
    if int(sizes.sum()) != len(rows):
        raise ValueError(f"lengths add up to {int(sizes.sum())}, but X has {len(rows)} rows.")
    return rows, sizes.tolist(), observed


def require_stacked(X: Any) -> None:
    """Raise ValueError if X is a list of sequences [n, D], or an array [S, n, D], instead of stacked rows."""
    apart = list(X) if isinstance(X, list | tuple) or getattr(X, "ndim", 2) == 3 else []
    if apart and all(map(_is_table, apart)):
        raise ValueError(
            f"X has {len(apart)} sequences one by one; expected the steps of all, stacked in one array [N, D]: "
            f"np.concatenate(X), with lengths={shown([len(steps) for steps in apart])}."
        )


def _is_table(steps: Any) -> bool:
    """Whether `steps` is a table of rows: a two-dimensional array, or a list of rows."""
    if isinstance(steps, list | tuple):
        return any(isinstance(row, list | tuple | np.ndarray | Tensor) for row in steps)
    return getattr(steps, "ndim", None) == 2


def read_labels(y: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor]:
    """(class indices [...], sorted classes [L], at least two) from integer labels y [...], each in `classes` if given.

    NaN is a missing label, and so is -1 unless it is a class: one of `classes`, or with +1 the only label, or one of
    several negative ones. Its index is -1.
    """
    known = ~y.isnan()
    if y.is_floating_point():
        y = torch.where(known, y, 0)
        if not torch.equal(y, y.round()):
            raise ValueError(
                f"Unknown label type: y has the value {y[y != y.round()][0].item()}; classes must be integers. "
                "For real targets use a regression loss such as EpsilonInsensitive."
            )
        if (y.abs() > 2**53).any():
            raise ValueError(
                f"y has the label {y.flatten()[y.abs().argmax()].item():g}; expected integers of at most 2^53 in size."
            )
    y = y.long()
    if classes is None:
        classes = all_values(y[known])
        if classes.tolist() != [-1, 1] and int((classes < 0).sum()) == 1:
            classes = classes[classes != -1]
    if -1 not in classes.tolist():
        known = known & (y != -1)
    if not len(classes):
        raise ValueError("y has no label: all of them are missing (NaN, or -1). A classifier needs two classes.")
    if len(classes) < 2:
        raise ValueError(f"y has only one class ({classes.tolist()}); a classifier needs at least two.")
    index = torch.searchsorted(classes, y).clamp(max=len(classes) - 1)
    if extra := sorted(set(y[known & (classes[index] != y)].tolist())):
        raise ValueError(
            f"y has labels {extra} that were not seen in fit (known: {classes.tolist()}). "
            "Drop those rows, or fit again with them among the classes."
        )
    return torch.where(known, index, -1), classes


def read_targets(y: Tensor, X: Rows, *, min_known: int = 1) -> Tensor:
    """Real targets y [...] in the dtype of X, not too large; NaN is a missing target, and `min_known` must be known."""
    y = y.to(X.dtype)
    if (wrong := y.abs() > _largest(X)).any():
        raise ValueError(f"y has the value {y[wrong][0].item():g}, whose square overflows. Scale y down.")
    if all_count(int((~y.isnan()).sum())) < min_known:
        raise ValueError("y has no target that is not NaN. Give some, or fit a model without targets.")
    return y


def as_weights(weights: Any, X: Rows, name: str = "sample_weight") -> Tensor:
    """The weight of each row of X, or of its loss, [N] in double precision: finite, at least 0, and not all 0."""
    found = as_tensor(name, weights)
    if found.shape != (len(X),) or found.is_complex():
        raise ValueError(
            f"{name} has shape {tuple(found.shape)} and dtype {found.dtype}; expected [{len(X)}], one real number for "
            "each row of X."
        )
    found = found.to(X.device, torch.float64)
    wrong = torch.nonzero(~((found >= 0) & (found <= LARGEST))).flatten()
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"{name} is {float(found[row])} in row {row}; expected finite numbers from 0, which leaves the row out, to "
            f"{LARGEST:g}."
        )
    if not found.any():
        raise ValueError(f"{name} is zero in all rows. Give some rows a positive weight, or leave it out.")
    return found


def like(result: Tensor, given: Any) -> Any:
    """The result [...] in the kind of array that the user gave: a tensor for a tensor, else a numpy array."""
    return result if isinstance(given, Tensor | SparseRows) else result.detach().cpu().numpy()


def tensor_of(result: Any) -> Tensor:
    """What `like` returned [...], as a tensor."""
    return result if isinstance(result, Tensor) else torch.from_numpy(result)


def as_vector(y: Any, X: Rows) -> Tensor:
    """Targets y [N] of any dtype, one for each row of X; finite, or NaN where missing."""
    given_tensor = isinstance(y, Tensor)
    y = as_tensor("y", y, " Use an estimator for text labels.")
    if y.ndim != 1 or len(y) != len(X):
        hint = ""
        if y.ndim == 2 and len(y) == len(X):
            hint = " Use y.ravel()." if y.shape[1] == 1 else " BNMC takes sets [N, L], multi-task models [N, M]."
        raise ValueError(f"y has shape {tuple(y.shape)}; expected [{len(X)}], one target for each row of X.{hint}")
    return _beside(y, X, given_tensor)


def as_target_matrix(Y: Any, X: Rows, num_tasks: int | None = None, size: str = "num_tasks") -> Tensor:
    """Targets Y [N, M] of any dtype, a column for each of M tasks; finite, or NaN where a row has no target in a task.

    `size` is the name of the model's argument that gives M: of tasks, or of labels.
    """
    columns, given_tensor = size.removeprefix("num_"), isinstance(Y, Tensor)
    Y = as_tensor("Y", Y, " Give a number for each label.")
    if Y.ndim != 2 or len(Y) != len(X) or not Y.shape[1]:
        alone = Y.ndim == 1 and columns == "tasks"
        hint = " Use by_task(y, tasks), or y.reshape(-1, 1) for a single task." if alone else ""
        raise ValueError(
            f"Y has shape {tuple(Y.shape)}; expected [{len(X)}, {num_tasks or 'M'}], a row for each row of X and a "
            f"column for each of {num_tasks or 'M'} {columns}, NaN where a row has no target.{hint}"
        )
    if num_tasks is not None and Y.shape[1] != num_tasks:
        raise ValueError(f"Y has {Y.shape[1]} columns, but the model has {num_tasks} {columns} ({size}).")
    return _beside(Y, X, given_tensor)


def _beside(y: Tensor, X: Rows, given_tensor: bool) -> Tensor:
    """Targets [N, ...] on the device of X [N, D], none of them infinite."""
    if given_tensor and y.device != X.device:
        raise ValueError(f"y is on {y.device}, X on {X.device}. Move y there with y.to({str(X.device)!r}).")
    if y.isinf().any():
        raise ValueError("Input y contains inf. Drop those rows, or set a missing target to NaN.")
    return y.to(X.device).contiguous()
