"""Checks at the door: what arrays a model or a posterior accepts, with messages that tell the mend."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["as_features", "as_labels", "as_sequences", "as_targets", "like"]


def as_features(X: Any, *, num_features: int | None = None, min_rows: int = 1, like: Tensor | None = None) -> Tensor:
    """X as a finite floating-point tensor [N, D]; numpy-like input is converted, a tensor keeps its device.

    Parameters
    ----------
    num_features : the width that a fitted model expects, if any
    min_rows : the fewest rows accepted
    like : a tensor of the fitted model; a *tensor* X must match its device and dtype, other input is converted

    Raises
    ------
    ValueError    naming what was found and what is accepted.
    """
    given_tensor = isinstance(X, Tensor)
    try:
        X = X if given_tensor else torch.as_tensor(np.require(X, requirements=("C", "W")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"X cannot be read as an array of numbers: {error}.") from None
    if X.is_complex():
        raise ValueError("X has complex values. Complex data not supported: pass real numbers.")
    if X.ndim != 2:
        raise ValueError(
            f"X has shape {tuple(X.shape)}; expected [N, D]. Reshape your data: X.reshape(-1, 1) for a single feature, "
            "X.reshape(1, -1) for a single row."
        )
    if not X.is_floating_point():
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
        raise ValueError(f"Found array with 0 feature(s) (shape={tuple(X.shape)}) while a minimum of 1 is required.")
    if num_features is not None and X.shape[1] != num_features:
        raise ValueError(
            f"X has {X.shape[1]} features, but the model was fitted with {num_features} features as input."
        )
    if not torch.isfinite(X).all():
        row, column = torch.nonzero(~torch.isfinite(X))[0].tolist()
        raise ValueError(
            f"Input X contains NaN or inf: the first one, {X[row, column].item()}, is in row {row}, column {column}. "
            "Drop or impute such rows."
        )
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
    ValueError    naming what was found and what is accepted.
    """
    given = X if isinstance(X, Tensor) else np.asarray(X)
    observed = torch.ones(len(given) if given.ndim else 0, dtype=torch.bool)
    if given.ndim == 2 and (given.is_floating_point() if isinstance(given, Tensor) else given.dtype.kind == "f"):
        missing = given.isnan() if isinstance(given, Tensor) else torch.from_numpy(np.isnan(given))
        observed = ~missing.all(1)
        if partly := torch.nonzero(missing.any(1) & observed).flatten().tolist():
            raise ValueError(
                f"X has rows with some values missing: {partly[:5]}. A missing step is a row of NaN alone; "
                "impute the others, or set the whole row to NaN."
            )
        if not observed.all():
            given = given.clone() if isinstance(given, Tensor) else given.copy()
            given[missing if isinstance(given, Tensor) else missing.numpy()] = 0.0
    rows = as_features(given, num_features=num_features, like=like)
    observed = observed.to(rows.device)
    if int(observed.sum()) < min_rows:
        raise ValueError(f"X has {int(observed.sum())} observed rows; expected at least {min_rows}.")
    if lengths is None:
        return rows, [len(rows)], observed
    sizes = torch.as_tensor(np.asarray(lengths) if not isinstance(lengths, Tensor) else lengths)
    if sizes.ndim != 1 or sizes.is_floating_point() or not len(sizes) or bool((sizes < 1).any()):
        raise ValueError(f"lengths is {lengths!r}; expected whole numbers of at least 1, one for each sequence.")
    if int(sizes.sum()) != len(rows):
        raise ValueError(f"lengths add up to {int(sizes.sum())}, but X has {len(rows)} rows.")
    return rows, sizes.tolist(), observed


def as_labels(y: Any, X: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor]:
    """(class indices [N], sorted classes [L]) from integer labels y [N].

    Raises
    ------
    ValueError    on a wrong shape, a non-integer label, fewer than two classes, or a label that is not in `classes`.
    """
    y = _as_vector(y, X)
    if y.is_floating_point():
        if not torch.equal(y, y.round()):
            raise ValueError(
                f"Unknown label type: y has the value {y[y != y.round()][0].item()}; classes must be integers. "
                "For real targets use a regression loss such as EpsilonInsensitive."
            )
        y = y.long()
    if classes is None:
        classes = torch.unique(y)
    if len(classes) < 2:
        raise ValueError(f"y has only one class ({classes.tolist()}); a classifier needs at least two.")
    index = torch.searchsorted(classes, y).clamp(max=len(classes) - 1)
    if extra := sorted(set(y[classes[index] != y].tolist())):
        raise ValueError(
            f"y has labels {extra} that were not seen in fit (known: {classes.tolist()}). "
            "Drop those rows, or fit again with them."
        )
    return index, classes


def as_targets(y: Any, X: Tensor) -> Tensor:
    """Real targets y [N] in the dtype of X."""
    return _as_vector(y, X).to(X.dtype)


def like(result: Tensor, given: Any) -> Any:
    """The result in the kind of array that the user gave: a tensor for a tensor, else a numpy array."""
    return result if isinstance(given, Tensor) else result.detach().cpu().numpy()


def _as_vector(y: Any, X: Tensor) -> Tensor:
    try:
        given_tensor = isinstance(y, Tensor)
        y = y if given_tensor else torch.as_tensor(np.require(y, requirements="W"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"y cannot be read as numbers ({error}). Use an estimator for text labels.") from None
    if y.ndim != 1 or len(y) != len(X):
        hint = " Use y.ravel()." if y.ndim == 2 and y.shape[1] == 1 else ""
        raise ValueError(f"y has shape {tuple(y.shape)}; expected [{len(X)}], one target for each row of X.{hint}")
    if given_tensor and y.device != X.device:
        raise ValueError(f"y is on {y.device}, X on {X.device}. Move y there with y.to({str(X.device)!r}).")
    if y.is_floating_point() and not torch.isfinite(y).all():
        raise ValueError("Input y contains NaN or inf. Drop those rows.")
    return y.to(X.device).contiguous()
