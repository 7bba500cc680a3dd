"""Finitely many features with independent probabilities, another truncation of the Indian buffet process.

    pi_k ~ Beta(alpha / K, 1),   z_nk ~ Bernoulli(pi_k)        k = 1..K,   alpha ~ Gamma

Features are exchangeable, and the kernels are simpler and need no bounds. As K grows it tends to the Indian buffet
process. Source: Griffiths & Ghahramani (2011); docs/derivations/latent-features, "Joint density" and "Mean field" and
"Gibbs".
"""

from __future__ import annotations

from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from ..domains import GammaPrior, Positive
from .features import FeatureFactors, FeaturePrior
from .hyper import GammaConcentration, Hyper
from .sticks import expected_log_sticks, log_beta


@dataclass(eq=False)
class BetaBernoulli(GammaConcentration, FeaturePrior):
    """K independent binary features: a row has feature k with probability pi_k ~ Beta(alpha / K, 1).

    Parameters
    ----------
    concentration : alpha > 0 (the starting value if it has a prior); a row is expected to have about alpha features
    concentration_prior : (shape, rate) of alpha ~ Gamma, or None for a fixed alpha

    Examples
    --------
    >>> BetaBernoulli(concentration=3.0).get_params()["concentration"]
    3.0
    """

    concentration: Positive = 2.0
    concentration_prior: GammaPrior | None = None

    def probabilities(self, h: Hyper, truncation: int) -> Tensor:
        a = h["concentration"] / truncation
        with pyro.plate("probabilities_plate", truncation):
            return pyro.sample("probabilities", dist.Beta(a, torch.ones_like(a)))

    def log_probabilities(self, pi: Tensor, h: Hyper) -> Tensor:
        a = h["concentration"] / len(pi)
        return len(pi) * a.log() + (a - 1) * pi.log().sum()

    def start_probabilities(self, h: Hyper, truncation: int) -> Tensor:
        a = h["concentration"] / truncation
        return (a / (a + 1)).expand(truncation).clone()

    def draw_probabilities(
        self, pi: Tensor, counts: Tensor, num_data: int, h: Hyper, generator: torch.Generator
    ) -> Tensor:
        """pi_k | Z ~ Beta(alpha / K + m_k, 1 + N - m_k)."""
        m = counts.to(pi)
        one, two = (
            torch._standard_gamma(shape, generator=generator)
            for shape in (h["concentration"].to(pi) / len(pi) + m, 1 + num_data - m)
        )
        return (one / (one + two)).clamp(min=torch.finfo(pi.dtype).tiny)

    def draw_truncated(self, h: Hyper, pi: Tensor, generator: torch.Generator) -> Hyper:
        """alpha | pi ~ Gamma(shape + K, rate - mean_k log pi_k)."""
        return self.draw_concentration(h, len(pi), -pi.log().mean(), generator)

    def log_features(self, counts: Tensor, num_data: int, h: Hyper) -> Tensor:
        a = h["concentration"] / len(counts)
        m = counts.to(a)
        return (log_beta(a + m, 1 + num_data - m) - log_beta(a, torch.ones_like(a))).sum()

    # -- SVI -----------------------------------------------------------------------------------------------------------

    def initial(self, like: Tensor, truncation: int) -> FeatureFactors:
        q = self.initial_concentration(like)
        return FeatureFactors((q[0] / q[1] / truncation).expand(truncation).clone(), like.new_ones(truncation), q)

    def update_sticks(self, q: FeatureFactors, expected: Tensor, total: float | Tensor) -> FeatureFactors:
        a = q.concentration[0] / q.concentration[1] / len(expected) + expected
        return FeatureFactors(a, 1 + total - expected, q.concentration)

    def update_concentration(self, q: FeatureFactors) -> FeatureFactors:
        rate = -expected_log_sticks(q.a, q.b)[0].mean()
        return q._replace(concentration=self.best_concentration(q.concentration, len(q.a), rate))

    def log_odds(self, q: FeatureFactors) -> Tensor:
        return torch.digamma(q.a) - torch.digamma(q.b)

    def bound(self, q: FeatureFactors, expected: Tensor, total: float | Tensor) -> Tensor:
        log_pi, log_rest = expected_log_sticks(q.a, q.b)
        mean, log_mean, kl = self.expect_concentration(q.concentration)
        K = len(q.a)
        each = log_mean - torch.log(mean.new_tensor(K)) + (mean / K - q.a) * log_pi
        each = each - (q.b - 1) * log_rest + log_beta(q.a, q.b)
        return each.sum() - kl + (expected * log_pi + (total - expected) * log_rest).sum()
