"""Cholesky factors of matrices that are positive definite up to rounding, and inverses of triangular matrices."""

from __future__ import annotations

import torch
from torch import Tensor


def safe_cholesky(matrix: Tensor, *, strict: bool = True) -> Tensor:
    """Lower Cholesky factors [..., D, D]; the diagonal is raised by the smallest fraction that makes them exist.

    Parameters
    ----------
    matrix : symmetric [..., D, D]
    strict : False: a matrix that no small fraction mends is returned unchanged, for samplers that refuse it

    Raises
    ------
    FloatingPointError    if no small fraction is enough, and `strict`.
    """
    tril, info = torch.linalg.cholesky_ex(matrix)
    if not info.numel():
        return tril
    jitter, failed = matrix.shape[-1] * torch.finfo(matrix.dtype).eps, bool(info.any())
    while failed and jitter < 1:
        raised = torch.diag_embed(jitter * matrix.diagonal(dim1=-2, dim2=-1).abs())
        again, info_again = torch.linalg.cholesky_ex(matrix + raised)
        tril = torch.where(info[..., None, None] > 0, again, tril)
        info = torch.where(info > 0, info_again, info)
        jitter, failed = 10 * jitter, bool(info.any())
    if strict and failed:
        raise FloatingPointError(
            "A Gram matrix is not finite or not positive definite. Use float64, or scale the features down."
        )
    return tril


def inverse_transpose(factor: Tensor, *, lower: bool = True) -> Tensor:
    """C^-T of triangular factors C [..., D, D]."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor.mT, identity.expand_as(factor), upper=lower)
