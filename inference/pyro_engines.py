"""Pyro's own engines on the models' programs: NUTS and the autoguides. Slow, but they need no conjugacy and no kernel.

Both sum the assignments out of the program by parallel enumeration and give the other latents; the assignments are then
drawn given those by the model's likelihood and `log_margin`. What is kept of such a draw is what the blocked Gibbs scan
keeps of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pyro
import torch
from pyro import infer, poutine
from pyro.infer import autoguide
from torch import Tensor

from ..models.mixture import Data, Mixture
from ..models.priors.dirichlet_process import log_stick_weights
from .backend import Backend
from .engine import Chain, Draw, Kernel, Schedule
from .gibbs import partition
from .gibbs.state import PartitionState
from .seeding import far_apart

__all__ = ["NUTS", "Autoguide"]

Latents = dict[str, Tensor]


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

    num_samples: int = 200
    num_warmup: int = 200
    num_chains: int = 1
    max_tree_depth: int = 8
    seed: int = 0
    progress: bool | None = None

    structures: ClassVar[tuple[str, ...]] = ("partition",)
    value_name: ClassVar[str] = "log joint"
    resumable: ClassVar[bool] = False  # the adaptation lives in Pyro's objects

    def check(self, model: Any) -> None:
        self.require_counts(num_samples=1, num_warmup=0, num_chains=1, max_tree_depth=1, seed=0)

    def kernel(self, model: Any) -> Kernel:
        chain = _NUTSChain(self)
        return Kernel(
            state=PartitionState,
            init=chain.init,
            sweep=chain.sweep,
            value=partial(partition.log_joint, truncated=True),
            draw=partial(partition.draw, truncated=True),
        )

    def schedule(self) -> Schedule:
        return Schedule(
            num_steps=self.num_warmup + self.num_samples,
            num_chains=self.num_chains,
            keep=lambda step: step >= self.num_warmup,
            value_name=self.value_name,
            seed=self.seed,
            progress=self.progress,
        )

    def results(self, kernel: Kernel, model: Any, data: Any, chains: list[Chain]) -> list[list[Draw]]:
        self.warn_if_full([draw for chain in chains for draw in chain.draws], model, ", or with Gibbs()")
        return [chain.draws for chain in chains]


class _NUTSChain:
    """Pyro's NUTS kernel, one transition a sweep."""

    def __init__(self, backend: NUTS) -> None:
        self.backend = backend

    def init(self, model: Mixture, data: Data, generator: torch.Generator) -> PartitionState:
        latents = _start(model, data, generator)
        strategy = autoguide.init_to_value(values=latents)
        self.nuts = infer.NUTS(
            model.program, max_tree_depth=self.backend.max_tree_depth, max_plate_nesting=1, init_strategy=strategy
        )
        with _seeded(generator):
            self.nuts.setup(self.backend.num_warmup, data)
        self.unconstrained = self.nuts.initial_params
        _require_sites(self.unconstrained, latents)
        return _with_assignments(latents, model, data, generator)

    def sweep(self, state: PartitionState, data: Data, model: Mixture, generator: torch.Generator) -> PartitionState:
        with _seeded(generator):
            self.unconstrained = self.nuts.sample(self.unconstrained)
        transforms = self.nuts.transforms
        latents = {name: transforms[name].inv(value).detach() for name, value in self.unconstrained.items()}
        return _with_assignments(latents, model, data, generator)


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

    guide: str = "AutoNormal"
    num_steps: int = 1000
    learning_rate: float = 0.02
    num_samples: int = 100
    seed: int = 0
    progress: bool | None = None

    structures: ClassVar[tuple[str, ...]] = ("partition",)
    value_name: ClassVar[str] = "ELBO estimate"
    resumable: ClassVar[bool] = False  # the guide and its optimizer live in Pyro's objects

    def check(self, model: Any) -> None:
        self.require_counts(num_steps=1, num_samples=1, seed=0)
        if self.guide not in _GUIDES:
            raise ValueError(f"guide is {self.guide!r}; expected one of {', '.join(map(repr, _GUIDES))}.")
        if not (isinstance(self.learning_rate, int | float) and 0 < self.learning_rate < float("inf")):
            raise ValueError(f"learning_rate is {self.learning_rate!r}; it must be a positive number.")

    def kernel(self, model: Any) -> Kernel:
        chain = _GuideChain(self)
        return Kernel(
            state=GuideState,
            init=chain.init,
            sweep=chain.sweep,
            value=lambda state, data, model: state.elbo,
            draw=chain.draw,
        )

    def schedule(self) -> Schedule:
        return Schedule(self.num_steps, value_name=self.value_name, seed=self.seed, progress=self.progress)

    def results(self, kernel: Kernel, model: Any, data: Any, chains: list[Chain]) -> list[list[Draw]]:
        (chain,) = chains
        draws = [kernel.draw(chain.state, data, model) for _ in range(self.num_samples)]
        self.warn_if_full(draws, model, ", or with Gibbs()")
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

    def sweep(self, state: GuideState, data: Data, model: Mixture, generator: torch.Generator) -> GuideState:
        with self._scope():
            return GuideState(-float(self.svi.step(data)))

    def draw(self, state: GuideState, data: Data, model: Mixture) -> Draw:
        """A draw from the guide, and of the assignments given it."""
        with self._scope(), torch.no_grad():
            latents = self.guide(data)
        drawn = _with_assignments(latents, model, data, self.generator)
        return partition.draw(drawn, data, model, truncated=True)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        with _seeded(self.generator), pyro.get_param_store().scope(self.parameters) as self.parameters:
            yield


def _start(model: Mixture, data: Data, generator: torch.Generator) -> Latents:
    """Components around rows that are far apart, with equal weights and classifiers that say nothing."""
    T, (_, C), P = model.truncation, data.targets.shape, data.features.shape[1]
    seeds = data.X[far_apart(model.likelihood, data.X, T, generator)]
    chi = model.likelihood.prior() + model.likelihood.statistics(seeds)
    remaining = torch.arange(T, 1, -1, dtype=data.X.dtype, device=data.X.device)
    latents = {"sticks": 1 / remaining, "weights": data.X.new_zeros(T, P, C), **model.likelihood.draw(chi, generator)}
    if model.concentration_prior is not None:
        latents["concentration"] = data.X.new_tensor(model.concentration)
    return latents


def _require_sites(found: Latents, known: Latents) -> None:
    """A posterior has no place for latents that a subclass's program adds."""
    if others := sorted(found.keys() - known.keys()):
        raise NotImplementedError(
            f"The program has sites that a Posterior does not keep: {', '.join(others)}. Call Pyro on it yourself."
        )


def _with_assignments(latents: Latents, model: Mixture, data: Data, generator: torch.Generator) -> PartitionState:
    """The state of a sampler at these latents, its assignments drawn given them."""
    latents = dict(latents)
    sticks, weights = latents.pop("sticks"), latents.pop("weights")
    concentration = latents.pop("concentration", data.X.new_tensor(model.concentration))
    components = partition.Components(log_stick_weights(sticks.double()), latents, weights)
    uniforms = torch.rand(data.num_data, generator=generator, dtype=torch.float64, device=data.X.device)
    assignments = partition.draw_assignments(data, components, model, uniforms)
    return PartitionState(assignments, weights, concentration)


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


_GUIDES = ("AutoNormal", "AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal", "AutoDelta")
