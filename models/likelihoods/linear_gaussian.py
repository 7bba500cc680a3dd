"""The linear-Gaussian likelihood of latent feature models: x_n ~ N(offset + W^T z_n, noise variance).

Sources: Griffiths & Ghahramani (2011); Zhu, Chen & Xing, equations (16) and (17); docs/derivations/latent-features,
"Joint density".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Gamma

from ..domains import AnyNumbers, Positive
from ..losses.base import PseudoObservation
from ..priors.hyper import Hyper, gamma_law
from ..sums import all_sum
from .base import hyperparameter
from .linear import LinearLikelihood


@dataclass(eq=False)
class LinearGaussian(LinearLikelihood):
    """Gaussian entries around a linear function of the features, with one noise variance.

    Unless `learn` is False, the precisions of noise and loadings have exponential priors whose means are the inverses
    of the variances below. Gibbs draws the precisions, SVI has q's of them; with much data these tend to the
    empirical-Bayes estimates of the paper.

    Parameters
    ----------
    offset : the mean of a row without features, a number or [D]; None: the means of the columns
    noise_variance : starting value of the variance; None: a quarter of the mean variance of the columns
    loading_variance : starting value of the variance of the loadings; None: the mean variance of the columns
    learn : whether the two variances are learned

    Examples
    --------
    >>> LinearGaussian(noise_variance=0.5, learn=False).get_params()["noise_variance"]
    0.5
    """

    offset: AnyNumbers = None
    noise_variance: Positive | None = None
    loading_variance: Positive | None = None
    learn: bool = True

    def resolve(self, X: Tensor, weights: Tensor | None = None, observed: Tensor | None = None) -> Self:
        means, variances = observed_moments(X, weights, observed)
        spread = float(variances.mean()) or 1.0
        return self.replace(
            offset=hyperparameter("offset", self.offset, means, X, X.shape[1]),
            noise_variance=self.noise_variance or spread / 4,
            loading_variance=self.loading_variance or spread,
        )

    def hyperpriors(self, like: Tensor) -> dict[str, Gamma | None]:
        return precision_laws(self.learn, like, noise=self.noise_variance, loading=self.loading_variance)

    def start(self, like: Tensor) -> Hyper:
        return start_precisions(like, noise=self.noise_variance, loading=self.loading_variance)

    def evidence(
        self, X: Tensor, mean: Tensor, square: Tensor, loadings: Tensor, counted: Tensor
    ) -> dict[str, tuple[Tensor, Tensor]]:
        residual = X - self.offset
        error = torch.addcmul(square, residual, torch.sub(residual, mean, alpha=2)).mul_(counted)
        number = counted.sum(dtype=torch.float64) * (X.shape[1] // counted.shape[1])
        return {"noise_precision": (number / 2, error.sum(dtype=torch.float64) / 2)} | loading_evidence(loadings)

    def loading_precision(self, h: Hyper, num_columns: int) -> Tensor:
        return h["loading_precision"].expand(num_columns)

    def distribution(self, mean: Tensor, h: Hyper) -> dist.TorchDistribution:
        return dist.Normal(mean + self.offset, h["noise_precision"].to(mean).rsqrt())

    def log_density(self, X: Tensor, mean: Tensor, h: Hyper) -> Tensor:
        return self.expected_log_density(X, mean, mean.square(), h)

    def augment(self, X: Tensor, mean: Tensor, h: Hyper, generator: torch.Generator) -> PseudoObservation:
        return self._observe(X, h["noise_precision"])

    def expect(self, X: Tensor, square: Tensor, h: Hyper, mean: Tensor) -> PseudoObservation:
        return self._observe(X, h["noise_precision"])

    def expected_log_density(self, X: Tensor, mean: Tensor, square: Tensor, h: Hyper) -> Tensor:
        precision = h["noise_precision"]
        log_precision = h.get("log_noise_precision", precision.log())
        residual = X - self.offset
        error = residual.square() - 2 * residual * mean + square
        return ((log_precision - math.log(2 * math.pi)).to(X) - precision.to(X) * error) / 2

    def divergence(self, X: Tensor, mean: Tensor) -> Tensor:
        return (X - self.offset - mean).square() / (2 * float(self.noise_variance or 1.0))

    def majorize(self, X: Tensor, mean: Tensor) -> PseudoObservation:
        return self._observe(X, X.new_tensor(1 / float(self.noise_variance or 1.0)))

    def _observe(self, X: Tensor, precision: Tensor) -> PseudoObservation:
        precision = precision.to(X)
        return PseudoObservation(precision.expand(1, X.shape[1]), (X - self.offset).mul_(precision))


def observed_moments(X: Tensor, weights: Tensor | None, observed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Means and variances [D] of the observed entries of each column of X [N, D]; 0 without observed entries."""
    counted = torch.ones_like(X[:, :1], dtype=torch.float64) if weights is None else weights.double().unsqueeze(1)
    counted = counted.expand_as(X) if observed is None else counted * observed
    total = all_sum(counted.sum(0)).clamp(min=torch.finfo(torch.float64).tiny)
    means = all_sum((counted * X).sum(0)) / total
    variances = all_sum((counted * (X - means).square()).sum(0)) / total
    return means.to(X), variances.to(X)


def precision_laws(learn: bool, like: Tensor, **variances: float | None) -> dict[str, Gamma | None]:
    """Exponential laws of the precisions, whose means are 1 / `variances`; None unless `learn`; `like` [...]."""
    return {
        f"{name}_precision": gamma_law((1.0, float(variance or 1.0)) if learn else None, like)
        for name, variance in variances.items()
    }


def start_precisions(like: Tensor, **variances: float | None) -> Hyper:
    """The precisions 1 / `variances`, each [] float64 on the device of `like` [...]."""
    return {
        f"{name}_precision": like.new_tensor(1 / float(variance or 1.0), dtype=torch.float64)
        for name, variance in variances.items()
    }


def loading_evidence(loadings: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """The increments of the gamma law of the loadings' precision, from `loadings` [D + 1] as in `evidence`."""
    squares, number = loadings[:-1].double(), loadings[-1].double()
    return {"loading_precision": (number * len(squares) / 2, squares.sum() / 2)}
