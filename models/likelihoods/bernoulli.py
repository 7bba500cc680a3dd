"""Binary columns and their Beta priors.

p_d ~ Beta(a_d, b_d),  x_d ~ Bernoulli(p_d)
statistics (x, 1 - x),  chi = (a, b),  log h(x) = 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from .base import Likelihood, Parameters, Sample, hyperparameter

__all__ = ["BernoulliBeta"]


@dataclass(eq=False)
class BernoulliBeta(Likelihood):
    """Binary rows x [D], x_d ~ Bernoulli(p_d), with p_d ~ Beta(a_d, b_d).

    Parameters
    ----------
    a, b : positive, numbers or [D]; None: 1/2. SmallVariance needs one and the same a + b in all columns
    """

    a: Any = None
    b: Any = None

    def resolve(self, X: Tensor) -> Self:
        return self.replace(
            a=hyperparameter("a", self.a, 0.5, X, X.shape[1]),
            b=hyperparameter("b", self.b, 0.5, X, X.shape[1]),
        )

    def check(self, X: Tensor) -> None:
        wrong = (X != 0) & (X != 1)
        if wrong.any():
            row, column = torch.nonzero(wrong)[0].tolist()
            value = X[row, column].item()
            sign = "a negative value" if value < 0 else "a value that is neither 0 nor 1"
            raise ValueError(
                f"X has {sign}: {value} in row {row}, column {column}. BernoulliBeta accepts 0 and 1; "
                "binarize X, or use another family."
            )

    def prior(self) -> Tensor:
        return torch.cat([self.a, self.b])

    def statistics(self, X: Tensor) -> Tensor:
        return torch.cat([X, 1 - X], 1)

    def log_base_measure(self, X: Tensor) -> Tensor:
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

    def log_density(self, X: Tensor, parameters: Parameters) -> Tensor:
        return self.linear_log_density(X, _logs(parameters["probs"]))

    def log_predictive(self, X: Tensor, chi: Tensor) -> Tensor:
        """Bernoulli(a / (a + b)) in each column."""
        a, b = chi.chunk(2, -1)
        return self.linear_log_density(X, chi.log() - (a + b).log().repeat(1, 2))

    def coordinates(self, X: Tensor) -> Tensor:
        return X

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """KL(Bernoulli(x) || Bernoulli(mu)), which is -x log mu - (1 - x) log(1 - mu) for binary x."""
        log_p, log_q = _logs(means).chunk(2, -1)
        return log_p - log_q, -log_q.sum(-1)

    def divergence_base(self, X: Tensor) -> Tensor:
        return (torch.xlogy(X, X) + torch.xlogy(1 - X, 1 - X)).sum(-1)

    def pseudo_observation(self) -> tuple[Tensor, float]:
        """a + b copies of the prior mean a / (a + b): centre (a + sum of rows) / (a + b + their number)."""
        total = self.a + self.b
        if not torch.allclose(total, total[:1]):
            raise ValueError(
                f"a + b lies between {total.min().item():g} and {total.max().item():g}; SmallVariance takes the prior "
                "as a + b rows, so a + b must be the same in all columns."
            )
        return self.a / total, total[0].item()


def _inside(probs: Tensor) -> Tensor:
    """p within the open unit interval, so that 0 log 0 = 0."""
    limits = torch.finfo(probs.dtype)
    return probs.clamp(limits.tiny, 1 - limits.eps)


def _logs(probs: Tensor) -> Tensor:
    """(log p, log(1 - p)) [..., 2 D]."""
    probs = _inside(probs)
    return torch.cat([probs.log(), torch.log1p(-probs)], -1)
