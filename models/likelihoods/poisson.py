"""Poisson counts and their Gamma priors.

r_d ~ Gamma(a_d, b),  x_d ~ Poisson(r_d)
statistics (x, 1),  chi = (a, b),  log h(x) = -sum log Gamma(1 + x_d)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..compiled import register_compiled
from ..domains import PositiveNumbers
from ..sparse import Rows, entries_sum
from .base import Parameters, Sample, column_sums, hyperparameter
from .counts import CountFamily, finite_log, log_rising


@dataclass(eq=False)
class PoissonGamma(CountFamily):
    """Rows of counts x [D], x_d ~ Poisson(r_d), with r_d ~ Gamma(shape_d, rate).

    Parameters
    ----------
    shape : positive, a number or [D]; None: rate * (mean of the column)
    rate : positive, one number for all columns, so that the prior weighs as much as `rate` rows; None: 1 / (mean of X)
    """

    shape: PositiveNumbers = None
    rate: PositiveNumbers = None

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        total, num_rows = column_sums(X, weights)
        means = (total + 1) / (num_rows + 1)
        rate = hyperparameter("rate", self.rate, 1 / means.mean(), X)
        return self.replace(shape=hyperparameter("shape", self.shape, rate * means, X, X.shape[1]), rate=rate)

    def prior(self) -> Tensor:
        return torch.cat([self.shape, self.rate.reshape(1)])

    def spread(self, sums: Tensor, counts: Tensor) -> Tensor:
        return torch.cat([sums, counts.unsqueeze(-1)], -1)

    def linear(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        return natural[:, :-1], natural[:, -1]

    def log_base_measure(self, X: Rows) -> Tensor:
        return -entries_sum(X, lambda x: torch.lgamma(1 + x))

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

    def log_density(self, X: Rows, parameters: Parameters) -> Tensor:
        rate = parameters["rate"]
        return self.linear_log_density(X, torch.cat([finite_log(rate), -rate.sum(-1, keepdim=True)], -1))

    def log_predictive(self, X: Rows, chi: Tensor) -> Tensor:
        """Negative binomial in each column: (a)_x b^a / (b + 1)^(a + x) / x!, with rising factorials (a)_x."""
        a, b = chi[:, :-1].double(), chi[:, -1].double()
        gain = log_rising(X, a) - a.sum(-1) * torch.log1p(1 / b) - X.sum(-1).double().unsqueeze(1) * torch.log(b + 1)
        return (gain + self.log_base_measure(X).unsqueeze(1)).to(X.dtype)

    def log_repeat(self, X: Rows) -> Tensor:
        """The log predictive with a + x and b + 1 in place of a and b."""
        X, a, b = X.double(), self.shape.double(), self.rate.double() + 1
        n = X.sum(-1)
        gain = entries_sum(X, lambda x, a: torch.lgamma(a + 2 * x) - torch.lgamma(a + x), a)
        gain = gain - (a.sum() + n) * torch.log1p(1 / b) - n * torch.log(b + 1)
        return gain + self.log_base_measure(X)

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """slope and offset of sum_d x_d log(x_d / mu_d) - x_d + mu_d at means mu [K, D]."""
        return finite_log(means), means.sum(-1)

    def potential(self, x: Tensor) -> Tensor:
        return torch.xlogy(x, x) - x

    def pseudo_observation(self) -> tuple[Tensor, float]:
        """The prior as `rate` rows equal to its mean: centre (shape + sum of rows) / (rate + their number)."""
        return self.shape / self.rate, self.rate.item()


register_compiled(PoissonGamma, f"{__package__}._numba_counts:Poisson")
