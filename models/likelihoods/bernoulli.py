"""Binary columns and their Beta priors.

p_d ~ Beta(a_d, b_d),  x_d ~ Bernoulli(p_d)
statistics (x, 1 - x),  chi = (a, b),  log h(x) = 0
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
from .base import Parameters, Sample, hyperparameter
from .counts import CountFamily


@dataclass(eq=False)
class BernoulliBeta(CountFamily):
    """Binary rows x [D], x_d ~ Bernoulli(p_d), with p_d ~ Beta(a_d, b_d).

    Parameters
    ----------
    a, b : positive, numbers or [D]; None: 1/2. SmallVariance needs one and the same a + b in all columns
    """

    a: PositiveNumbers = None
    b: PositiveNumbers = None

    faults = (("negative", lambda x: x < 0), ("neither 0 nor 1", lambda x: (x != 0) & (x != 1)))
    accepted = "0 and 1; binarize X, or use another family"

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        return self.replace(
            a=hyperparameter("a", self.a, 0.5, X, X.shape[1]),
            b=hyperparameter("b", self.b, 0.5, X, X.shape[1]),
        )

    def prior(self) -> Tensor:
        return torch.cat([self.a, self.b])

    def spread(self, sums: Tensor, counts: Tensor) -> Tensor:
        return torch.cat([sums, counts.unsqueeze(-1) - sums], -1)

    def linear(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        one, zero = natural.chunk(2, -1)
        return one - zero, zero.sum(-1)

    def log_base_measure(self, X: Rows) -> Tensor:
        return X.new_zeros(len(X))

    def log_partition(self, chi: Tensor) -> Tensor:
        a, b = chi.chunk(2, -1)
        return (torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)).sum(-1)

    def mean_parameters(self, chi: Tensor) -> Tensor:
        a, b = chi.chunk(2, -1)
        return torch.digamma(chi) - torch.digamma(a + b).repeat(*[1] * (chi.ndim - 1), 2)

    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        a, b = chi.chunk(2, -1)
        return {"probs": sample("probs", dist.Beta(a, b, validate_args=False).to_event(1))}

    def distribution(self, parameters: Parameters) -> Distribution:
        return dist.Bernoulli(_inside(parameters["probs"]), validate_args=False).to_event(1)

    def log_density(self, X: Rows, parameters: Parameters) -> Tensor:
        return self.linear_log_density(X, _logs(parameters["probs"]))

    def log_predictive(self, X: Rows, chi: Tensor) -> Tensor:
        """The predictive Bernoulli(a / (a + b)) of each column."""
        a, b = chi.chunk(2, -1)
        return self.linear_log_density(X, chi.log() - (a + b).log().repeat(1, 2))

    def log_repeat(self, X: Rows) -> Tensor:
        """(a + 1) / (a + b + 1) for a one, (b + 1) / (a + b + 1) for a zero."""
        X, a, b = X.double(), self.a.double(), self.b.double()
        ones = entries_sum(X, lambda x, gain: x * gain, torch.log((a + 1) / (b + 1)))
        return ones + torch.log((b + 1) / (a + b + 1)).sum()

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """KL(Bernoulli(x) || Bernoulli(mu)), which is -x log mu - (1 - x) log(1 - mu) for binary x."""
        log_p, log_q = _logs(means).chunk(2, -1)
        return log_p - log_q, -log_q.sum(-1)

    def potential(self, x: Tensor) -> Tensor:
        return torch.xlogy(x, x) + torch.xlogy(1 - x, 1 - x)

    def pseudo_observation(self) -> tuple[Tensor, float]:
        """The prior as a + b rows equal to its mean a / (a + b): centre (a + sum of rows) / (a + b + their number)."""
        total = self.a + self.b
        if not torch.allclose(total, total[:1]):
            raise ValueError(
                f"a + b lies between {total.min().item():g} and {total.max().item():g}; SmallVariance takes the prior "
                "as a + b rows, so a + b must be the same in all columns."
            )
        return self.a / total, total[0].item()


def _inside(probs: Tensor) -> Tensor:
    """Probabilities [...] within the open unit interval, so that 0 log 0 = 0."""
    limits = torch.finfo(probs.dtype)
    return probs.clamp(limits.tiny, 1 - limits.eps)


def _logs(probs: Tensor) -> Tensor:
    """(log p, log(1 - p)) [..., 2 D]."""
    probs = _inside(probs)
    return torch.cat([probs.log(), torch.log1p(-probs)], -1)


register_compiled(BernoulliBeta, f"{__package__}._numba_bernoulli:Bernoulli")
