"""The Wishart law of precision matrices, and their bijection with unconstrained vectors."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.distributions import Transform, biject_to, transform_to
from torch.types import _size

from ..linalg import inverse_transpose, safe_cholesky


class PrecisionMatrix(type(constraints.positive_definite)):  # type: ignore[misc]  # torch hides the class
    """The constraint of positive definite matrices; its `biject_to` is `FromLogCholesky`."""


class FromLogCholesky(Transform):
    """v [..., D (D + 1) / 2] -> L L^T [..., D, D], where v stacks the rows of the triangle of the lower triangular L.

    The diagonal of L is in v as its logarithm. log |det| = D log 2 + sum_i (D - i + 1) log L_ii, i = 0..D-1.
    """

    domain = constraints.real_vector
    codomain = constraints.positive_definite
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        D = _side(x.shape[-1])
        rows, columns = torch.tril_indices(D, D, device=x.device)
        entries = torch.where(rows == columns, x.exp(), x)
        lower = x.new_zeros(*x.shape[:-1], D, D)
        lower[..., rows, columns] = entries
        return lower @ lower.mT

    def _inverse(self, y: Tensor) -> Tensor:
        rows, columns = torch.tril_indices(*y.shape[-2:], device=y.device)
        entries = safe_cholesky(y, strict=False)[..., rows, columns]
        return torch.where(rows == columns, entries, 1.0).log() + torch.where(rows == columns, 0.0, entries)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        D = y.shape[-1]
        rows, columns = torch.tril_indices(D, D, device=x.device)
        logs = x[..., rows == columns]
        return D * math.log(2) + (logs * torch.arange(D + 1, 1, -1, dtype=y.dtype, device=y.device)).sum(-1)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        D = _side(shape[-1])
        return (*shape[:-1], D, D)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        D = shape[-1]
        return (*shape[:-2], D * (D + 1) // 2)


def _side(length: int) -> int:
    """D, from the number D (D + 1) / 2 of entries of a triangle."""
    return (math.isqrt(8 * length + 1) - 1) // 2


@biject_to.register(PrecisionMatrix)
@transform_to.register(PrecisionMatrix)
def _from_log_cholesky(constraint: PrecisionMatrix) -> FromLogCholesky:
    return FromLogCholesky()


class PrecisionWishart(dist.TorchDistribution):
    """Wishart(df, Psi^-1) of a precision matrix, from the Cholesky factor C of Psi: C C^T = Psi.

    Draws are A A^T with A = C^-T B and Bartlett's lower triangular B, B_ii^2 ~ chi^2(df - i) for i = 0..D-1: they are
    positive definite without the rejection that torch's own Wishart needs. Unlike torch's constraint, the support has a
    bijection from unconstrained vectors, so that Pyro's autoguides and NUTS can take the site.
    """

    arg_constraints = {"df": constraints.positive, "factor": constraints.lower_cholesky}  # noqa: RUF012 (torch's own interface)
    support = PrecisionMatrix()
    has_rsample = True

    def __init__(self, df: Tensor, factor: Tensor) -> None:
        self.df, _ = torch.broadcast_tensors(df, factor[..., 0, 0])
        self.factor = factor.expand(*self.df.shape, -1, -1)
        super().__init__(self.df.shape, factor.shape[-2:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """df Psi^-1 [..., D, D]."""
        return self.df[..., None, None] * torch.cholesky_inverse(self.factor)

    def expand(self, batch_shape: _size, _instance: Any = None) -> PrecisionWishart:
        return PrecisionWishart(self.df.expand(batch_shape), self.factor.expand(*batch_shape, -1, -1))

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:
        D = self.event_shape[-1]
        shape = (*sample_shape, *self.batch_shape, D)
        lost = torch.arange(D, dtype=self.df.dtype, device=self.df.device)
        halves = torch._standard_gamma(((self.df.unsqueeze(-1) - lost) / 2).expand(shape).contiguous())
        diagonal = (2 * halves.clamp(min=torch.finfo(halves.dtype).tiny)).sqrt()
        below = torch.randn(*shape, D, dtype=halves.dtype, device=halves.device).tril(-1)
        root = torch.linalg.solve_triangular(
            self.factor.mT.expand(*shape, D), below + torch.diag_embed(diagonal), upper=True
        )
        return root @ root.mT

    def log_prob(self, value: Tensor) -> Tensor:
        D = self.event_shape[-1]
        half = self.df / 2
        trace = (self.factor.mT @ value @ self.factor).diagonal(dim1=-2, dim2=-1).sum(-1)
        log_normalizer = torch.mvlgamma(half, D) + half * D * math.log(2) - self.df * log_diagonal(self.factor)
        return (self.df - D - 1) * log_diagonal(safe_cholesky(value, strict=False)) - trace / 2 - log_normalizer


def log_diagonal(factor: Tensor) -> Tensor:
    """Half the log determinant [...] of C C^T, from factors C [..., D, D]."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def expected_log_det(df: Tensor, factor: Tensor) -> Tensor:
    """E log det Lam [...] = sum_i digamma((df - i) / 2) + D log 2 - log det Psi, from C C^T = Psi [..., D, D]."""
    D = factor.shape[-1]
    lost = torch.arange(D, dtype=df.dtype, device=df.device)
    return torch.digamma((df.unsqueeze(-1) - lost) / 2).sum(-1) + D * math.log(2) - 2 * log_diagonal(factor)


def covariance_tril(precision: Tensor) -> Tensor:
    """Lower triangular L with L L^T = precision^-1 [..., D, D], from the Cholesky factor of the reversed matrix."""
    factor = safe_cholesky(precision.flip(-2, -1), strict=False)
    return inverse_transpose(factor.flip(-2, -1), lower=False)
