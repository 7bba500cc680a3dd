"""Columns on their own scale: what a linear classifier usually sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..domains import AnyNumbers, NonNegative, PositiveNumbers
from ..likelihoods.hyperparameters import column_means, column_variances, hyperparameter
from ..warning import warn
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

    loc: AnyNumbers = None
    scale: PositiveNumbers = None
    intercept: NonNegative = 1.0

    column_wise: ClassVar[bool] = True

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        X = dense_rows(X, "Standardized")
        loc = column_means(X, weights) if self.loc is None else self.loc
        scale = column_scales(X, weights) if self.scale is None else self.scale
        width = X.shape[1]
        return self.replace(
            loc=hyperparameter("loc", loc, None, X, width), scale=hyperparameter("scale", scale, None, X, width)
        )

    def project(self, X: Rows) -> Tensor:
        return (dense_rows(X, "Standardized") - self.require(self.loc)).div_(self.require(self.scale))


def column_scales(X: Tensor, weights: Tensor | None = None) -> Tensor:
    """Standard deviations [D] of the columns of X [N, D]; 1 for a constant column, with a warning. `weights` [N]."""
    scale = column_variances(X, weights).sqrt()
    constant = scale == 0
    if constant.any():
        columns = torch.nonzero(constant).flatten().tolist()
        warn(f"Columns {columns} of X are constant and tell nothing. Drop them.", ConstantColumnWarning)
    return torch.where(constant, torch.ones_like(scale), scale)
