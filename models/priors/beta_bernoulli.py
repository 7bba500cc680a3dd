"""Finitely many features with independent probabilities: the other truncation of the Indian buffet process.

    pi_k ~ Beta(alpha / K, 1),   z_nk ~ Bernoulli(pi_k)        k = 1..K,   alpha ~ Gamma

Features are exchangeable, kernels simpler, and nothing is bounded. It tends to the Indian buffet process as K grows.
Source: Griffiths & Ghahramani (2011); math/latent-features, sections 1 to 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, Gamma, kl_divergence

from ..domains import GammaPrior, Positive
from .features import FeatureFactors, FeaturePrior
from .hyper import Hyper, gamma_law
from .sticks import expected_log_sticks, log_beta


@dataclass(eq=False)
class BetaBernoulli(FeaturePrior):
    """Independent features, each as likely as a draw from Beta(alpha / K, 1).

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

    def hyperpriors(self, like: Tensor) -> dict[str, Distribution | None]:
        return {"concentration": gamma_law(self.concentration_prior, like)}

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
        if self.concentration_prior is None:
            return h
        shape, rate = self.concentration_prior
        drawn = torch._standard_gamma(torch.full_like(h["concentration"], shape + len(pi)), generator=generator)
        return {"concentration": drawn / (rate - pi.log().mean())}

    def log_features(self, counts: Tensor, num_data: int, h: Hyper) -> Tensor:
        a = h["concentration"] / len(counts)
        m = counts.to(a)
        return (log_beta(a + m, 1 + num_data - m) - log_beta(a, torch.ones_like(a))).sum()

    # -- SVI -----------------------------------------------------------------------------------------------------------

    def initial(self, like: Tensor, truncation: int) -> FeatureFactors:
        q = like.new_tensor(self.concentration_prior or (self.concentration, 1.0))
        return FeatureFactors((q[0] / q[1] / truncation).expand(truncation).clone(), like.new_ones(truncation), q)

    def update_sticks(self, q: FeatureFactors, expected: Tensor, total: float | Tensor) -> FeatureFactors:
        a = q.concentration[0] / q.concentration[1] / len(expected) + expected
        return FeatureFactors(a, 1 + total - expected, q.concentration)

    def update_concentration(self, q: FeatureFactors) -> FeatureFactors:
        if self.concentration_prior is None:
            return q
        shape, rate = self.concentration_prior
        log_pi = expected_log_sticks(q.a, q.b)[0].mean()
        return q._replace(concentration=torch.stack([log_pi.new_tensor(shape + len(q.a)), rate - log_pi]))

    def log_odds(self, q: FeatureFactors) -> Tensor:
        return torch.digamma(q.a) - torch.digamma(q.b)

    def bound(self, q: FeatureFactors, expected: Tensor, total: float | Tensor) -> Tensor:
        log_pi, log_rest = expected_log_sticks(q.a, q.b)
        shape, rate = q.concentration
        mean, log_mean, kl = shape / rate, (shape / rate).log(), shape.new_zeros(())
        if self.concentration_prior is not None:
            log_mean = torch.digamma(shape) - rate.log()
            pairs = q.concentration, q.concentration.new_tensor(self.concentration_prior)
            kl = kl_divergence(*(Gamma(one, two, validate_args=False) for one, two in pairs))
        K = len(q.a)
        each = log_mean - torch.log(mean.new_tensor(K)) + (mean / K - q.a) * log_pi
        each = each - (q.b - 1) * log_rest + log_beta(q.a, q.b)
        return each.sum() - kl + (expected * log_pi + (total - expected) * log_rest).sum()
