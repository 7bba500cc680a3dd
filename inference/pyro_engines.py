"""Pyro's own engines on the models' programs: NUTS and the autoguides. Slow, but they need no conjugacy and no kernel.

Both sum the assignments out of the program by parallel enumeration and give the other latents; the assignments are then
drawn given those by the model's likelihood and `log_margin`. Of a conjugate family a draw keeps what the blocked Gibbs
scan keeps of its own, of any other the parameters themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import pyro
import torch
from pyro import infer, poutine
from pyro.infer import autoguide
from torch import Tensor

from ..models.data import Data
from ..models.distributions.sampling import draw_categorical, uniforms
from ..models.domains import Count, Natural, OneOf, Positive, Seed
from ..models.likelihoods import ExponentialFamily
from ..models.mixture import Mixture
from ..models.priors import Hyper
from ..models.priors.sticks import log_stick_weights
from ..models.scores import scores
from ..models.sparse import SparseRows
from .backend import Backend
from .collectives import own_stream
from .engine import Chain, Draw, Kernel, Schedule
from .gibbs import partition
from .gibbs.state import PartitionState
from .seeding import far_apart
from .truncation import warn_if_full

Latents = dict[str, Tensor]
GUIDES = ("AutoNormal", "AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal", "AutoDelta")


@dataclass(frozen=True)
class EngineState:
    """One draw of the truncated model: N points, T components, P features, C scores."""

    assignments: Tensor  # [N] int64, 0..T-1
    log_mixture: Tensor  # [T]
    parameters: dict[str, Tensor]  # of the family, each [T, ...]
    weights: Tensor  # [T, P, C]
    hyper: Hyper
    value: float  # log density of the program in unconstrained space


@dataclass(eq=False)
class NUTS(Backend):
    """Draws from the posterior of the truncated model by the No-U-Turn sampler (Hoffman & Gelman 2014).

    It knows nothing of conjugacy or augmentation: use it to check another backend, a new family or a new loss.

    Parameters
    ----------
    num_samples : draws kept of each chain
    num_warmup : steps that adapt the step size and the mass matrix before the first draw is kept
    num_chains : independent chains, one after another
    max_tree_depth : a step takes at most 2^depth gradients
    seed : of the random generator
    progress : whether to show a bar; None: on a terminal only
    """

    num_samples: Count = 200
    num_warmup: Natural = 200
    num_chains: Count = 1
    max_tree_depth: Count = 8
    seed: Seed = 0
    progress: bool | None = None

    value_name: ClassVar[str] = "log joint"
    resumable: ClassVar[bool] = False  # the adaptation lives in Pyro's objects

    def schedule(self) -> Schedule:
        return Schedule(
            num_steps=self.num_warmup + self.num_samples,
            num_chains=self.num_chains,
            keep=lambda step: step >= self.num_warmup,
        )


class _NUTSChain:
    """Pyro's NUTS kernel, one transition a sweep."""

    def __init__(self, backend: NUTS) -> None:
        self.backend = backend

    def init(self, model: Mixture, data: Data, generator: torch.Generator) -> EngineState:
        latents = _start(model, data, generator)
        strategy = autoguide.init_to_value(values=latents)
        self.nuts = infer.NUTS(
            model.program, max_tree_depth=self.backend.max_tree_depth, max_plate_nesting=1, init_strategy=strategy
        )
        with _seeded(generator):
            self.nuts.setup(self.backend.num_warmup, data)
        self.unconstrained = self.nuts.initial_params
        _require_sites(self.unconstrained, latents)
        return with_assignments(latents, -torch.inf, model, data, generator)

    def sweep(
        self, state: EngineState, data: Data, model: Mixture, generator: torch.Generator, step: int
    ) -> EngineState:
        with _seeded(generator):
            self.unconstrained = self.nuts.sample(self.unconstrained)
        transforms = self.nuts.transforms
        latents = {name: transforms[name].inv(value).detach() for name, value in self.unconstrained.items()}
        value = -float(self.nuts.potential_fn(self.unconstrained))
        return with_assignments(latents, value, model, data, generator)


@dataclass(eq=False)
class Autoguide(Backend):
    """One of Pyro's autoguides, fitted to the truncated model by Adam on the ELBO with the assignments summed out.

    Parameters
    ----------
    guide : name of a class of `pyro.infer.autoguide`: "AutoNormal", "AutoMultivariateNormal",
        "AutoLowRankMultivariateNormal", "AutoDiagonalNormal", or "AutoDelta" for a maximum a posteriori estimate, whose
        value is a log density and no bound, and which exists for a concentration of at least 1 only
    num_steps : steps of Adam
    learning_rate : of Adam
    num_samples : draws from the fitted guide that the posterior keeps
    seed : of the random generator
    progress : whether to show a bar; None: on a terminal only
    """

    guide: Annotated[str, OneOf(*GUIDES)] = "AutoNormal"
    num_steps: Count = 1000
    learning_rate: Positive = 0.02
    num_samples: Count = 100
    seed: Seed = 0
    progress: bool | None = None

    value_name: ClassVar[str] = "ELBO estimate"
    resumable: ClassVar[bool] = False  # the guide and its optimizer live in Pyro's objects

    def schedule(self) -> Schedule:
        return Schedule(self.num_steps)

    def results(self, kernel: Kernel, model: Any, data: Any, chains: list[Chain]) -> list[list[Draw]]:
        (chain,) = chains
        draws = [kernel.draw(chain.state, data, model) for _ in range(self.num_samples)]
        return [draws]


@dataclass(frozen=True)
class GuideState:
    """How far the guide has come."""

    elbo: float


class _GuideChain:
    """A guide and its optimizer, one step a sweep; their parameters stay out of Pyro's global store."""

    def __init__(self, backend: Autoguide) -> None:
        self.backend, self.parameters = backend, None

    def init(self, model: Mixture, data: Data, generator: torch.Generator) -> GuideState:
        self.generator, latents = generator, _start(model, data, generator)
        strategy = autoguide.init_to_value(values=latents)
        guide = getattr(autoguide, self.backend.guide)
        self.guide = guide(poutine.block(model.program, hide=["assignments"]), init_loc_fn=strategy)
        optimizer = pyro.optim.Adam({"lr": self.backend.learning_rate})
        self.svi = infer.SVI(model.program, self.guide, optimizer, infer.TraceEnum_ELBO(max_plate_nesting=1))
        with self._scope():
            _require_sites(self.guide(data), latents)
        return GuideState(-float("inf"))

    def sweep(self, state: GuideState, data: Data, model: Mixture, generator: torch.Generator, step: int) -> GuideState:
        with self._scope():
            return GuideState(-float(self.svi.step(data)))

    def draw(self, state: GuideState, data: Data, model: Mixture) -> Draw:
        """A draw from the guide, and of the assignments given it."""
        with self._scope(), torch.no_grad():
            latents = self.guide(data)
        return _draw(with_assignments(latents, 0.0, model, data, self.generator), data, model)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        with _seeded(self.generator), pyro.get_param_store().scope(self.parameters) as self.parameters:
            yield


def _start(model: Mixture, data: Data, generator: torch.Generator) -> Latents:
    """Components around rows that are far apart, with equal weights and classifiers that say nothing."""
    if isinstance(data.X, SparseRows):
        raise ValueError("X is sparse, but the program observes dense rows. Pass X.toarray(), or use Gibbs or SVI.")
    T, (_, C), P = model.truncation, data.targets.shape, data.features.shape[1]
    chi = model.likelihood.prior().expand(T, -1)
    if isinstance(model.likelihood, ExponentialFamily):
        chi = chi + model.likelihood.statistics(data.X[far_apart(model.likelihood, data.X, T, generator)])
    remaining = torch.arange(T, 1, -1, dtype=data.X.dtype, device=data.X.device)
    latents = {"sticks": 1 / remaining, "weights": data.X.new_zeros(T, P, C), **model.likelihood.draw(chi, generator)}
    laws, start = model.prior.hyperpriors(data.features), model.prior.start(data.features)
    return latents | {name: start[name].to(data.X.dtype) for name, law in laws.items() if law is not None}


def _require_sites(found: Latents, known: Latents) -> None:
    """A posterior has no place for latents that a subclass's program adds."""
    if others := sorted(found.keys() - known.keys()):
        raise NotImplementedError(
            f"The program has sites that a Posterior does not keep: {', '.join(others)}. Call Pyro on it yourself."
        )


def with_assignments(
    latents: Latents, value: float, model: Mixture, data: Data, generator: torch.Generator
) -> EngineState:
    """The state at these latents, its assignments drawn given them."""
    latents = {name: value.detach() for name, value in latents.items()}
    log_mixture, weights = log_stick_weights(latents.pop("sticks").double()), latents.pop("weights")
    start = model.prior.start(data.features)
    hyper = {name: latents.pop(name, fixed).double() for name, fixed in start.items()}
    margin = model.log_margin(scores(data.features, weights), data.targets.unsqueeze(1))
    logits = log_mixture + model.likelihood.log_density(data.X, latents) + margin
    assignments = draw_categorical(logits, uniforms((data.num_data,), own_stream(generator)))
    return EngineState(assignments, log_mixture, latents, weights, hyper, value)


def _draw(state: EngineState, data: Data, model: Mixture) -> Draw:
    """What the posterior keeps of a state."""
    if isinstance(model.likelihood, ExponentialFamily):
        same = PartitionState(state.assignments, state.weights, state.hyper)
        return partition.draw(same, data, model, truncated=True)
    dtype, none = data.X.dtype, state.log_mixture.new_full((1,), -torch.inf)
    return {
        "assignments": state.assignments,
        "log_mixture": torch.cat([state.log_mixture, none]).to(dtype),
        "weights": state.weights,
        "log_joint": state.log_mixture.new_tensor(state.value),
        **{f"parameters.{name}": value for name, value in state.parameters.items()},
        **{name: value.to(dtype) for name, value in state.hyper.items()},
    }


def _warn(draws: list[Draw], model: Mixture) -> None:
    warn_if_full(draws, model, ", or with Gibbs()")


def _nuts_kernel(backend: NUTS, model: Mixture) -> Kernel:
    chain = _NUTSChain(backend)
    return Kernel(EngineState, chain.init, chain.sweep, lambda state, data, model: state.value, _draw, warn=_warn)


def _guide_kernel(backend: Autoguide, model: Mixture) -> Kernel:
    chain = _GuideChain(backend)
    return Kernel(GuideState, chain.init, chain.sweep, lambda state, data, model: state.elbo, chain.draw, warn=_warn)


def _any(backend: Backend, model: Mixture) -> None:
    """Every likelihood, prior and loss will do."""


@contextmanager
def _seeded(generator: torch.Generator) -> Iterator[None]:
    """Pyro draws from the global stream: it is seeded from ours for as long as Pyro runs, and put back after."""
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    devices = [generator.device] if generator.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU
        for device in devices:
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield


NUTS.register(Data, SimpleNamespace(kernel=_nuts_kernel, check=_any))
Autoguide.register(Data, SimpleNamespace(kernel=_guide_kernel, check=_any))
