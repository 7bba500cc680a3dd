"""Binary columns whose log odds are linear in the features: x_nd ~ Bernoulli(logistic(offset_d + w_d . z_n)).

Sources: Jaakkola & Jordan (2000) for the bound; Polson, Scott & Windle (2013) for the augmentation;
docs/derivations/latent-features, "Mean field".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Gamma
from torch.nn.functional import logsigmoid, softplus

from ..distributions.polya_gamma import polya_gamma
from ..domains import AnyNumbers, Positive
from ..losses.base import PseudoObservation
from ..priors.hyper import Hyper
from ..sums import all_count, all_sum
from .base import hyperparameter
from .linear import LinearLikelihood
from .linear_gaussian import loading_evidence, observed_moments, precision_laws, start_precisions


@dataclass(eq=False)
class LinearBernoulli(LinearLikelihood):
    """Binary entries with log odds linear in the features.

    Parameters
    ----------
    offset : log odds of a row without features, a number or [D]; None: those of the means of the columns
    loading_variance : starting value of the variance of the loadings
    learn : whether this variance is learned; its inverse then has an exponential prior, with mean 1 / loading_variance

    Examples
    --------
    >>> LinearBernoulli(loading_variance=2.0).get_params()["loading_variance"]
    2.0
    """

    offset: AnyNumbers = None
    loading_variance: Positive = 1.0
    learn: bool = True

    def resolve(self, X: Tensor, weights: Tensor | None = None, observed: Tensor | None = None) -> Self:
        number = all_count(len(X)) if weights is None else float(all_sum(weights.sum(dtype=torch.float64)))
        least = 1 / (2 * max(number, 1.0))
        means = observed_moments(X, weights, observed)[0].clamp(least, 1 - least)
        return self.replace(offset=hyperparameter("offset", self.offset, torch.logit(means), X, X.shape[1]))

    def check(self, X: Tensor, observed: Tensor | None = None) -> None:
        wrong = (X != 0) & (X != 1)
        wrong = wrong if observed is None else wrong & (observed > 0)
        if wrong.any():
            row, column = torch.nonzero(wrong)[0].tolist()
            raise ValueError(
                f"X has the value {float(X[row, column]):g} in row {row}, column {column}; LinearBernoulli needs zeros "
                "and ones."
            )

    def hyperpriors(self, like: Tensor) -> dict[str, Gamma | None]:
        return precision_laws(self.learn, like, loading=self.loading_variance)

    def start(self, like: Tensor) -> Hyper:
        return start_precisions(like, loading=self.loading_variance)

    def evidence(
        self, X: Tensor, mean: Tensor, square: Tensor, loadings: Tensor, counted: Tensor
    ) -> dict[str, tuple[Tensor, Tensor]]:
        return loading_evidence(loadings)

    def loading_precision(self, h: Hyper, num_columns: int) -> Tensor:
        return h["loading_precision"].expand(num_columns)

    def distribution(self, mean: Tensor, h: Hyper) -> dist.TorchDistribution:
        return dist.Bernoulli(logits=mean + self.offset)

    def log_density(self, X: Tensor, mean: Tensor, h: Hyper) -> Tensor:
        return logsigmoid((2 * X - 1) * (mean + self.offset))

    def augment(self, X: Tensor, mean: Tensor, h: Hyper, generator: torch.Generator) -> PseudoObservation:
        return self._observe(X, polya_gamma(mean + self.offset, generator))

    def expect(self, X: Tensor, square: Tensor, h: Hyper, mean: Tensor) -> PseudoObservation:
        return self._observe(X, _curvature(self._size(mean, square)))

    def expected_log_density(self, X: Tensor, mean: Tensor, square: Tensor, h: Hyper) -> Tensor:
        """(x - 1/2) E t - log(2 cosh(xi / 2)) with t = m + offset and xi^2 = E t^2."""
        size = self._size(mean, square)
        return (X - 0.5) * (mean + self.offset) - size / 2 - softplus(-size)

    def divergence(self, X: Tensor, mean: Tensor) -> Tensor:
        return -self.log_density(X, mean, {})

    def majorize(self, X: Tensor, mean: Tensor) -> PseudoObservation:
        return self._observe(X, _curvature((mean + self.offset).abs()))

    def _observe(self, X: Tensor, precision: Tensor) -> PseudoObservation:
        return PseudoObservation(precision, X - 0.5 - precision * self.offset)

    def _size(self, mean: Tensor, square: Tensor) -> Tensor:
        """xi [N, D], the root of E (m + offset)^2."""
        return (square + 2 * self.offset * mean + self.offset**2).clamp(min=0).sqrt()


def _curvature(size: Tensor) -> Tensor:
    """tanh(xi / 2) / (2 xi) [N, D], 1/4 at xi = 0."""
    small = size < 1e-4
    return torch.where(small, 0.25 - size.square() / 48, torch.tanh(size / 2) / (2 * size.masked_fill(small, 1.0)))
