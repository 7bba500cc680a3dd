"""Hyperparameters with laws of their own: what every prior shares, whatever structure it is over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to

from ..config import Config
from .slice_step import slice_step

Hyper = dict[str, Tensor]
"""Values of a prior's hyperparameters by name, each [] float64 in the state of a sampler."""


class HyperPrior(Config, ABC):
    """A prior with hyperparameters: its fields of the same names are their values, or where they start."""

    @abstractmethod
    def hyperpriors(self, like: Tensor) -> dict[str, Distribution | None]:
        """The law of each hyperparameter, None where it is fixed; tensors take dtype and device of `like` [...]."""

    def start(self, like: Tensor) -> Hyper:
        """The values given to the constructor, on the device of `like` [...]."""
        return {name: like.new_tensor(float(getattr(self, name)), dtype=torch.float64) for name in self.laws(like)}

    def sample(self, like: Tensor) -> Hyper:
        """Sites of the Pyro program in the dtype of `like` [...]: one for each hyperparameter with a law."""
        return sample_hyper(self, like)

    def log_density(self, h: Hyper) -> Tensor:
        """log prior density [] of the hyperparameters that have a law."""
        values = next(iter(h.values()))
        laws = self.hyperpriors(values.double())
        terms = [law.log_prob(h[name]) for name, law in laws.items() if law is not None]
        return torch.stack(terms).sum() if terms else values.new_zeros(())

    def laws(self, like: Tensor) -> dict[str, Distribution | None]:
        """The same as `hyperpriors`, in double precision on the device of `like` [...]."""
        return self.hyperpriors(like.new_zeros((), dtype=torch.float64))

    def slide(self, h: Hyper, log_likelihood: Any, generator: torch.Generator) -> Hyper:
        """A univariate slice step for each hyperparameter with a law, on the real line."""
        for name, law in self.laws(next(iter(h.values()))).items():
            if law is None:
                continue
            transform, others = biject_to(law.support), h

            # the laws are independent: that of the others stays as it is
            def log_target(
                u: Tensor, name: str = name, law: Any = law, transform: Any = transform, others: Hyper = others
            ) -> Tensor:
                value = transform(u)
                log_prior = law.log_prob(value) + transform.log_abs_det_jacobian(u, value)
                return log_likelihood(others | {name: value}) + log_prior

            h = others | {name: transform(slice_step(log_target, transform.inv(h[name]), generator))}
        return h


def sample_hyper(part: Any, like: Tensor) -> Hyper:
    """The hyperparameters of a part with `start` and `hyperpriors`, each [] in the dtype of `like` [...]: as it starts,
    or a site of the Pyro program where it has a law."""
    start = part.start(like)
    return {
        name: start[name].to(like) if law is None else pyro.sample(name, law)
        for name, law in part.hyperpriors(like).items()
    }


def gamma_law(prior: tuple[float, float] | None, like: Tensor) -> dist.Gamma | None:
    """Gamma(shape, rate) in the dtype of `like` [...]; None: no prior. Checks of values would hold up the host."""
    if prior is None:
        return None
    return dist.Gamma(*(like.new_tensor(float(value)) for value in prior), validate_args=False)
