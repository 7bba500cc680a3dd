"""Gaussian with a known spherical covariance: the family whose small-variance limit is DP-means.

mu ~ N(loc, r2 I),  x ~ N(mu, s2 I)
statistics (x - loc, 1),  chi = (tau, kap),  mu | chi ~ N(loc + tau / kap, s2 / kap),  chi0 = (0, s2 / r2)
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
from ..domains import AnyNumbers, PositiveNumbers
from .base import SHARES, Parameters, Sample, column_variances, hyperparameter, location, or_one
from .exponential_family import ExponentialFamily


@dataclass(eq=False)
class SphericalGaussian(ExponentialFamily):
    """Rows x [D] ~ N(mu, variance I) with mu ~ N(loc, prior_variance I).

    Parameters
    ----------
    loc : prior mean, a number or [D]; None: the mean of the data
    variance : s2 > 0 within a component, assumed known; None: a quarter of the mean column variance
    prior_variance : r2 > 0 of the component means; None: the mean column variance
    """

    loc: AnyNumbers = None
    variance: PositiveNumbers = None
    prior_variance: PositiveNumbers = None

    def resolve(self, X: Tensor, weights: Tensor | None = None) -> Self:
        spread = or_one(column_variances(X, weights).mean())
        return self.replace(
            loc=location(self.loc, X, weights),
            variance=hyperparameter("variance", self.variance, SHARES["spherical"] * spread, X),
            prior_variance=hyperparameter("prior_variance", self.prior_variance, spread, X),
        )

    def prior(self) -> Tensor:
        return torch.cat([torch.zeros_like(self.loc), (self.variance / self.prior_variance).reshape(1)])

    def statistics(self, X: Tensor) -> Tensor:
        return torch.cat([X - self.loc, X.new_ones(len(X), 1)], 1)

    def log_base_measure(self, X: Tensor) -> Tensor:
        square = (X - self.loc).square().sum(-1) / self.variance
        return -(square + X.shape[1] * torch.log(2 * math.pi * self.variance)) / 2

    def log_partition(self, chi: Tensor) -> Tensor:
        tau, kap = chi[..., :-1], chi[..., -1]
        normalizer = tau.shape[-1] * torch.log(2 * math.pi * self.variance / kap)
        return (normalizer + tau.square().sum(-1) / (self.variance * kap)) / 2

    def mean_parameters(self, chi: Tensor) -> Tensor:
        mean, kap = chi[..., :-1] / chi[..., -1:], chi[..., -1:]
        square = mean.square().sum(-1, keepdim=True) / self.variance + mean.shape[-1] / kap
        return torch.cat([mean / self.variance, -square / 2], -1)

    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        tau, kap = chi[..., :-1], chi[..., -1:]
        loc = dist.Normal(self.loc + tau / kap, (self.variance / kap).sqrt(), validate_args=False)
        return {"loc": sample("loc", loc.to_event(1))}

    def distribution(self, parameters: Parameters) -> Distribution:
        return dist.Normal(parameters["loc"], self.variance.sqrt(), validate_args=False).to_event(1)

    def log_density(self, X: Tensor, parameters: Parameters) -> Tensor:
        return self._log_normal(X, parameters["loc"] - self.loc, self.variance.expand(len(parameters["loc"])))

    def log_predictive(self, X: Tensor, chi: Tensor) -> Tensor:
        """N(loc + tau / kap, s2 (1 + 1 / kap) I)."""
        kap = chi[:, -1]
        return self._log_normal(X, chi[:, :-1] / kap.unsqueeze(1), self.variance * (1 + 1 / kap))

    def coordinates(self, X: Tensor) -> Tensor:
        return (X - self.loc) / self.variance.sqrt()

    def from_coordinates(self, means: Tensor) -> Tensor:
        return self.loc + means * self.variance.sqrt()

    def _log_normal(self, X: Tensor, means: Tensor, variances: Tensor) -> Tensor:
        """log N(x_n; loc + mean_k, variance_k I) [N, K] of means [K, D] and variances [K], as one matrix product."""
        X = X - self.loc
        cross = torch.addmm(means.square().sum(1), X, means.T, beta=0.5, alpha=-1)
        square = (cross + X.square().sum(1, keepdim=True) / 2).clamp(min=0)
        return -square / variances - X.shape[1] * torch.log(2 * math.pi * variances) / 2


register_compiled(SphericalGaussian, f"{__package__}._numba_gaussians:Spherical")
