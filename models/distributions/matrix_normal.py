"""The matrix normal law: the covariance of the entries is the product of a row and a column covariance."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.types import _size

from .wishart import log_diagonal


class MatrixNormal(dist.TorchDistribution):
    """B [R, Q] = loc + F^-T E L^-1 with independent standard normal entries in E.

    cov(B_ij, B_kl) = (F F^T)^-1_ik (L L^T)^-1_jl.

    Parameters
    ----------
    loc : [..., R, Q]
    row_factor, column_factor : F [..., R, R] and L [..., Q, Q], lower Cholesky factors of precisions
    """

    arg_constraints = {  # noqa: RUF012 (torch's own interface)
        "loc": constraints.independent(constraints.real, 2),
        "row_factor": constraints.lower_cholesky,
        "column_factor": constraints.lower_cholesky,
    }
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, loc: Tensor, row_factor: Tensor, column_factor: Tensor) -> None:
        batch = torch.broadcast_shapes(loc.shape[:-2], row_factor.shape[:-2], column_factor.shape[:-2])
        self.loc = loc.expand(*batch, -1, -1)
        self.row_factor = row_factor.expand(*batch, -1, -1)
        self.column_factor = column_factor.expand(*batch, -1, -1)
        super().__init__(batch, loc.shape[-2:], validate_args=False)

    def expand(self, batch_shape: _size, _instance: Any = None) -> MatrixNormal:
        factors = (self.loc, self.row_factor, self.column_factor)
        return MatrixNormal(*(value.expand(*batch_shape, -1, -1) for value in factors))

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:
        shape = (*sample_shape, *self.batch_shape, *self.event_shape)
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        noise = torch.linalg.solve_triangular(self.row_factor.mT, noise, upper=True)
        return self.loc + torch.linalg.solve_triangular(self.column_factor, noise, upper=False, left=False)

    def log_prob(self, value: Tensor) -> Tensor:
        R, Q = self.event_shape
        square = (self.row_factor.mT @ (value - self.loc) @ self.column_factor).square().sum((-2, -1))
        log_factors = Q * log_diagonal(self.row_factor) + R * log_diagonal(self.column_factor)
        return log_factors - (square + R * Q * math.log(2 * math.pi)) / 2
