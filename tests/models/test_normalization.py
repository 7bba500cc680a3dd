"""The total mass of a density of rows: 1 for laws of any shape and scale, or undecided, and seen to be another."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from regbayes.testing.normalization import log_mass


def f64(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


class Modes(dist.Normal):
    """Half of the mass at 0, the rest in narrow modes far away; its scale is that of the last."""

    def parts(self):
        means, scales = torch.tensor([0.0, 100.0, -1e4]).double(), torch.tensor([1.0, 0.01, 0.0]).double()
        return means, torch.where(scales > 0, scales, self.scale.reshape(-1)[0])

    def log_prob(self, value):
        return (
            torch.tensor([0.5, 0.3, 0.2]).log() + dist.Normal(*self.parts()).log_prob(value.unsqueeze(-1))
        ).logsumexp(-1)

    def sample(self, sample_shape=()):
        mode = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), self.batch_shape.numel(), replacement=True)
        means, scales = (part[mode].view(self.batch_shape) for part in self.parts())
        return means + scales * torch.randn(self.batch_shape, dtype=torch.float64)

    def expand(self, batch_shape, _instance=None):
        return Modes(self.loc.expand(batch_shape), self.scale.expand(batch_shape))


class Jump(dist.Laplace):
    """A Laplace law whose left half is moved to the right one, a step at its location."""

    def log_prob(self, value):
        return torch.where(value >= self.loc, super().log_prob(value) + math.log(2), -math.inf)

    def sample(self, sample_shape=()):
        return self.loc + (super().sample(sample_shape) - self.loc).abs()

    def expand(self, batch_shape, _instance=None):
        return Jump(self.loc.expand(batch_shape), self.scale.expand(batch_shape))


DECIDED = {
    "normal": dist.Normal(f64(1e8, -1e8), f64(1.0, 1e8)),
    "cauchy": dist.Cauchy(f64(0.0, 5.0), f64(1.0, 1e8)),
    "student": dist.StudentT(f64(0.5, 0.3), f64(0.0, 3.0), f64(1.0, 1e-6)),
    "laplace": dist.Laplace(f64(0.0, 3.0), f64(1.0, 1e-6)),
    "skewed": dist.AsymmetricLaplace(f64(0.0, 1.0), f64(1.0, 2.0), f64(3.0, 0.1)),
    "gumbel": dist.Gumbel(f64(0.0, 1.0), f64(1.0, 1e-3)),
    "jump": Jump(f64(0.0, 3.0), f64(1.0, 0.1)),
    "wide mode": Modes(f64(0.0, 0.0), f64(10.0, 10.0)),
    "narrow mode": Modes(f64(0.0, 0.0), f64(1e-6, 1e-6)),
    "gamma": dist.Gamma(f64(1e6, 0.3), f64(1.0, 1e8)),
    "exponential": dist.Exponential(f64(1e-8, 1e8)),
    "lognormal": dist.LogNormal(f64(0.0, 1.0), f64(1.0, 30.0)),
    "half cauchy": dist.HalfCauchy(f64(1.0, 1e6)),
    "inverse gamma": dist.InverseGamma(f64(0.1, 2.0), f64(1.0, 5.0)),
    "beta": dist.Beta(f64(1000.0, 0.5), f64(2.0, 30.0)),
    "poisson": dist.Poisson(f64(1e-5, 3000.0)),
    "geometric": dist.Geometric(f64(0.5, 0.001)),
    "zero-inflated": dist.ZeroInflatedPoisson(f64(3.0, 0.2), gate=f64(0.5, 0.1)),
    "overdispersed": dist.GammaPoisson(f64(0.3, 2.0), f64(0.01, 3.0)),
    "bernoulli": dist.Bernoulli(f64(0.1, 1.0)),
    "binomial": dist.Binomial(5, f64(0.1, 0.5)),
}
UNDECIDED = {
    "not on the line": dist.VonMises(f64(0.0, 1.0), f64(1.0, 30.0)),
    "atoms": dist.Delta(f64(1.0, 2.0)),
    "underflow": dist.Gamma(f64(0.01, 0.3), f64(1.0, 1.0)),
    "no digits left": dist.Normal(f64(0.0, 1e8), f64(1.0, 3e-8)),
    "too many counts": dist.Poisson(f64(3.0, 1e6)),
    "very heavy tails": dist.LogNormal(f64(0.0, 1.0), f64(1.0, 300.0)),
}


def mass_of(law, of=None) -> float | None:
    """The log of the total mass of a law of rows, at draws of it or of another law."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return log_mass(law, (of or law).expand((1000,)).sample())


@pytest.mark.parametrize("law", DECIDED.values(), ids=DECIDED)
def test_densities_of_any_shape_and_scale_have_mass_one(law) -> None:
    assert mass_of(law.to_event(1)) == pytest.approx(0.0, abs=2e-3)


@pytest.mark.parametrize("law", UNDECIDED.values(), ids=UNDECIDED)
def test_where_nodes_cannot_tell_nothing_is_said(law) -> None:
    assert mass_of(law.to_event(1)) is None


def test_columns_that_depend_on_one_another_are_left() -> None:
    assert mass_of(dist.MultivariateNormal(f64(0.0, 0.0), torch.tensor([[[1.0, 0.5], [0.5, 1.0]]]).double())) is None


@pytest.mark.parametrize("kind", [dist.Normal, dist.Gamma, dist.Gumbel])
def test_a_constant_that_is_missing_is_found(kind) -> None:
    class Other(kind):
        def log_prob(self, value):
            return super().log_prob(value) + 0.01

    given = f64(1.0, 2.0), f64(3.0, 1.0)
    assert mass_of(Other(*given).to_event(1), kind(*given).to_event(1)) == pytest.approx(0.02, abs=1e-3)
