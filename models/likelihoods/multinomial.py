"""Multinomial counts and their Dirichlet prior.

p ~ Dirichlet(a0),  x | its total ~ Multinomial(p)
statistics x,  chi = a,  chi0 = a0,  log h(x) = log Gamma(1 + sum x) - sum log Gamma(1 + x_d)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.distributions import Distribution
from torch.types import _size

from .base import Likelihood, Parameters, Sample, check_counts, hyperparameter

__all__ = ["MultinomialDirichlet"]


@dataclass(eq=False)
class MultinomialDirichlet(Likelihood):
    """Rows of counts x [D] ~ Multinomial(sum x, p) with p ~ Dirichlet(concentration).

    The totals may differ between rows and are not modelled; a row of zeros fits every component equally.

    Parameters
    ----------
    concentration : a0 > 0, a number or [D]; None: 1/2, or 50 / D if that is less
    """

    concentration: Any = None

    def resolve(self, X: Tensor) -> Self:
        default = min(0.5, _TOTAL / X.shape[1])
        return self.replace(concentration=hyperparameter("concentration", self.concentration, default, X, X.shape[1]))

    def check(self, X: Tensor) -> None:
        check_counts(X, type(self).__name__)

    def prior(self) -> Tensor:
        return self.concentration

    def statistics(self, X: Tensor) -> Tensor:
        return X

    def log_base_measure(self, X: Tensor) -> Tensor:
        return torch.lgamma(1 + X.sum(-1)) - torch.lgamma(1 + X).sum(-1)

    def log_partition(self, chi: Tensor) -> Tensor:
        return torch.lgamma(chi).sum(-1) - torch.lgamma(chi.sum(-1))

    def mean_parameters(self, chi: Tensor) -> Tensor:
        return torch.digamma(chi) - torch.digamma(chi.sum(-1, keepdim=True))

    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        return {"probs": sample("probs", _Dirichlet(chi, validate_args=False))}

    def distribution(self, parameters: Parameters) -> Distribution:
        return Counts(parameters["probs"])

    def log_density(self, X: Tensor, parameters: Parameters) -> Tensor:
        return self.linear_log_density(X, _log(parameters["probs"]))

    def coordinates(self, X: Tensor) -> Tensor:
        return X

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """sum_d x_d log(x_d / (n mu_d)), n = sum x, for frequencies mu."""
        return _log(means), means.new_zeros(len(means))

    def divergence_base(self, X: Tensor) -> Tensor:
        return torch.xlogy(X, X).sum(-1) - torch.xlogy(X.sum(-1), X.sum(-1))

    def centers(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Pooled frequencies: rows weigh by their totals."""
        return sums / sums.sum(-1, keepdim=True).clamp(min=torch.finfo(sums.dtype).tiny)

    def pseudo_observation(self) -> tuple[Tensor, float]:
        """One row of `concentration` counts: centre (a0 + sum of rows) / (its total)."""
        return self.concentration, 1.0


class Counts(dist.TorchDistribution):
    """Counts [D] given their total: log Gamma(1 + sum x) - sum log Gamma(1 + x_d) + sum x_d log p_d.

    Unlike `Multinomial` it scores rows of different totals; it can be sampled only if `total_count` is given.
    """

    arg_constraints = {"probs": constraints.simplex}  # noqa: RUF012 (torch's own convention)
    support = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(self, probs: Tensor, total_count: int | None = None) -> None:
        self.probs, self.total_count = probs, total_count
        super().__init__(probs.shape[:-1], probs.shape[-1:], validate_args=False)

    def expand(self, batch_shape: _size, _instance: Any = None) -> Counts:
        return Counts(self.probs.expand(*batch_shape, -1), self.total_count)

    def log_prob(self, value: Tensor) -> Tensor:
        log_ways = torch.lgamma(1 + value.sum(-1)) - torch.lgamma(1 + value).sum(-1)
        return log_ways + (value * _log(self.probs)).sum(-1)

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008 (torch's signature)
        if self.total_count is None:
            raise NotImplementedError("Counts without a total_count cannot be sampled: their totals are not modelled.")
        return dist.Multinomial(self.total_count, self.probs, validate_args=False).sample(sample_shape)


class _Dirichlet(dist.Dirichlet):
    """Dirichlet whose draws stay positive: small concentrations underflow, and log 0 would spoil a trace."""

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:  # noqa: B008 (torch's signature)
        draws = super().rsample(sample_shape)
        return draws.clamp(min=torch.finfo(draws.dtype).tiny)


def _log(probs: Tensor) -> Tensor:
    """log p, finite at p = 0, so that 0 log 0 = 0."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


_TOTAL = 50.0
