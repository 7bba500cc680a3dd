"""Gaussian with a diagonal covariance and its Normal-Gamma prior.

lam ~ Gamma(a0, b0),  mu ~ N(loc, 1 / (k0 lam)),  x ~ N(mu, 1 / lam)                     in each column
statistics (x - loc, (x - loc)^2, 1, 1),  chi = (tau, square, kap, 2 a - 1)
m = tau / kap,  b = (square - kap m^2) / 2,  chi0 = (0, 2 b0, k0, 2 a0 - 1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..compiled import register_compiled
from ..distributions.sampling import normals
from ..domains import AnyNumbers, PositiveNumbers
from ..sums import row_chunks
from .base import SHARES, Parameters, Sample, column_variances, hyperparameter, location, told_or_one
from .exponential_family import ExponentialFamily


@dataclass(eq=False)
class DiagonalGaussian(ExponentialFamily):
    """Rows x [D] ~ N(mu, diag(1 / lam)), lam ~ Gamma(shape, rate), mu ~ N(loc, 1 / (mean_precision lam)).

    Parameters
    ----------
    loc : prior mean, a number or [D]; None: the mean of the data
    mean_precision : k0 > 0, how many rows `loc` counts as; None: 0.05
    shape : a0 > 0; None: 2, so that the expected variance of a component is `rate`
    rate : b0 > 0, a number or [D]; None: a quarter of the column variances
    """

    loc: AnyNumbers = None
    mean_precision: PositiveNumbers = None
    shape: PositiveNumbers = None
    rate: PositiveNumbers = None

    def resolve(self, X: Tensor, weights: Tensor | None = None) -> Self:
        rate = SHARES["diagonal"] * told_or_one(column_variances(X, weights))
        return self.replace(
            loc=location(self.loc, X, weights),
            mean_precision=hyperparameter("mean_precision", self.mean_precision, 0.05, X),
            shape=hyperparameter("shape", self.shape, 2.0, X),
            rate=hyperparameter("rate", self.rate, rate, X, X.shape[1]),
        )

    def prior(self) -> Tensor:
        counts = torch.stack([self.mean_precision, 2 * self.shape - 1])
        return torch.cat([torch.zeros_like(self.loc), 2 * self.rate, counts])

    def statistics(self, X: Tensor) -> Tensor:
        X = X - self.loc
        return torch.cat([X, X.square(), X.new_ones(len(X), 2)], 1)

    def log_base_measure(self, X: Tensor) -> Tensor:
        return X.new_full((len(X),), -X.shape[1] / 2 * math.log(2 * math.pi))

    def log_partition(self, chi: Tensor) -> Tensor:
        _, kap, a, b = self.common(chi)
        return (torch.lgamma(a) - a * b.log() - torch.log(kap / (2 * math.pi)) / 2).sum(-1)

    def mean_parameters(self, chi: Tensor) -> Tensor:
        m, kap, a, b = self.common(chi)
        return _natural(m, a / b, torch.digamma(a) - b.log(), 1 / kap)

    def kl(self, chi: Tensor) -> Tensor:
        """KL of the gamma densities of the precisions, plus the expected KL of the normal densities of the means."""
        (m, kap, a, b), (m0, kap0, a0, b0) = self.common(chi.double()), self.common(self.prior().double())
        gamma = torch.lgamma(a0) - torch.lgamma(a) + (a - a0) * torch.digamma(a)
        gamma = gamma + a0 * (b / b0).log() + a * (b0 / b - 1)
        share = kap0 / kap
        normal = kap0 * a / b * (m - m0).square() + share - 1 - share.log()
        return (gamma + normal / 2).sum(-1).to(chi.dtype)

    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        m, kap, a, b = self.common(chi)
        precision = sample("precision", dist.Gamma(a, b, validate_args=False).to_event(1))
        loc = dist.Normal(self.loc + m, (kap * precision).rsqrt(), validate_args=False)
        return {"loc": sample("loc", loc.to_event(1)), "precision": precision}

    def draw(self, chi: Tensor, generator: torch.Generator) -> Parameters:
        """As `Likelihood.draw`, but without distribution objects: a third of the time if there are few components."""
        m, kap, a, b = self.common(chi)
        gamma = torch._standard_gamma(a.expand_as(b).contiguous(), generator=generator)
        precision = (gamma / b).clamp(min=torch.finfo(b.dtype).tiny)
        return {
            "loc": self.loc + m + normals(m.shape, generator, m) * (kap * precision).rsqrt(),
            "precision": precision,
        }

    def distribution(self, parameters: Parameters) -> Distribution:
        return dist.Normal(parameters["loc"], parameters["precision"].rsqrt(), validate_args=False).to_event(1)

    def log_density(self, X: Tensor, parameters: Parameters) -> Tensor:
        return self.linear_log_density(X, self.natural(parameters))

    def natural(self, parameters: Parameters) -> Tensor:
        lam = parameters["precision"]
        return _natural(parameters["loc"] - self.loc, lam, lam.log())

    def linear_log_density(self, X: Tensor, natural: Tensor) -> Tensor:
        slope, curve, counts = natural.split((X.shape[1], X.shape[1], 2), 1)
        offset = counts.sum(1) - X.shape[1] / 2 * math.log(2 * math.pi)
        U = X - self.loc  # two products take a third of the time of statistics for few columns
        linear = torch.addmm(offset, U, slope.T.contiguous())
        return linear.addmm_(U.square(), curve.T.contiguous())

    def log_predictive(self, X: Tensor, chi: Tensor) -> Tensor:
        """Student-t in each column: 2 a degrees of freedom, location loc + m, squared scale b (kap + 1) / (a kap)."""
        m, kap, a, b = self.common(chi)
        spread = 2 * b * (kap + 1) / kap
        normalizer = torch.lgamma(a + 0.5) - torch.lgamma(a) - torch.log(math.pi * spread) / 2
        root, chunks = spread.rsqrt(), ((X[rows] - self.loc).unsqueeze(1) for rows in row_chunks(X, m.numel()))
        tails = torch.cat([(chunk - m).mul_(root).square_().log1p_().sum(-1) for chunk in chunks])
        return normalizer.sum(-1) - (a + 0.5).squeeze(-1) * tails

    def coordinates(self, X: Tensor) -> Tensor:
        """(x - loc) in units of the prior's expected precision a0 / b0."""
        return (X - self.loc) * (self.shape / self.rate).sqrt()

    def from_coordinates(self, means: Tensor) -> Tensor:
        return self.loc + means * (self.rate / self.shape).sqrt()

    def common(self, chi: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean m [..., D], kap [..., 1], a [..., 1] and b [..., D], from hyperparameters chi [..., S]."""
        D = len(self.loc)
        tau, square, kap, spare = chi.split((D, D, 1, 1), -1)
        m = tau / kap
        # b is at least b0; a smaller value is rounding error
        b = (square - tau * m).clamp(min=self.rate) / 2
        return m, kap, (spare + 1) / 2, b


def _natural(m: Tensor, lam: Tensor, log_lam: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    """t = (lam m, -lam / 2, -sum(lam m^2 + slack) / 2, sum(log lam) / 2) [..., S], the factors of the statistics."""
    square = (lam * m.square() + slack).sum(-1, keepdim=True)
    return torch.cat([lam * m, -lam / 2, -square / 2, log_lam.sum(-1, keepdim=True) / 2], -1)


register_compiled(DiagonalGaussian, f"{__package__}._numba_gaussians:Diagonal")
