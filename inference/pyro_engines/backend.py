"""Pyro's own inference on the models' programs, NUTS and the autoguides. Slow, but without conjugacy and kernels.

Both sum the discrete sites out of the program and give values of the other latent sites. For each structure, a module
(`Sites`) defines the start of these sites and turns them into a draw of the posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

import pyro
import torch
from pyro import infer, poutine
from pyro.infer import autoguide
from pyro.poutine.runtime import _DIM_ALLOCATOR, _PYRO_STACK

from ...models.domains import Count, Natural, OneOf, Positive, Seed
from ...models.host import in_forks
from ..backend import Backend
from ..protocol import D, D_contra, KernelData, M_contra, Model, S
from ..running.engine import Chain, Draw, Kernel, Schedule, Sweeps
from .maxima import warn_without_maximum
from .partition import Latents

GUIDES = ("AutoNormal", "AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal", "AutoDelta")


class Programmed(Protocol):
    """A resolved model with a Pyro program."""

    def program(self, data: KernelData) -> None:
        """The joint density of its sites and of the kernels' data."""


P = TypeVar("P", bound=Programmed)


class Sites(Protocol[M_contra, D_contra, S]):
    """The functions of a structure's module, which turn the sites of programs into draws of its posterior.

    A module that does not serve every model also has `check(backend, model)`, which raises on the others.
    """

    def start(self, model: M_contra, data: D_contra, generator: torch.Generator) -> Latents:
        """Values of all sites to start from, by name."""

    def with_assignments(self, latents: Latents, model: M_contra, data: D_contra, generator: torch.Generator) -> S:
        """The state at these latents, with the variables that the program sums out drawn given them."""

    def draw(self, state: S, data: D_contra, model: M_contra) -> Draw:
        """The draw that the posterior keeps of a state."""

    def warn(self, draws: list[Draw], model: M_contra) -> None:
        """Warnings about the draws."""


@dataclass(eq=False)
class NUTS(Backend):
    """Draws from the posterior of the truncated model by the No-U-Turn sampler (Hoffman & Gelman 2014).

    It knows nothing of conjugacy or augmentation: use it to check another backend, a new family or a new loss.

    Parameters
    ----------
    num_samples : draws kept of each chain
    num_warmup : steps that adapt the step size and the mass matrix before the first draw is kept
    num_chains : independent chains
    max_tree_depth : a step takes at most 2^depth gradients
    seed : of the random generator
    num_jobs : processes that the chains run in, as in `Gibbs`; None: one for each core, if that saves time
    progress : whether to show a bar; None: on a terminal only
    """

    num_samples: Count = 200
    num_warmup: Natural = 200
    num_chains: Count = 1
    max_tree_depth: Count = 8
    seed: Seed = 0
    num_jobs: Count | None = None
    progress: bool | None = None

    value_name: ClassVar[str] = "log joint"
    needs: ClassVar[str] = "sticks"
    resumable: ClassVar[bool] = False  # the adaptation is stored in Pyro's objects

    def schedule(self) -> Schedule:
        return Schedule(
            num_steps=self.num_warmup + self.num_samples,
            num_chains=self.num_chains,
            num_jobs=self.num_jobs,
            keep=lambda step: step >= self.num_warmup,
        )


@dataclass(frozen=True)
class EngineState(Generic[S]):
    """The state of a chain of NUTS."""

    state: S  # of the structure
    value: float  # log density of the program in unconstrained space


class _NUTSChain(Generic[P, D, S]):
    """Pyro's NUTS kernel; a sweep is one transition."""

    def __init__(self, backend: NUTS, sites: Sites[P, D, S]) -> None:
        self.backend, self.sites = backend, sites

    def init(self, model: P, data: D, generator: torch.Generator) -> EngineState[S]:
        latents = self.sites.start(model, data, generator)
        strategy = autoguide.init_to_value(values=latents)
        self.nuts = infer.NUTS(
            model.program,
            max_tree_depth=self.backend.max_tree_depth,
            max_plate_nesting=1,
            init_strategy=strategy,
        )
        with seeded(generator):
            self.nuts.setup(self.backend.num_warmup, data)
        self.unconstrained = self.nuts.initial_params
        _require_sites(self.unconstrained, latents)
        return EngineState(self.sites.with_assignments(latents, model, data, generator), -torch.inf)

    def sweep(self, state: EngineState[S], data: D, model: P, generator: torch.Generator, step: int) -> EngineState[S]:
        with seeded(generator):
            self.unconstrained = self.nuts.sample(self.unconstrained)
        transforms = self.nuts.transforms
        latents = {name: transforms[name].inv(value).detach() for name, value in self.unconstrained.items()}
        value = -float(self.nuts.potential_fn(self.unconstrained))
        return EngineState(self.sites.with_assignments(latents, model, data, generator), value)

    def draw(self, state: EngineState[S], data: D, model: P) -> Draw:
        """The draw that the posterior keeps; without a log joint of the structure, with the density of the program."""
        found = self.sites.draw(state.state, data, model)
        log_joint = torch.tensor(state.value, dtype=torch.float64, device=next(iter(found.values())).device)
        return {"log_joint": log_joint, **found}


@dataclass(eq=False)
class Autoguide(Backend):
    """One of Pyro's autoguides, fitted to the truncated model by Adam on the ELBO with the assignments summed out.

    Parameters
    ----------
    guide : name of a class of `pyro.infer.autoguide`: "AutoNormal", "AutoMultivariateNormal",
        "AutoLowRankMultivariateNormal", "AutoDiagonalNormal", or "AutoDelta" for a maximum a posteriori estimate. The
        value of "AutoDelta" is a log density, not a bound. The estimate exists only if no prior density is infinite at
        an end of its range: sticks need a concentration of at least 1 (`NoMaximum` warns)
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
    kind: ClassVar[str] = "estimate"
    needs: ClassVar[str] = "sticks"
    resumable: ClassVar[bool] = False  # the guide and its optimizer are stored in Pyro's objects

    def schedule(self) -> Schedule:
        return Schedule(self.num_steps)

    def results(self, sweeps: Sweeps, chains: list[Chain]) -> list[list[Draw]]:
        (chain,) = chains
        draws = [sweeps.drawn(chain.state) for _ in range(self.num_samples)]
        return [draws]


@dataclass(frozen=True)
class GuideState:
    """The progress of the guide."""

    value: float  # estimate of the ELBO


class _GuideChain(Generic[P, D, S]):
    """A guide and its optimizer; a sweep is one step. Their parameters are not in Pyro's global store."""

    def __init__(self, backend: Autoguide, sites: Sites[P, D, S]) -> None:
        self.backend, self.sites, self.parameters = backend, sites, None

    def init(self, model: P, data: D, generator: torch.Generator) -> GuideState:
        self.generator, self.data, latents = generator, data, self.sites.start(model, data, generator)
        program, strategy = model.program, autoguide.init_to_value(values=latents)
        guide = getattr(autoguide, self.backend.guide)
        self.guide = guide(poutine.block(program, hide=["assignments", "features"]), init_loc_fn=strategy)
        optimizer = pyro.optim.Adam({"lr": self.backend.learning_rate})
        objective = infer.TraceEnum_ELBO(max_plate_nesting=1, strict_enumeration_warning=False)
        self.svi = infer.SVI(program, self.guide, optimizer, objective)
        with self._scope():
            _require_sites(self.guide(data), latents)
        return GuideState(-float("inf"))

    def sweep(self, state: GuideState, data: D, model: P, generator: torch.Generator, step: int) -> GuideState:
        with self._scope():
            return GuideState(-float(self.svi.step(data)))

    def draw(self, state: GuideState, data: D, model: P) -> Draw:
        """Draw from the guide, then the assignments given it."""
        with self._scope(), torch.no_grad():
            latents = self.guide(data)
        drawn = self.sites.with_assignments(latents, model, data, self.generator)
        return self.sites.draw(drawn, data, model)

    def warn(self, draws: list[Draw], model: P) -> None:
        """Warnings about the draws, and about an estimate that does not exist."""
        self.sites.warn(draws, model)
        if self.backend.guide == "AutoDelta":
            with self._scope(), torch.no_grad():
                warn_without_maximum(model.program, self.data, self.guide(self.data), draws[0])

    @contextmanager
    def _scope(self) -> Iterator[None]:
        with seeded(self.generator), pyro.get_param_store().scope(self.parameters) as self.parameters:
            try:
                yield
            except ValueError as error:
                if "satisfy the constraint" not in str(error):
                    raise
                raise FloatingPointError(
                    f"The guide's numbers are no longer those of a distribution: {str(error).splitlines()[0][:200]}. "
                    f"Take a learning_rate below {self.backend.learning_rate:g}."
                ) from error


def _require_sites(found: Latents, known: Latents) -> None:
    """Raise NotImplementedError on latent sites, as a subclass's program may add, that a posterior does not keep."""
    if others := sorted(found.keys() - known.keys()):
        raise NotImplementedError(
            f"The program has sites that a Posterior does not keep: {', '.join(others)}. Call Pyro on it yourself."
        )


B = TypeVar("B", bound=Backend)


@dataclass(frozen=True)
class _Engine(Generic[B, P]):
    """An entry in a backend's table: a structure's sites, and the function that makes the kernel."""

    sites: Sites[P, Any, Any]
    bind: Callable[[B, Sites[P, Any, Any]], Kernel]

    def check(self, backend: B, model: P) -> None:
        if hasattr(self.sites, "check"):
            self.sites.check(backend, model)

    def kernel(self, backend: B, model: P) -> Kernel:
        return self.bind(backend, self.sites)


def _nuts_kernel(backend: NUTS, sites: Sites[P, D, S]) -> Kernel:
    chain = _NUTSChain(backend, sites)
    init, sweep = partial(_alone, chain.init), partial(_alone, chain.sweep)
    return Kernel(EngineState, init, sweep, _value, chain.draw, warn=sites.warn)


def _guide_kernel(backend: Autoguide, sites: Sites[P, D, S]) -> Kernel:
    chain = _GuideChain(backend, sites)
    functions = chain.init, chain.sweep, chain.draw, chain.warn
    init, sweep, draw, warn = (partial(_alone, function) for function in functions)
    return Kernel(GuideState, init, sweep, _value, draw, warn=warn)


def _alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that runs Pyro, in one thread at a time: Pyro has one stack of handlers for all threads."""
    with _PYRO, _without_handlers():
        return function(*arguments)


@contextmanager
def _without_handlers() -> Iterator[None]:
    """A context in which no handlers and no plates of the caller are active."""
    stacks = _PYRO_STACK, _DIM_ALLOCATOR._stack
    callers = [stack[:] for stack in stacks]
    for stack in stacks:
        stack.clear()
    try:
        yield
    finally:
        for stack, own in zip(stacks, callers, strict=True):
            stack[:] = own


def _value(state: EngineState[S] | GuideState, data: KernelData, model: Model) -> float:
    return state.value


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """A context in which torch's global stream, from which Pyro draws, is seeded from ours; it is restored afterwards.

    Other threads that draw from the global stream meanwhile get other numbers.
    """
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    devices = [generator.device] if generator.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU
        for device in devices:
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield


def serve(data_type: type[Any], sites: Sites[Any, Any, Any]) -> None:
    """Register the module of a structure, for models with this `data_type`, with both engines."""
    NUTS.register(data_type, _Engine(sites, _nuts_kernel))
    Autoguide.register(data_type, _Engine(sites, _guide_kernel))


def _renew() -> None:
    """A lock that no other thread holds."""
    global _PYRO
    _PYRO = RLock()


_PYRO = RLock()  # module-wide, as Pyro's handlers and parameter store are
in_forks(_renew)
