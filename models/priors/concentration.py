"""One concentration with a gamma law: its draws given sticks, and its q in SVI, whatever the sticks are of.

alpha ~ Gamma(shape, rate),    alpha | sticks ~ Gamma(shape + count, rate - sum of their logarithms)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, Gamma, kl_divergence

from .hyper import Hyper, HyperPrior, gamma_law


class GammaConcentration(HyperPrior):
    """A prior whose one hyperparameter is a `concentration` alpha, fixed or with a gamma law.

    q(alpha) is Gamma(shape, rate) [2], or (alpha, 1) where alpha is fixed.
    """

    concentration: float
    concentration_prior: tuple[float, float] | None

    def hyperpriors(self, like: Tensor) -> dict[str, Distribution | None]:
        return {"concentration": gamma_law(self.concentration_prior, like)}

    def draw_concentration(self, h: Hyper, count: int, rate: Tensor | float, generator: torch.Generator) -> Hyper:
        """alpha ~ Gamma(shape + count, prior rate + `rate` []); h as it is where alpha is fixed."""
        if self.concentration_prior is None:
            return h
        shape, prior_rate = self.concentration_prior
        drawn = torch._standard_gamma(torch.full_like(h["concentration"], shape + count), generator=generator)
        return {"concentration": drawn / (prior_rate + rate)}

    def initial_concentration(self, like: Tensor) -> Tensor:
        """q(alpha) [2] to start from, in the dtype and on the device of `like` [...]."""
        return like.new_tensor(self.concentration_prior or (self.concentration, 1.0))

    def best_concentration(self, q: Tensor, count: int, rate: Tensor) -> Tensor:
        """The optimal q(alpha) [2] given expected logarithms of `count` sticks, minus their sum in `rate` []."""
        return best_gamma(q, self.concentration_prior, count, rate)

    def expect_concentration(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(E alpha, E log alpha, KL(q || p)), each [], under q(alpha) [2]."""
        return expect_gamma(q, self.concentration_prior)


def best_gamma(q: Tensor, prior: tuple[float, float] | None, count: int, rate: Tensor) -> Tensor:
    """The optimal q(alpha) [2] given expected logarithms of `count` sticks, minus their sum in `rate` []; q itself of a
    fixed alpha."""
    if prior is None:
        return q
    shape, prior_rate = prior
    return torch.stack([rate.new_tensor(shape + count), prior_rate + rate])


def expect_gamma(q: Tensor, prior: tuple[float, float] | None) -> tuple[Tensor, Tensor, Tensor]:
    """(E alpha, E log alpha, KL(q || p)), each [], under q(alpha) [2]; (alpha, 1) of a fixed alpha."""
    shape, rate = q
    if prior is None:
        return shape / rate, (shape / rate).log(), q.new_zeros(())
    pairs = q, q.new_tensor(prior)
    kl = kl_divergence(*(Gamma(one, two, validate_args=False) for one, two in pairs))
    return shape / rate, torch.digamma(shape) - rate.log(), kl
