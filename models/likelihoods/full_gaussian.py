"""Gaussian with a full covariance and its Normal-Wishart prior.

Lam ~ Wishart(nu0, Psi0^-1),  mu ~ N(loc, (k0 Lam)^-1),  x ~ N(mu, Lam^-1)
statistics (u, u u^T, 1, 1) with u = x - loc,  chi = (tau, M, kap, nu - D)
m = tau / kap,  Psi = M - kap m m^T,  chi0 = (0, Psi0, k0, nu0 - D)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..compiled import register_compiled
from ..distributions.wishart import PrecisionWishart, covariance_tril, expected_log_det, log_diagonal
from ..domains import AnyNumbers, Auto, Numbers, PositiveNumbers
from ..linalg import inverse_transpose, safe_cholesky
from ..sums import all_sum, row_chunks
from .base import (
    SHARES,
    Parameters,
    Sample,
    column_covariances,
    column_variances,
    hyperparameter,
    location,
    told_or_one,
)
from .exponential_family import ExponentialFamily
from .wishart_prior import covariance_factor, scatter_factor, wishart_prior


@dataclass(eq=False)
class FullGaussian(ExponentialFamily):
    """Rows x [D] ~ N(mu, Lam^-1), Lam ~ Wishart(degrees_of_freedom, scale^-1), mu ~ N(loc, (mean_precision Lam)^-1).

    Parameters
    ----------
    loc : prior mean, a number or [D]; None: the mean of the data
    mean_precision : k0 > 0, how many rows `loc` counts as; None: 0.05
    degrees_of_freedom : nu0 > D - 1, the weight of the expected covariance `scale` / (nu0 - D - 1) of a component.
        None: D + max(2, D / 2), since D + 2 gives many components of a few rows each if there are many columns
        (docs/choices); but D + 2 if `scale` is given, which is then the expected covariance
    scale : Psi0, a positive number or [D] for a diagonal, or [D, D] positive definite. None: a diagonal, such that the
        prior expects half the column variances in a component. "covariance": the prior expects half the covariances of
        all rows, with those of different columns shrunk by a tenth. Take it if columns are strongly correlated within
        components (as in Fraley & Raftery 2007). Both also work if there are fewer rows than columns
    """

    loc: AnyNumbers = None
    mean_precision: PositiveNumbers = None
    degrees_of_freedom: PositiveNumbers = None
    scale: Annotated[Any, Auto(Numbers(), "covariance")] = None

    def resolve(self, X: Tensor, weights: Tensor | None = None) -> Self:
        by_word = isinstance(self.scale, str)
        covariances = column_covariances(X, weights) if by_word else torch.diag(column_variances(X, weights))
        expected = _SHRUNK * covariances
        expected.diagonal().copy_(told_or_one(covariances.diagonal()))
        given = None if by_word else self.scale
        degrees, scale = wishart_prior(self.degrees_of_freedom, given, SHARES["full"] * expected, X)
        return self.replace(
            loc=location(self.loc, X, weights),
            mean_precision=hyperparameter("mean_precision", self.mean_precision, 0.05, X),
            degrees_of_freedom=degrees,
            scale=scale,
        )

    def prior(self) -> Tensor:
        counts = torch.stack([self.mean_precision, self.degrees_of_freedom - len(self.loc)])
        return torch.cat([torch.zeros_like(self.loc), self.scale.flatten(), counts])

    def statistics(self, X: Tensor) -> Tensor:
        X = X - self.loc
        return torch.cat([X, (X.unsqueeze(2) * X.unsqueeze(1)).flatten(1), X.new_ones(len(X), 2)], 1)

    def weighted_statistics(self, X: Tensor, responsibilities: Tensor) -> Tensor:
        """As in `ExponentialFamily`; one product per chunk for the Gram matrices of all components, [K, S]."""
        K, D = responsibilities.shape[1], X.shape[1]
        first, second = X.new_zeros(K, D, dtype=torch.float64), X.new_zeros(K * D, D, dtype=torch.float64)
        for rows in row_chunks(X, K * D):
            U, weights = X[rows] - self.loc, responsibilities[rows]
            first += weights.T @ U
            second += (weights.unsqueeze(2) * U.unsqueeze(1)).flatten(1).T @ U
        counts = responsibilities.sum(0, dtype=torch.float64).unsqueeze(1).expand(K, 2)
        return all_sum(torch.cat([first, second.view(K, D * D), counts], 1)).to(X.dtype)

    def summed_statistics(self, X: Tensor, assignments: Tensor, num_components: int) -> Tensor:
        """As in `ExponentialFamily`, [K, S]; a Gram matrix of each component's rows, or one product for few rows."""
        D = X.shape[1]
        width = D + D * D + 2
        if len(X) * width <= _FEW:
            return super().summed_statistics(X, assignments, num_components)
        total = X.new_zeros(num_components, width, dtype=torch.float64)
        order = torch.argsort(assignments, stable=True)
        counts = torch.bincount(assignments, minlength=num_components)
        for sums, members in zip(total, order.split(counts.tolist()), strict=True):
            for rows in row_chunks(members, D):
                U = X[members[rows]] - self.loc
                sums[:D] += U.sum(0)
                sums[D:-2] += (U.T @ U).flatten()
        total[:, -2:] = counts.unsqueeze(1)
        return all_sum(total).to(X.dtype)

    def log_base_measure(self, X: Tensor) -> Tensor:
        return X.new_full((len(X),), -X.shape[1] / 2 * math.log(2 * math.pi))

    def log_partition(self, chi: Tensor) -> Tensor:
        _, kap, nu, factor = self.common(chi)
        D = len(self.loc)
        log_normalizer = torch.mvlgamma(nu / 2, D) + nu * D / 2 * math.log(2) + D / 2 * torch.log(2 * math.pi / kap)
        return log_normalizer - nu * log_diagonal(factor)

    def mean_parameters(self, chi: Tensor) -> Tensor:
        m, kap, nu, factor = self.common(chi)
        precision = nu[..., None, None] * torch.cholesky_inverse(factor)
        direction = (precision @ m.unsqueeze(-1)).squeeze(-1)
        square = (m * direction).sum(-1) + len(self.loc) / kap
        counts = torch.stack([-square, expected_log_det(nu, factor)], -1) / 2
        return torch.cat([direction, -precision.flatten(-2) / 2, counts], -1)

    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        m, kap, nu, factor = self.common(chi)
        precision = sample("precision", PrecisionWishart(nu, factor))
        scale_tril = covariance_tril(kap[..., None, None] * precision)
        loc = sample("loc", dist.MultivariateNormal(self.loc + m, scale_tril=scale_tril, validate_args=False))
        return {"loc": loc, "precision": precision}

    def distribution(self, parameters: Parameters) -> Distribution:
        scale_tril = covariance_tril(parameters["precision"])
        return dist.MultivariateNormal(parameters["loc"], scale_tril=scale_tril, validate_args=False)

    def log_density(self, X: Tensor, parameters: Parameters) -> Tensor:
        factor = safe_cholesky(parameters["precision"], strict=False)
        square = self._squares(X, parameters["loc"] - self.loc, factor)
        return log_diagonal(factor) - (square + X.shape[1] * math.log(2 * math.pi)) / 2

    def expected_log_density(self, X: Tensor, chi: Tensor) -> Tensor:
        """(E log det Lam - D log 2 pi - D / kap - nu (x - mu)^T Psi^-1 (x - mu)) / 2 at mu = loc + m."""
        m, kap, nu, factor = self.common(chi)
        constant = expected_log_det(nu, factor) - X.shape[1] * (math.log(2 * math.pi) + 1 / kap)
        return (constant - nu * self._squares(X, m, inverse_transpose(factor))) / 2

    def log_predictive(self, X: Tensor, chi: Tensor) -> Tensor:
        """Student-t: nu - D + 1 degrees of freedom, location loc + m, shape Psi (kap + 1) / (kap (nu - D + 1))."""
        m, kap, nu, factor = self.common(chi)
        D = X.shape[1]
        normalizer = torch.lgamma((nu + 1) / 2) - torch.lgamma((nu - D + 1) / 2) - log_diagonal(factor)
        normalizer = normalizer - D / 2 * torch.log(math.pi * (kap + 1) / kap)
        square = self._squares(X, m, inverse_transpose(factor)) * (kap / (kap + 1))
        return normalizer - (nu + 1) / 2 * torch.log1p(square)

    def coordinates(self, X: Tensor) -> Tensor:
        """(x - loc) whitened by the prior's expected covariance Psi0 / (nu0 - D - 1)."""
        whitening, found = inverse_transpose(self._metric_factor()), torch.empty_like(X)
        for rows in row_chunks(X, X.shape[1]):
            found[rows] = (X[rows] - self.loc) @ whitening
        return found

    def from_coordinates(self, means: Tensor) -> Tensor:
        return self.loc + means @ self._metric_factor().T

    def _metric_factor(self) -> Tensor:
        return covariance_factor(self.degrees_of_freedom, self.scale)

    def common(self, chi: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean m [..., D], kap [...], nu [...] and the lower Cholesky factor of Psi [..., D, D]."""
        D = len(self.loc)
        tau, second, kap, spare = chi.split((D, D * D, 1, 1), -1)
        m = tau / kap
        psi = second.unflatten(-1, (D, D)) - tau.unsqueeze(-1) * m.unsqueeze(-2)
        return m, kap.squeeze(-1), spare.squeeze(-1) + D, scatter_factor(psi, self.scale)

    def _squares(self, X: Tensor, means: Tensor, factors: Tensor) -> Tensor:
        """|F_k^T (x_n - loc - mean_k)|^2 [N, K] of means [K, D] and factors F [K, D, D]; one product for each chunk."""
        K, D = means.shape
        stacked = factors.mT.reshape(K * D, D)
        shift = (means.unsqueeze(1) @ factors).flatten().unsqueeze(1)
        # rows last: the sum over D then adds whole vectors, several times faster than short inner sums
        squares = [
            torch.addmm(shift, stacked, (X[rows] - self.loc).T, beta=-1).view(K, D, -1).square_().sum(1)
            for rows in row_chunks(X, K * D)
        ]
        return torch.cat(squares, 1).T


_SHRUNK = 0.9  # covariances of fewer rows than columns are a singular matrix
_FEW = 2**15  # statistics: writing these costs less than a step for each component


register_compiled(FullGaussian, f"{__package__}._numba_full_gaussian:Full")
