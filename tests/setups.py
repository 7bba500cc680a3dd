"""Setups that several test files share: families and their rows, comparisons of a chain with exact probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from negative_binomial import NegativeBinomial
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to

from regbayes.inference import NUTS, Chain, Gibbs, Kernel, Schedule, Sweeps
from regbayes.inference.running import engine
from regbayes.models.config import Config
from regbayes.models.likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    Likelihood,
    LinearRegression,
    MultinomialDirichlet,
    PoissonGamma,
    Product,
    SphericalGaussian,
)
from regbayes.models.losses import Loss
from regbayes.models.priors.laws import law_of

NIGHT = False  # whether the run has --nightly


def by_day(number: int, share: int = 3) -> int:
    """So many draws by night, a share of them by day: for laws whose deviations many draws tell, and a few as well
    where a term is wrong."""
    return number if NIGHT else number // share


def label_law(model: Any, truncated: bool) -> Any:
    """The law of a model's labels: of `model.truncation` of them, or of any number."""
    return law_of(model.prior, model.truncation if truncated else None)


COUNTS = [MultinomialDirichlet, PoissonGamma, BernoulliBeta]
FAMILIES = [SphericalGaussian, DiagonalGaussian, FullGaussian, LinearRegression, *COUNTS]
MIXED = partial(Product, [(NegativeBinomial(), 1), (FullGaussian(), 1)])  # two columns
LIKELIHOODS = [family() for family in FAMILIES if family is not LinearRegression]


class AnotherGaussian(DiagonalGaussian):
    """A family of a user: compiled scans do not know it."""


@dataclass(eq=False)
class LaplaceLocation(Likelihood):
    """A family without a conjugate prior: x [D] ~ Laplace(loc, scale), loc ~ N(0, spread^2)."""

    num_columns: int = 1
    spread: float = 1.0
    scale: float = 0.3

    def parameters(self, chi, sample):
        center = chi.new_zeros(*chi.shape[:-1], self.num_columns)
        return {"loc": sample("loc", dist.Normal(center, self.spread).to_event(1))}

    def distribution(self, parameters):
        return dist.Laplace(parameters["loc"], self.scale).to_event(1)

    def prior(self):
        return torch.zeros(0, dtype=torch.float64)


@dataclass(eq=False)
class Walk(Config):
    """A model of a chain that walks at random."""

    step: float = 1.0


@dataclass(frozen=True)
class Points:
    """Data that it does not look at."""

    X: Tensor
    num_data: int = 3


@dataclass(frozen=True)
class Position:
    """Its state."""

    at: Tensor


def walk(state: Position, data: Points, model: Walk, generator: torch.Generator, step: int) -> Position:
    """A step of it."""
    return Position(state.at + model.step * torch.randn((), generator=generator))


@dataclass(eq=False)
class Ramp(Loss):
    """A loss of which nothing but the factor is known."""

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -1.5 * torch.relu(0.8 - y * score).pow(1.5)


@dataclass(eq=False)
class Softmax(Loss):
    """A loss in which the scores of all classes meet, of which nothing but the factor is known."""

    meets = True

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        own = torch.where(y > 0, score, 0.0).sum(-1, keepdim=True)
        return 4 * (own - score.logsumexp(-1, keepdim=True))


@dataclass(eq=False)
class Absolute(Loss):
    """A loss of a real target of which nothing but the factor is known."""

    target = "real"

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -(score - y).abs().pow(1.5)


def spoiled(part: Any, method: str, wrong: Callable[..., Any]) -> Any:
    """The part with another method: `wrong` of the right one, which is bound to the part, and of its arguments."""
    kind = type(part)

    def other(self: Any, *arguments: Any) -> Any:
        return wrong(partial(getattr(kind, method), self), *arguments)

    return type(f"Spoiled{kind.__name__}", (kind,), {method: other})(**part.get_params(deep=False))


def misled(backend: Gibbs, **parts: Any) -> Gibbs:
    """A sampler of the model with other parts, which passes for one of the model itself."""
    kind: Any = type(backend)

    class Wrong(kind):
        def finish(self, model, data, schedule, kernel):
            other = model.replace(**parts)
            posterior = super().finish(other, data, schedule, self.kernel(other))
            posterior.model = model
            return posterior

    return Wrong(**backend.get_params(deep=False))


def name_of(part: object) -> str:
    """The id of a part, or of none, in a table of tests."""
    return "DPM" if part is None else type(part).__name__ + type(getattr(part, "loss", part)).__name__


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def price_of(prior: object, penalty: float, others: int) -> float:
    """What a component costs beside so many others (docs/derivations/priors, "Sticks and urns")."""
    exponent = getattr(prior, "price_exponent", 0.0)
    return max(0.0, penalty - exponent * math.log(others)) if others else penalty


def climbed(kernel: Any, model: Any, data: Any, generator: torch.Generator, num_steps: int = 3) -> Any:
    """The variational posterior after some steps of a kernel of SVI on all rows."""
    state = kernel.init(model, data, generator)
    for _ in range(num_steps):
        state = kernel.ascend(state, data, model)
    return state


def is_latent(site: dict[str, Any]) -> bool:
    """Whether a site of a trace is drawn."""
    return site["type"] == "sample" and not site["is_observed"] and not site_is_subsample(site)


def last_step(sites: Any, model: Any, data: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Tensor], float]:
    """The sites of a short chain of NUTS where it ends, and the log density that it has for them."""
    seen, whole = [], sites.with_assignments

    def spy(latents: dict[str, Tensor], *others: Any) -> Any:
        seen.append(latents)
        return whole(latents, *others)

    monkeypatch.setattr(sites, "with_assignments", spy)
    kernel, generator = NUTS(max_tree_depth=2, num_warmup=2).kernel(model), seeded()
    state = kernel.init(model, data, generator)
    for step in range(3):
        state = kernel.sweep(state, data, model, generator, step)
    return seen[-1], state.value


def log_density(model: Any, data: Any, latents: dict[str, Tensor], discrete: Iterable[dict[str, Tensor]]) -> float:
    """That of a program in unconstrained space [], summed over what its discrete sites may be."""
    known = [poutine.condition(model.program, data=latents | each) for each in discrete]
    traces = [poutine.trace(program).get_trace(data) for program in known]
    total = torch.stack([trace.log_prob_sum() for trace in traces]).logsumexp(0)
    for name, value in latents.items():
        transform = biject_to(traces[0].nodes[name]["fn"].support)
        total = total + transform.log_abs_det_jacobian(transform.inv(value), value).sum()
    return float(total)


def mixture_rows(
    family: Callable[[], Likelihood], num_data: int, num_features: int = 3, num_components: int = 3, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Rows [N, D] of a mixture, in the support of a family, and their components [N]."""
    rng = np.random.default_rng(seed)
    z = rng.integers(num_components, size=num_data)
    if family in (MultinomialDirichlet, PoissonGamma, NegativeBinomial) or isinstance(family, partial):
        X = rng.poisson(rng.gamma(0.5, 8.0, (num_components, num_features))[z])
        X[0, 0] = 40  # more than compiled scans multiply out
    elif family is BernoulliBeta:
        X = rng.random((num_data, num_features)) < rng.beta(0.5, 0.5, (num_components, num_features))[z]
    else:
        X = rng.normal(0, 2, (num_components, num_features))[z] + rng.normal(size=(num_data, num_features))
    return torch.as_tensor(X, dtype=torch.float64), torch.from_numpy(np.unique(z, return_inverse=True)[1])


def first_appearance(labels: Iterable[int]) -> tuple[int, ...]:
    """The same partition with labels in order of first appearance."""
    names: dict[int, int] = {}
    return tuple(names.setdefault(label, len(names)) for label in labels)


def batch_errors(series: Tensor, expected: Tensor, floor: Tensor | float = 0.0, num_batches: int = 40) -> Tensor:
    """Deviations of the means of series [S, ...] from what is expected, in standard errors from batch means."""
    batches = series[: len(series) // num_batches * num_batches].double().unflatten(0, (num_batches, -1)).mean(1)
    error = (batches.std(0) / num_batches**0.5).clamp(min=floor)
    return (batches.mean(0) - expected).abs() / error


def frequency_errors(visited: list[tuple[int, ...]], exact: dict[tuple[int, ...], float], **options: int) -> Tensor:
    """Deviations, in standard errors, of the frequencies of what a chain visited from their exact probabilities."""
    place = {labels: index for index, labels in enumerate(exact)}
    num_steps = len(visited)
    visits = torch.nn.functional.one_hot(torch.tensor([place[labels] for labels in visited]), len(exact))
    expected = torch.tensor(list(exact.values()), dtype=torch.float64)
    rare = expected * num_steps < 20  # too few visits each for a normal error: counted together
    visits = torch.cat([visits[:, ~rare], visits[:, rare].sum(1, keepdim=True)], 1)
    expected = torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)])
    floor = (expected * (1 - expected) / num_steps).sqrt().clamp(min=1e-9)
    return batch_errors(visits, expected, floor, **options)


def run(kernel: Kernel, model: Any, data: Any, schedule: Schedule) -> list[Chain]:
    """The chains of a fit, without what a backend adds."""
    return engine.run(Sweeps(kernel, model, data, schedule))
