"""Hyperparameters with prior laws: their sites, slice sampling and variational factors, for all priors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, Gamma, biject_to, kl_divergence

from ..config import Config
from ..distributions.sampling import uniforms

Hyper = dict[str, Tensor]
"""Values of a prior's hyperparameters by name, each [] float64 in the state of a sampler."""


class HyperPrior(Config, ABC):
    """A prior with hyperparameters: its fields of the same names hold their values, or their starting values."""

    @abstractmethod
    def hyperpriors(self, like: Tensor) -> dict[str, Distribution | None]:
        """The law [] of each hyperparameter, from torch or Pyro, in the dtype of `like` [...]; None if it is fixed."""

    def start(self, like: Tensor) -> Hyper:
        """The starting values, given to the constructor, on the device of `like` [...]."""
        return {name: like.new_tensor(float(getattr(self, name)), dtype=torch.float64) for name in self.laws(like)}

    def sample(self, like: Tensor) -> Hyper:
        """Sample a site of the Pyro program for each hyperparameter with a law, in the dtype of `like` [...]."""
        return sample_hyper(self, like)

    def log_density(self, h: Hyper) -> Tensor:
        """log prior density [] of the hyperparameters that have a law."""
        like = _like(h)
        laws = self.hyperpriors(like.double())
        terms = [law.log_prob(h[name]) for name, law in laws.items() if law is not None]
        return torch.stack(terms).sum() if terms else like.new_zeros(())

    def laws(self, like: Tensor) -> dict[str, Distribution | None]:
        """As `hyperpriors`, in double precision on the device of `like` [...]."""
        return self.hyperpriors(like.new_zeros((), dtype=torch.float64))

    def slide(self, h: Hyper, log_likelihood: Any, generator: torch.Generator) -> Hyper:
        """Take a univariate slice step, on the real line, for each hyperparameter with a law; values are [] each."""
        for name, law in self.laws(_like(h)).items():
            if law is None:
                continue
            transform, others = biject_to(law.support), h

            # the laws are independent, so the others' densities are constant
            def log_target(
                u: Tensor, name: str = name, law: Any = law, transform: Any = transform, others: Hyper = others
            ) -> Tensor:
                value = transform(u)
                log_prior = law.log_prob(value) + transform.log_abs_det_jacobian(u, value)
                return log_likelihood(others | {name: value}) + log_prior

            h = others | {name: transform(slice_step(log_target, transform.inv(h[name]), generator))}
        return h


def _like(h: Hyper) -> Tensor:
    """A value [] of the hyperparameters, whose dtype and device others take; of the host if there are none."""
    return next(iter(h.values()), torch.zeros((), dtype=torch.float64))


def hyper_product(axes: list[Tensor], like: Tensor) -> Tensor:
    """All combinations [H, G] of values of the H hyperparameters, each given [G_h]; [0, 1] if there are none."""
    return torch.cartesian_prod(*axes).view(-1, len(axes)).T if axes else like.new_empty(0, 1)


def sample_hyper(part: Any, like: Tensor) -> Hyper:
    """The hyperparameters of a part with `start` and `hyperpriors`, each [] in the dtype of `like` [...].

    A hyperparameter with a law is a site of the Pyro program; any other has its starting value.
    """
    start = part.start(like)
    return {
        name: start[name].to(like) if law is None else pyro.sample(name, _as_site(law))
        for name, law in part.hyperpriors(like).items()
    }


def _as_site(law: Any) -> Any:
    """The same law in a form that Pyro can sample; torch's own laws are wrapped."""
    return law if callable(law) else dist.TransformedDistribution(law, [])


def gamma_law(prior: tuple[float, float] | None, like: Tensor) -> dist.Gamma | None:
    """Gamma(shape, rate) in the dtype of `like` [...]; None without a prior. Validation would make the host wait."""
    if prior is None:
        return None
    return dist.Gamma(*(like.new_tensor(float(value)) for value in prior), validate_args=False)


class GammaConcentration(HyperPrior):
    """A prior with one hyperparameter, the `concentration` alpha, fixed or with a gamma law, given its sticks:

        alpha ~ Gamma(shape, rate),    alpha | sticks ~ Gamma(shape + count, rate - sum of their logarithms)

    q(alpha) is Gamma(shape, rate) [2], or (alpha, 1) if alpha is fixed.
    """

    concentration: float
    concentration_prior: tuple[float, float] | None

    def hyperpriors(self, like: Tensor) -> dict[str, Distribution | None]:
        return {"concentration": gamma_law(self.concentration_prior, like)}

    def draw_concentration(self, h: Hyper, count: int, rate: Tensor | float, generator: torch.Generator) -> Hyper:
        """Draw alpha ~ Gamma(shape + count, prior rate + `rate` []); h unchanged if alpha is fixed."""
        if self.concentration_prior is None:
            return h
        shape, prior_rate = self.concentration_prior
        drawn = torch._standard_gamma(torch.full_like(h["concentration"], shape + count), generator=generator)
        return {"concentration": drawn / (prior_rate + rate)}

    def initial_concentration(self, like: Tensor) -> Tensor:
        """The initial q(alpha) [2], in the dtype and on the device of `like` [...]."""
        return like.new_tensor(self.concentration_prior or (self.concentration, 1.0))

    def best_concentration(self, q: Tensor, count: int, rate: Tensor) -> Tensor:
        """The optimal q(alpha) [2]; `rate` [] is minus the sum of the expected logarithms of `count` sticks."""
        return best_gamma(q, self.concentration_prior, count, rate)

    def expect_concentration(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(E alpha, E log alpha, KL(q || p)), each [], under q(alpha) [2]."""
        return expect_gamma(q, self.concentration_prior)


def best_gamma(q: Tensor, prior: tuple[float, float] | None, count: int, rate: Tensor) -> Tensor:
    """As `GammaConcentration.best_concentration`, for the prior (shape, rate); q [2] itself if alpha is fixed."""
    if prior is None:
        return q
    shape, prior_rate = prior
    return torch.stack([rate.new_tensor(shape + count), prior_rate + rate])


def expect_gamma(q: Tensor, prior: tuple[float, float] | None) -> tuple[Tensor, Tensor, Tensor]:
    """(E alpha, E log alpha, KL(q || p)), each [], under q(alpha) [2], which is (alpha, 1) if alpha is fixed."""
    shape, rate = q
    if prior is None:
        return shape / rate, (shape / rate).log(), q.new_zeros(())
    pairs = q, q.new_tensor(prior)
    kl = kl_divergence(*(Gamma(one, two, validate_args=False) for one, two in pairs))
    return shape / rate, torch.digamma(shape) - rate.log(), kl


def slice_step(log_density: Callable[[Tensor], Tensor], value: Tensor, generator: torch.Generator) -> Tensor:
    """A slice step from `value` [] for exp(log_density) on the real line (Neal 2003): step out by 1, then shrink."""
    height, place = uniforms((2,), generator)
    level = log_density(value) + torch.log1p(-height)
    low = value - place
    high = low + 1
    for _ in range(_MOST_STEPS):
        if log_density(low) <= level:
            break
        low = low - 1
    for _ in range(_MOST_STEPS):
        if log_density(high) <= level:
            break
        high = high + 1
    while True:
        proposal = low + (high - low) * uniforms((), generator)
        if log_density(proposal) > level or high - low < _NARROW:
            return proposal if high - low >= _NARROW else value
        low, high = (proposal, high) if proposal < value else (low, proposal)


_MOST_STEPS = 100
_NARROW = 1e-12
