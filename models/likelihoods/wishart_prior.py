"""Hyperparameters of a Wishart law of precision matrices, Lam ~ Wishart(nu0, Psi0^-1), Psi0 [D, D]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..domains import shown
from ..linalg import safe_cholesky
from ..sparse import Rows
from .base import hyperparameter


def wishart_prior(degrees_of_freedom: Any, scale: Any, expected: Tensor, X: Rows) -> tuple[Tensor, Tensor]:
    """nu0 [] > D - 1 and Psi0 [D, D] from the arguments of a family.

    Without `scale`, the expected covariance Psi0 / (nu0 - D - 1) is `expected` [D, D], whatever the degrees of
    freedom (with D + 2 or fewer, Psi0 itself is that matrix), and these are D + max(2, D / 2) by default. With
    `scale` they are D + 2 by default, so that `scale` is the expected covariance.

    The more columns, the more rows a covariance needs. On nine labelled sets of 4 to 16 columns D + 2 finds nearly
    twice the clusters, more than half of them of three rows or fewer; in two columns D + 8 merges clusters of twenty
    rows that lie apart (benchmarks/defaults.py).
    """
    D = len(expected)
    spare = max(2.0, D / 2) if scale is None else 2.0
    degrees = hyperparameter("degrees_of_freedom", degrees_of_freedom, D + spare, X)
    if degrees - (D - 1) < _LEAST_SPARE:
        raise ValueError(f"degrees_of_freedom is {degrees_of_freedom!r}; it must be larger than {D - 1}.")
    if scale is None:
        return degrees, expected * (degrees - D - 1).clamp(min=1)
    return degrees, _scale_matrix(scale, D, X)


def _scale_matrix(value: Any, D: int, X: Rows) -> Tensor:
    """Psi0 [D, D] from a positive number, a diagonal [D], or the matrix itself."""
    scale = torch.as_tensor(value, dtype=X.dtype, device=X.device).detach()
    if scale.ndim < 2:
        if not (scale > 0).all():
            raise ValueError(f"scale is {shown(value)}; it must be positive.")
        return torch.diag(hyperparameter("scale", scale, None, X, D))
    if scale.shape != (D, D):
        raise ValueError(f"scale has shape {tuple(scale.shape)}; expected a number, [{D}] or [{D}, {D}].")
    if not torch.equal(scale, scale.T) or torch.linalg.cholesky_ex(scale).info:
        raise ValueError("scale is not a symmetric positive definite matrix; pass a covariance matrix.")
    return scale.clone()


def scatter_factor(psi: Tensor, scale: Tensor) -> Tensor:
    """Lower Cholesky factors of Psi [..., D, D], whose diagonal is raised to at least that of Psi0 against rounding."""
    missing = (scale.diagonal() / 2 - psi.diagonal(dim1=-2, dim2=-1)).clamp(min=0)
    return safe_cholesky(psi + torch.diag_embed(missing), strict=False)


def covariance_factor(degrees: Tensor, scale: Tensor) -> Tensor:
    """The lower Cholesky factor [D, D] of the expected covariance Psi0 / (nu0 - D - 1), the metric of distances."""
    D = len(scale)
    spare = degrees - D - 1
    if spare <= 0:
        raise ValueError(
            f"degrees_of_freedom is {degrees.item():g}; SmallVariance measures distances in "
            f"the prior's expected covariance, which exists for degrees_of_freedom > {D + 1} only."
        )
    return safe_cholesky(scale / spare, strict=False)


_LEAST_SPARE = 1e-6  # with less the density of a precision matrix is not a finite number
