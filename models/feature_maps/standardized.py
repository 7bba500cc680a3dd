"""Columns on their own scale: what a linear classifier usually sees."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ..likelihoods.hyperparameters import column_means, column_variances
from .base import FeatureMap, Rows, dense_rows


class ConstantColumnWarning(UserWarning):
    """A column of X has a single value."""


@dataclass(eq=False)
class Standardized(FeatureMap):
    """(x - loc) / scale.

    Parameters
    ----------
    loc, scale : numbers or [D]; None: mean and standard deviation of the data (1 for a constant column)
    intercept : value of the constant feature, so that the intercept's prior standard deviation is
        `weight_scale * intercept`; 0 for none
    """

    loc: Any = None
    scale: Any = None
    intercept: float = 1.0

    def resolve(self, X: Rows) -> Self:
        self.check()
        X = dense_rows(X, "Standardized")
        loc = column_means(X) if self.loc is None else self.loc
        scale = column_scales(X) if self.scale is None else self.scale
        loc, scale = (torch.as_tensor(value, dtype=X.dtype, device=X.device) for value in (loc, scale))
        if not (scale > 0).all() or not (loc.isfinite().all() and scale.isfinite().all()):
            raise ValueError(f"scale of the feature map is {self.scale!r} and loc {self.loc!r}; expected scale > 0.")
        return self.replace(loc=loc.expand(X.shape[1]).clone(), scale=scale.expand(X.shape[1]).clone())

    def project(self, X: Rows) -> Tensor:
        return (dense_rows(X, "Standardized") - self.require(self.loc)) / self.require(self.scale)


def column_scales(X: Tensor) -> Tensor:
    """Standard deviations [D] of the columns of X [N, D]; 1 for a constant column, with a warning."""
    scale = column_variances(X).sqrt()
    constant = scale == 0
    if constant.any():
        columns = torch.nonzero(constant).flatten().tolist()
        warnings.warn(
            f"Columns {columns} of X are constant and tell nothing. Drop them.", ConstantColumnWarning, stacklevel=5
        )
    return torch.where(constant, torch.ones_like(scale), scale)
