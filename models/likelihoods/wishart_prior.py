"""Hyperparameters of a Wishart law of precision matrices, Lam ~ Wishart(nu0, Psi0^-1), Psi0 [D, D]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..domains import shown
from ..linalg import safe_cholesky
from ..sparse import Rows
from .hyperparameters import hyperparameter


def degrees_of_freedom(value: Any, X: Rows, size: int) -> Tensor:
    """nu0 [] > size - 1; None: size + 2, so that the expected covariance is Psi0."""
    degrees = hyperparameter("degrees_of_freedom", value, size + 2.0, X)
    if degrees <= size - 1:
        raise ValueError(f"degrees_of_freedom is {value!r}; it must be larger than {size - 1}.")
    return degrees


def scale_matrix(value: Any, default: Tensor, X: Rows) -> Tensor:
    """Psi0 [D, D] from a positive number, from [D] as its diagonal, or as it is; None: the diagonal `default` [D]."""
    D = len(default)
    if value is None:
        return torch.diag(default)
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
    """Lower Cholesky factors of Psi [..., D, D]. Data can only add to Psi0: a smaller diagonal is rounding."""
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
