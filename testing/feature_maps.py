"""Conformance of a feature map: what fits, files and predictions take for granted."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ..models.arrays import as_features
from ..models.feature_maps import FeatureMap
from .requirements import named_errors, require, require_close


def check_feature_map(feature_map: FeatureMap, X: Any) -> None:
    """Check a map on rows X [N, D], N >= 4.

    `resolve` returns a copy that keeps all it found in fields, which files and copies keep, and that another `resolve`
    leaves as it is. Features have the dtype of X and are those of each row alone, as many for any rows. Equal weights
    change nothing.

    Raises
    ------
    AssertionError    naming the method and the property that fails.

    Examples
    --------
    >>> from regbayes.models import PrincipalDirections
    >>> rows = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 3.0], [5.0, 0.0]])
    >>> check_feature_map(PrincipalDirections(num_directions=1), rows)
    """
    X = as_features(X).double()
    with named_errors(feature_map):
        _check_resolve(feature_map, X)
        resolved = feature_map.resolve(X)
        features = resolved(X)
        alone = torch.cat([resolved(row) for row in X.split(1)])
        _require_equal(alone, features, "project", "gives a row alone other features than among others")
        feature_map.resolve(X.float())(X.float())  # raises on another dtype
        if "weights" in inspect.signature(feature_map.resolve).parameters:
            counted = feature_map.resolve(X, X.new_full((len(X),), 3.0))(X)
            _require_equal(counted, features, "resolve", "finds something else if all rows have the weight 3")


def _check_resolve(feature_map: FeatureMap, X: Tensor) -> None:
    before = dict(vars(feature_map))
    resolved = feature_map.resolve(X)
    changed = [name for name, value in vars(feature_map).items() if before.get(name) is not value]
    require(not changed, "resolve", f"changed {', '.join(changed)} in place; expected a copy, self.replace(...)")
    features = resolved.project(X)
    kept = type(resolved)(**resolved.get_params(deep=False))
    try:
        found = kept.project(X)
    except Exception:  # without what it needs a map may raise anything
        found = features[:0]
    _require_equal(found, features, "resolve", "stores something outside of the fields, which files would lose")
    again = resolved.resolve(X[: len(X) // 2]).project(X)
    _require_equal(again, features, "resolve", "changes a map that is resolved")


def _require_equal(found: Tensor, expected: Tensor, method: str, message: str) -> None:
    require(found.shape == expected.shape, method, message)
    require_close(found, expected, method, message)
