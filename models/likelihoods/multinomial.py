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

from ..compiled import register_compiled
from ..distributions import split_counts
from ..domains import PositiveNumbers
from ..sparse import Rows, SparseRows, entries_sum
from ..sums import row_chunks
from .base import Parameters, Sample, hyperparameter
from .counts import CountFamily, finite_log, log_rising


@dataclass(eq=False)
class MultinomialDirichlet(CountFamily):
    """Rows of counts x [D] ~ Multinomial(sum x, p) with p ~ Dirichlet(concentration).

    The totals may differ between rows and are not modelled; a row of zeros is equally likely in every component.

    Parameters
    ----------
    concentration : a0 > 0, a number or [D]; None: 1/2, or 50 / D if that is less
    """

    concentration: PositiveNumbers = None

    @property
    def given_totals(self) -> bool:
        return True

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        default = min(0.5, 50 / X.shape[1])
        return self.replace(concentration=hyperparameter("concentration", self.concentration, default, X, X.shape[1]))

    def prior(self) -> Tensor:
        return self.concentration

    def spread(self, sums: Tensor, counts: Tensor) -> Tensor:
        return sums

    def linear(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        return natural, natural.new_zeros(len(natural))

    def log_base_measure(self, X: Rows) -> Tensor:
        def find() -> Tensor:
            return torch.lgamma(1 + X.sum(-1)) - entries_sum(X, _log_factorial)

        return X.once("log_ways", find) if isinstance(X, SparseRows) else find()

    def log_partition(self, chi: Tensor) -> Tensor:
        return torch.lgamma(chi).sum(-1) - torch.lgamma(chi.sum(-1))

    def mean_parameters(self, chi: Tensor) -> Tensor:
        return torch.digamma(chi) - torch.digamma(chi.sum(-1, keepdim=True))

    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        return {"probs": sample("probs", _Dirichlet(chi, validate_args=False))}

    def distribution(self, parameters: Parameters) -> Distribution:
        return Counts(parameters["probs"])

    def draw_rows(self, parameters: Parameters, generator: torch.Generator, totals: Tensor | None = None) -> Tensor:
        if totals is None:
            return super().draw_rows(parameters, generator)
        probs = parameters["probs"]
        found = torch.zeros_like(probs)
        for some in row_chunks(probs, probs.shape[1]):
            own = torch.arange(len(probs[some]), device=probs.device)
            row, column, count = split_counts(totals[some], own, probs[some], generator)
            found[some][row, column] = count.to(probs)
        return found

    def log_density(self, X: Rows, parameters: Parameters) -> Tensor:
        return self.linear_log_density(X, finite_log(parameters["probs"]))

    def log_predictive(self, X: Rows, chi: Tensor) -> Tensor:
        """prod_d (a_d)_{x_d} / (sum a)_{sum x} times the base measure, with rising factorials (a)_x."""
        a, n = chi.double().sum(-1), X.sum(-1).double().unsqueeze(1)
        gain = log_rising(X, chi) - torch.lgamma(a + n) + torch.lgamma(a)
        return (gain + self.log_base_measure(X).unsqueeze(1)).to(X.dtype)

    def log_repeat(self, X: Rows) -> Tensor:
        """The log predictive with a + x in place of a."""
        X = X.double()
        a, n = self.concentration.double(), X.sum(-1)
        gain = entries_sum(X, lambda x, a: torch.lgamma(a + 2 * x) - torch.lgamma(a + x), a)
        return gain - torch.lgamma(a.sum() + 2 * n) + torch.lgamma(a.sum() + n) + self.log_base_measure(X)

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """slope and offset of sum_d x_d log(x_d / (n mu_d)), n = sum x, at frequencies mu [K, D]."""
        return finite_log(means), means.new_zeros(len(means))

    def potential(self, x: Tensor) -> Tensor:
        return torch.xlogy(x, x)

    def total_potential(self, total: Tensor) -> Tensor:
        return -torch.xlogy(total, total)

    def centers(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Pooled frequencies [K, D], in which rows are weighted by their totals."""
        return sums / sums.sum(-1, keepdim=True).clamp(min=torch.finfo(sums.dtype).tiny)

    def pseudo_observation(self) -> tuple[Tensor, float]:
        """One row of `concentration` counts: its centre is (a0 + sum of rows) / (total of this)."""
        return self.concentration, 1.0


class Counts(dist.TorchDistribution):
    """Counts [D] given their total: log Gamma(1 + sum x) - sum log Gamma(1 + x_d) + sum x_d log p_d.

    Unlike `Multinomial` it takes rows of different totals; it can be sampled only if `total_count` is given.
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
        return log_ways + (value * finite_log(self.probs)).sum(-1)

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:
        if self.total_count is None:
            raise NotImplementedError("Counts without a total_count cannot be sampled: their totals are not modelled.")
        return dist.Multinomial(self.total_count, self.probs, validate_args=False).sample(sample_shape)


def _log_factorial(x: Tensor) -> Tensor:
    """log Gamma(1 + x) [...] of counts [...], most of which are small."""
    most = int(x.max()) if x.numel() else 0
    if most > _MOST_LISTED:
        return torch.lgamma(1 + x)
    return torch.lgamma(torch.arange(1, most + 2, dtype=x.dtype, device=x.device))[x.long()]


_MOST_LISTED = 4096


class _Dirichlet(dist.Dirichlet):
    """A Dirichlet law whose draws stay positive: with small concentrations they underflow, and log 0 would be inf."""

    def rsample(self, sample_shape: _size = torch.Size()) -> Tensor:
        draws = super().rsample(sample_shape)
        return draws.clamp(min=torch.finfo(draws.dtype).tiny)


register_compiled(MultinomialDirichlet, f"{__package__}._numba_counts:Multinomial")
