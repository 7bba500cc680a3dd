"""Poisson counts and their Gamma priors.

r_d ~ Gamma(a_d, b),  x_d ~ Poisson(r_d)
statistics (x, 1),  chi = (a, b),  log h(x) = -sum log Gamma(1 + x_d)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from .base import Likelihood, Parameters, Sample, check_counts, hyperparameter

__all__ = ["PoissonGamma"]


@dataclass(eq=False)
class PoissonGamma(Likelihood):
    """Rows of counts x [D], x_d ~ Poisson(r_d), with r_d ~ Gamma(shape_d, rate).

    Parameters
    ----------
    shape : positive, a number or [D]; None: rate * (mean of the column)
    rate : positive, one number for all columns, so that the prior weighs as much as `rate` rows; None: 1 / (mean of X)
    """

    shape: Any = None
    rate: Any = None

    def resolve(self, X: Tensor) -> Self:
        means = (X.sum(0, dtype=torch.float64) + 1) / (len(X) + 1)
        rate = hyperparameter("rate", self.rate, 1 / means.mean(), X)
        return self.replace(shape=hyperparameter("shape", self.shape, rate * means, X, X.shape[1]), rate=rate)

    def check(self, X: Tensor) -> None:
        check_counts(X, type(self).__name__)

    def prior(self) -> Tensor:
        return torch.cat([self.shape, self.rate.reshape(1)])

    def statistics(self, X: Tensor) -> Tensor:
        return torch.cat([X, X.new_ones(len(X), 1)], 1)

    def log_base_measure(self, X: Tensor) -> Tensor:
        return -torch.lgamma(1 + X).sum(-1)

    def log_partition(self, chi: Tensor) -> Tensor:
        a, b = chi[..., :-1], chi[..., -1:]
        return (torch.lgamma(a) - a * b.log()).sum(-1)

    def mean_parameters(self, chi: Tensor) -> Tensor:
        a, b = chi[..., :-1], chi[..., -1:]
        return torch.cat([torch.digamma(a) - b.log(), -(a / b).sum(-1, keepdim=True)], -1)

    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        return {"rate": sample("rate", dist.Gamma(chi[..., :-1], chi[..., -1:], validate_args=False).to_event(1))}

    def distribution(self, parameters: Parameters) -> Distribution:
        return dist.Poisson(parameters["rate"], validate_args=False).to_event(1)

    def log_density(self, X: Tensor, parameters: Parameters) -> Tensor:
        rate = parameters["rate"]
        return self.linear_log_density(X, torch.cat([_log(rate), -rate.sum(-1, keepdim=True)], -1))

    def coordinates(self, X: Tensor) -> Tensor:
        return X

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """sum_d x_d log(x_d / mu_d) - x_d + mu_d."""
        return _log(means), means.sum(-1)

    def divergence_base(self, X: Tensor) -> Tensor:
        return (torch.xlogy(X, X) - X).sum(-1)

    def pseudo_observation(self) -> tuple[Tensor, float]:
        """`rate` copies of the prior mean: centre (shape + sum of rows) / (rate + their number)."""
        return self.shape / self.rate, self.rate.item()


def _log(rate: Tensor) -> Tensor:
    """log r, finite at r = 0, so that 0 log 0 = 0."""
    return rate.clamp(min=torch.finfo(rate.dtype).tiny).log()
