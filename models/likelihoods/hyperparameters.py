"""Hyperparameters of the families: shapes of those given, and moments of the columns for those left to the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..numbers import with_graph
from ..sparse import Rows, weighted_sums
from ..sums import all_sum, row_chunks

# the variance expected within a component, in shares of that of the data: of 0.05, 0.1, 0.25, 0.5 and 1 the values that
# never gave much less than the best evidence to the known classes of iris, wine and breast cancer, and to blobs in 2,
# 10 and 50 columns of unequal scales
SHARES = {"spherical": 0.25, "diagonal": 0.25, "full": 0.5}


def hyperparameter(name: str, value: Any, default: Any, X: Rows, size: int | None = None) -> Tensor:
    """The argument `name` in the dtype and on the device of X: a scalar, or [size] (a scalar is repeated).

    Raises ValueError unless the shape is accepted; what its entries may be is said at the field (`domains`).
    """
    value = default if value is None else value
    tensor = with_graph(torch.as_tensor(value, dtype=X.dtype, device=X.device))
    shape = () if size is None else (size,)
    if tensor.shape not in {(), shape}:
        accepted = "a number" if size is None else f"a number, or one for each of the {size} columns of X"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {accepted}.")
    return tensor.expand(shape).clone()


def location(value: Any, X: Tensor, weights: Tensor | None = None) -> Tensor:
    """The prior mean [D] of a Gaussian family; None: the mean of the data X [N, D], with weights [N] if given."""
    return hyperparameter("loc", value, column_means(X, weights), X, X.shape[1])


def column_sums(X: Rows, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sums [D] of the columns of X [N, D] in double precision, and the number of rows [].

    A row counts `weights` [N] times; None: once.
    """
    if weights is not None:
        sums = weighted_sums(X.double(), weights.double().unsqueeze(1)).squeeze(0)
        return all_sum(sums), all_sum(weights.sum(dtype=torch.float64))
    num_rows = torch.tensor(float(len(X)), dtype=torch.float64, device=X.device)
    return all_sum(X.sum(0, dtype=torch.float64)), all_sum(num_rows)


def column_means(X: Tensor, weights: Tensor | None = None) -> Tensor:
    """Means [D] of the columns of X [N, D], with weights [N] if given, summed in double precision."""
    total, num_rows = column_sums(X, weights)
    return (total / num_rows).to(X.dtype)


def column_variances(X: Tensor, weights: Tensor | None = None) -> Tensor:
    """Variances [D] of the columns of X [N, D], with weights [N] if given; 0 where constant up to rounding."""
    total, num_rows = column_sums(X, weights)
    means = total / num_rows
    parts = row_chunks(X, X.shape[1])
    sums = [_power_sums(X[rows], means, None if weights is None else weights[rows]) for rows in parts]
    offset, square = all_sum(torch.stack(sums).sum(0)) / num_rows
    variances = (square - offset.square()).clamp(min=0)  # offset: what rounding took from the means
    constant = variances.sqrt() <= 8 * torch.finfo(X.dtype).eps * (variances + means.square()).sqrt()
    return torch.where(constant, torch.zeros_like(variances), variances).to(X.dtype)


def _power_sums(X: Tensor, means: Tensor, weights: Tensor | None) -> Tensor:
    """Sums [2, D] of the columns of X [N, D] less their means, and of the squares of that, in double precision."""
    deviations = X.double() - means
    both = deviations, deviations.square()
    if weights is None:
        return torch.stack([values.sum(0) for values in both])
    return torch.stack([weighted_sums(values, weights.double().unsqueeze(1)).squeeze(0) for values in both])


def or_one(variances: Tensor) -> Tensor:
    """Variances [...] with 1 in place of 0: constant columns tell no components apart, whatever their scale."""
    return torch.where(variances > 0, variances, 1.0)
