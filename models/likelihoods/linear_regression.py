"""Linear regression of some columns on others, with its matrix-normal inverse-Wishart prior.

u [P] the columns given, v [R] the others, both centred;  a = (u, 1) [Q]
Lam ~ Wishart(nu0, Psi0^-1),  B ~ MN(0, Lam^-1, K0^-1),  v ~ N(B a, Lam^-1)
statistics (a a^T, a v^T, v v^T, 1),  chi = (K, C, V, nu + Q - R - 1)
M = C^T K^-1,  Psi = V - C^T K^-1 C,  chi0 = (K0, 0, Psi0, nu0 + Q - R - 1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size

from ..compiled import register_compiled
from ..distributions.matrix_normal import MatrixNormal
from ..distributions.wishart import PrecisionWishart, covariance_tril, expected_log_det, log_diagonal
from ..domains import AnyNumbers, PositiveNumbers, shown
from ..linalg import inverse_transpose, safe_cholesky
from ..sums import row_chunks
from .base import SHARES, Parameters, Sample, column_variances, hyperparameter, location, or_one
from .exponential_family import ExponentialFamily
from .parts import Columns, listed
from .wishart_prior import covariance_factor, scatter_factor, wishart_prior


@dataclass(eq=False)
class LinearRegression(ExponentialFamily):
    """Some columns v [R] of a row given the others u [P]: v ~ N(B (u, 1), Lam^-1), the intercept last in B.

    It models v alone: components differ in the regression, not in the location of u. A `DPM` of it is a mixture of
    regressions, and a model of sequences with `lags` has autoregressive states. If u should tell components apart too,
    take `FullGaussian` of all columns, whose conditionals are regressions, or a `Product` of rows with u twice:
    `[(DiagonalGaussian(), P), (LinearRegression(P), P + R)]`.

    Parameters
    ----------
    given : the columns u, an integer P for the first P or a list of columns; None: all but the last
    loc : the centre of the columns, a number or [D]: the prior mean of v if u is at its centre; None: the mean of the
        data
    coefficient_precision : the diagonal of K0, a positive number or [P + 1]; None: 0.05 times the variances of u, and
        0.05 for the intercept: the prior mean B = 0 counts as 0.05 rows
    degrees_of_freedom : nu0 > R - 1, the weight of the expected covariance `scale` / (nu0 - R - 1) of the residuals;
        None: R + max(2, R / 2), or R + 2 if `scale` is given, which is then the expected covariance
    scale : Psi0, a positive number or [R] for a diagonal, or [R, R] positive definite; None: a diagonal, such that half
        the variances of the residuals of one regression of all rows are expected

    Source: West & Harrison (1997), section 16.4; as autoregressive states Fox, Sudderth, Jordan & Willsky (2011).
    """

    given: Annotated[Any, Columns()] = None
    loc: AnyNumbers = None
    coefficient_precision: PositiveNumbers = None
    degrees_of_freedom: PositiveNumbers = None
    scale: AnyNumbers = None

    def resolve(self, X: Tensor, weights: Tensor | None = None) -> Self:
        given, _ = self._split(X.shape[1])
        spread = 0.05 * torch.cat([or_one(column_variances(X[:, given], weights)), X.new_ones(1)])
        precision = hyperparameter("coefficient_precision", self.coefficient_precision, spread, X, len(given) + 1)
        family = self.replace(given=given, loc=location(self.loc, X, weights), coefficient_precision=precision)
        expected = torch.diag(SHARES["full"] * family._residual_variances(X, weights))
        degrees, scale = wishart_prior(self.degrees_of_freedom, self.scale, expected, X)
        return family.replace(degrees_of_freedom=degrees, scale=scale)

    def check(self, X: Tensor) -> None:
        self._split(X.shape[1])

    def given_first(self, num_columns: int) -> Self:
        if self.given is not None and listed(self.given) != listed(num_columns):
            raise ValueError(f"given is {shown(self.given)}; lags give {num_columns} columns: leave it at None.")
        return self.replace(given=listed(num_columns))

    def prior(self) -> Tensor:
        Q, R = self._sizes
        blocks = [torch.diag(self.coefficient_precision), self.scale.new_zeros(Q, R), self.scale]
        count = self.degrees_of_freedom + Q - R - 1
        return torch.cat([*(block.flatten() for block in blocks), count.unsqueeze(0)])

    def statistics(self, X: Tensor) -> Tensor:
        a, v = self.pairs(X)
        return torch.cat([_products(a, a), _products(a, v), _products(v, v), X.new_ones(len(X), 1)], 1)

    def log_base_measure(self, X: Tensor) -> Tensor:
        return X.new_full((len(X),), -len(self.scale) / 2 * math.log(2 * math.pi))

    def log_partition(self, chi: Tensor) -> Tensor:
        _, left, nu, factor = self.common(chi)
        Q, R = left.shape[-1], factor.shape[-1]
        log_wishart = torch.mvlgamma(nu / 2, R) + nu * R / 2 * math.log(2) - nu * log_diagonal(factor)
        return log_wishart + R * (Q / 2 * math.log(2 * math.pi) - log_diagonal(left))

    def mean_parameters(self, chi: Tensor) -> Tensor:
        """(-E[B^T Lam B] / 2, E[B^T Lam], -E[Lam] / 2, E log det Lam / 2), flattened, [..., S]."""
        coefficients, left, nu, factor = self.common(chi)
        precision = nu[..., None, None] * torch.cholesky_inverse(factor)
        cross = coefficients.mT @ precision
        square = cross @ coefficients + factor.shape[-1] * torch.cholesky_inverse(left)
        blocks = [(-square / 2).flatten(-2), cross.flatten(-2), (-precision / 2).flatten(-2)]
        return torch.cat([*blocks, expected_log_det(nu, factor).unsqueeze(-1) / 2], -1)

    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        """`precision` [..., R, R] and `coefficients` [..., R, P + 1] for centred columns, the intercept last."""
        coefficients, left, nu, factor = self.common(chi)
        precision = sample("precision", PrecisionWishart(nu, factor))
        rows = safe_cholesky(precision, strict=False)
        return {"coefficients": sample("coefficients", MatrixNormal(coefficients, rows, left)), "precision": precision}

    def distribution(self, parameters: Parameters) -> Distribution:
        return _Regression(self, parameters)

    def response(self, parameters: Parameters, X: Tensor) -> Distribution:
        """p(v | u, theta) for rows X [..., D], of which only u is used: batch shape [...], event shape [R]."""
        given, responses = self._split(len(self.loc))
        a = torch.cat([X[..., given] - self.loc[given], X.new_ones(*X.shape[:-1], 1)], -1)
        loc = self.loc[responses] + (parameters["coefficients"] @ a.unsqueeze(-1)).squeeze(-1)
        return dist.MultivariateNormal(loc, scale_tril=covariance_tril(parameters["precision"]), validate_args=False)

    def responses(self, X: Tensor) -> Tensor:
        """The columns v [..., R] of rows X [..., D]."""
        return X[..., self._split(X.shape[-1])[1]]

    def log_density(self, X: Tensor, parameters: Parameters) -> Tensor:
        factor = safe_cholesky(parameters["precision"], strict=False)
        square = _squares(factor.mT @ _residual_map(parameters["coefficients"]), torch.cat(self.pairs(X), 1))
        return log_diagonal(factor) - (square + factor.shape[-1] * math.log(2 * math.pi)) / 2

    def expected_log_density(self, X: Tensor, chi: Tensor) -> Tensor:
        """(E log det Lam - R log 2 pi - R a^T K^-1 a - nu r^T Psi^-1 r) / 2 with the residuals r = v - M a."""
        _, _, nu, factor = self.common(chi)
        leverage, square = self._leverage_and_square(X, chi)
        constant = expected_log_det(nu, factor) - factor.shape[-1] * math.log(2 * math.pi)
        return (constant - factor.shape[-1] * leverage - nu * square) / 2

    def log_predictive(self, X: Tensor, chi: Tensor) -> Tensor:
        """Student-t: nu - R + 1 degrees of freedom, location M a, shape Psi (1 + a^T K^-1 a) / (nu - R + 1)."""
        _, _, nu, factor = self.common(chi)
        R = factor.shape[-1]
        leverage, square = self._leverage_and_square(X, chi)
        normalizer = torch.lgamma((nu + 1) / 2) - torch.lgamma((nu - R + 1) / 2) - log_diagonal(factor)
        normalizer = normalizer - R / 2 * (math.log(math.pi) + torch.log1p(leverage))
        return normalizer - (nu + 1) / 2 * torch.log1p(square / (1 + leverage))

    # -- the small-variance limit ----------------------------------------------------------------------------------
    # D(x, B) = |w - B a|^2 / 2 with w = v whitened by the prior's expected covariance. Coordinates are (a a^T, a w^T,
    # |w|^2); a centre is a mean of them, and its B = (mean w a^T) (mean a a^T)^-1. The prior of B is a row (K0, 0, 0).

    def coordinates(self, X: Tensor) -> Tensor:
        a, v = self.pairs(X)
        w = v @ inverse_transpose(self._metric_factor())
        return torch.cat([_products(a, a), _products(a, w), w.square().sum(1, keepdim=True)], 1)

    def from_coordinates(self, means: Tensor) -> Tensor:
        square, cross = self._moments(means)
        (given, responses), count = self._split(len(self.loc)), square[:, -1, -1:]
        X = means.new_empty(len(means), len(self.loc))
        X[:, given] = square[:, -1, :-1] / count
        X[:, responses] = cross[:, -1] / count @ self._metric_factor().T
        return X + self.loc

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        square, cross = self._moments(means)
        # negligible beside the prior; without it, one row leaves most of B undetermined
        ridge = torch.finfo(means.dtype).eps ** 0.5 * square[:, -1, -1:] * self.coefficient_precision
        coefficients = torch.cholesky_solve(cross, safe_cholesky(square + torch.diag_embed(ridge), strict=False))
        slopes = [-(coefficients @ coefficients.mT).flatten(1) / 2, coefficients.flatten(1)]
        return torch.cat([*slopes, means.new_zeros(len(means), 1)], 1), means.new_zeros(len(means))

    def divergence_base(self, X: Tensor) -> Tensor:
        return X[:, -1] / 2

    def pseudo_observation(self) -> tuple[Tensor | None, float]:
        nothing = self.loc.new_zeros(len(self.coefficient_precision) * len(self.scale) + 1)
        return torch.cat([torch.diag(self.coefficient_precision).flatten(), nothing]), 1.0

    def founding_divergence(self, X: Tensor) -> Tensor:
        square, _ = self._moments(X)
        leverage = (square[:, -1].square() / self.coefficient_precision).sum(1)
        return X[:, -1] / (2 * (1 + leverage))

    def _moments(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """a a^T [N, Q, Q] and a w^T [N, Q, R]."""
        Q, R = self._sizes
        square, cross, _ = coordinates.split([Q * Q, Q * R, 1], 1)
        return square.unflatten(1, (Q, Q)), cross.unflatten(1, (Q, R))

    def _metric_factor(self) -> Tensor:
        return covariance_factor(self.degrees_of_freedom, self.scale)

    # -- columns and hyperparameters -------------------------------------------------------------------------------

    @property
    def _sizes(self) -> list[int]:
        """Q and R."""
        return [len(self.coefficient_precision), len(self.loc) + 1 - len(self.coefficient_precision)]

    def _split(self, width: int) -> tuple[list[int], list[int]]:
        """The indices of the columns u and v of X [N, width]; ValueError if either is empty."""
        if width < 2:
            raise ValueError(
                f"X has {width} column; LinearRegression needs at least two, one given and one that is not."
            )
        given = list(range(width - 1)) if self.given is None else listed(self.given)
        responses = [column for column in range(width) if column not in given]
        if not given or not responses or max(given) >= width:
            raise ValueError(
                f"given is {shown(self.given)}, and X has {width} columns; LinearRegression needs at least one column "
                f"given and one that is not. Name some of the columns 0..{width - 1}, not all."
            )
        return given, responses

    def pairs(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """a = (u, 1) [N, Q] and v [N, R] of the rows of X [N, D], centred."""
        given, responses = self._split(len(self.loc))
        X = X - self.loc
        return torch.cat([X[:, given], X.new_ones(len(X), 1)], 1), X[:, responses]

    def _residual_variances(self, X: Tensor, weights: Tensor | None) -> Tensor:
        """Residual variances [R] of one regression over all rows; the columns' own variances if nothing remains."""
        exact = self.replace(loc=location(None, X.double(), weights))
        shares = torch.ones_like(X[:, 0]) if weights is None else weights
        sums = exact.weighted_statistics(X.double(), shares.double().unsqueeze(1))[0]
        square, cross, own = self._blocks(sums)
        left = safe_cholesky(square + 1e-13 * torch.diag(square.diagonal().where(square.diagonal() > 0, sums[-1])))
        half = torch.linalg.solve_triangular(left, cross, upper=False)
        residual = ((own.diagonal() - half.square().sum(0)) / sums[-1]).to(X.dtype)
        variances = column_variances(self.responses(X), weights)
        return or_one(torch.where(residual > _ROUNDING * variances, residual, variances).where(variances > 0, 0.0))

    def common(self, chi: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """M [..., R, Q], the lower Cholesky factor of K [..., Q, Q], nu [...], and that of Psi [..., R, R]."""
        square, cross, own = self._blocks(chi)
        left = safe_cholesky(square, strict=False)
        half = torch.linalg.solve_triangular(left, cross, upper=False)
        coefficients = torch.linalg.solve_triangular(left.mT, half, upper=True).mT
        Q, R = cross.shape[-2:]
        return coefficients, left, chi[..., -1] + R + 1 - Q, scatter_factor(own - half.mT @ half, self.scale)

    def _blocks(self, chi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """K [..., Q, Q], C [..., Q, R] and V [..., R, R]."""
        Q, R = self._sizes
        square, cross, own, _ = chi.split([Q * Q, Q * R, R * R, 1], -1)
        return square.unflatten(-1, (Q, Q)), cross.unflatten(-1, (Q, R)), own.unflatten(-1, (R, R))

    def _leverage_and_square(self, X: Tensor, chi: Tensor) -> tuple[Tensor, Tensor]:
        """a^T K^-1 a and r^T Psi^-1 r, both [N, K]."""
        coefficients, left, _, factor = self.common(chi)
        a, v = self.pairs(X)
        square = _squares(inverse_transpose(factor).mT @ _residual_map(coefficients), torch.cat([a, v], 1))
        return _squares(inverse_transpose(left).mT, a), square


class _Regression(dist.TorchDistribution):
    """A law of rows [D] with the density of the columns v given the columns u, which have no density here."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector

    def __init__(self, family: LinearRegression, parameters: Parameters) -> None:
        self._family, self._parameters = family, parameters
        super().__init__(parameters["coefficients"].shape[:-2], family.loc.shape, validate_args=False)

    def expand(self, batch_shape: _size, _instance: Any = None) -> _Regression:
        values = {name: value.expand(*batch_shape, -1, -1) for name, value in self._parameters.items()}
        return _Regression(self._family, values)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._family.response(self._parameters, value).log_prob(self._family.responses(value))

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:
        raise NotImplementedError(
            "LinearRegression does not model the columns that are given, so no rows can be drawn from it. Draw the "
            "others with `response`, or use FullGaussian for all columns."
        )


def _products(left: Tensor, right: Tensor) -> Tensor:
    """The outer products [N, Q R] of the rows of [N, Q] and [N, R]."""
    return (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1)


def _residual_map(coefficients: Tensor) -> Tensor:
    """The maps (-B, I) [..., R, Q + R] from (a, v) to v - B a, for coefficients B [..., R, Q]."""
    R = coefficients.shape[-2]
    identity = torch.eye(R, dtype=coefficients.dtype, device=coefficients.device)
    return torch.cat([-coefficients, identity.expand(*coefficients.shape[:-1], R)], -1)


def _squares(maps: Tensor, rows: Tensor) -> Tensor:
    """|A_k z_n|^2 [N, K] of maps A [K, m, W] and rows z [N, W]; one product for each chunk."""
    K, m, W = maps.shape
    stacked = maps.reshape(K * m, W)
    chunks = (stacked @ rows[some].T for some in row_chunks(rows, K * m))
    return torch.cat([chunk.view(K, m, -1).square_().sum(1) for chunk in chunks], 1).T


_ROUNDING = 1e-10  # residuals below this fraction of the variance count as those of an exact relation


register_compiled(LinearRegression, f"{__package__}._numba_linear_regression:Regression")
