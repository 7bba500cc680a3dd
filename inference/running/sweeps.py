"""Kernels, schedules, and the sweeps of one chain."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ...models.host import require_room
from ..protocol import KernelData, Model
from ..structures import Draw, structure_of
from .chains import Chain, State
from .interrupts import FitStopped, Interrupts


@dataclass(frozen=True)
class Kernel:
    """One algorithm for one structure, with the backend's options bound in its functions.

    States are frozen dataclasses of tensors and plain data with all that a chain needs to continue, so that a
    checkpoint can hold them. Randomness comes from `generator` alone; `step` is the 0-based number of the sweep,
    warm-up included. A sweep changes nothing but the generator: Ctrl-C drops an unfinished one. `prepare` computes what
    is needed once in a fit, once in each of its processes; its result is the `data` of all other functions. It,
    `init_further`, `finish` and `warn` are optional.
    """

    state: type[Any]  # the dataclass of states, by which a checkpoint is read
    init: Callable[..., Any]  # (model, data, generator) -> state
    sweep: Callable[..., Any]  # (state, data, model, generator, step) -> state
    value: Callable[..., Tensor | float]  # (state, data, model) -> log joint, ELBO or objective
    draw: Callable[..., Draw]  # (state, data, model) -> draw for the posterior
    # (model, data, generator) -> first state of all chains but the first; None: `init`
    init_further: Callable[..., Any] | None = None
    # (model, data) -> data with quantities that are computed once in a fit
    prepare: Callable[[Any, Any], Any] = lambda model, data: data
    # (state, data, model) -> the last state of a chain, completed for its draw
    finish: Callable[..., Any] = lambda state, data, model: state
    # (all draws kept, model): may warn
    warn: Callable[[list[Draw], Any], None] = lambda draws, model: None
    value_in: str = ""  # the name of the value in a draw, if draws have it; it is then computed once


@dataclass(frozen=True)
class Schedule:
    """The length of a fit, the draws to keep, and reports."""

    num_steps: int
    num_chains: int = 1
    num_jobs: int | None = 1  # processes; None: as many as there are cores, once it pays
    keep: Callable[[int], bool] = lambda step: False  # of the 0-based step
    stop: Callable[[Chain], bool] = lambda chain: False
    value_name: str = "value"
    seed: int = 0
    progress: bool | None = None  # None: a bar on a terminal only
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 60.0  # seconds
    resume: str | os.PathLike[str] | None = None
    on_interrupt: str = "return"  # the chains, with a warning; or "raise" KeyboardInterrupt
    backend: dict[str, Any] | None = None  # options that a resumed fit must share, as plain data
    # parts of the model before defaults were computed from the data, whose rounding depends on the ranks
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def num_kept(self) -> int:
        """The number of draws kept of each chain."""
        return 0 if self.keep is Schedule.keep else sum(map(self.keep, range(self.num_steps)))


@dataclass(frozen=True)
class Sweeps:
    """A kernel with its model, data and schedule; it gives the same draws in any process."""

    kernel: Kernel
    model: Model
    data: KernelData
    schedule: Schedule
    prepared: Any = field(init=False, repr=False)  # result of `Kernel.prepare`

    def __post_init__(self) -> None:
        object.__setattr__(self, "prepared", self.kernel.prepare(self.model, self.data))

    def __reduce__(self) -> tuple[Any, ...]:
        return Sweeps, (self.kernel, self.model, self.data, self.schedule)  # another process prepares its own

    def drawn(self, state: State) -> Draw:
        """The draw that the posterior keeps of a state."""
        return self.kernel.draw(state, self.prepared, self.model)

    def finished(self, state: State) -> Draw:
        """The draw that the posterior keeps of the last state of a chain."""
        return self.drawn(self.kernel.finish(state, self.prepared, self.model))

    def value(self, state: State) -> float:
        """The log joint, ELBO or objective of a state."""
        return float(self.kernel.value(state, self.prepared, self.model))

    def start(self, index: int, interrupts: Interrupts) -> Chain:
        """A new chain."""
        generator = torch.Generator(self.data.X.device).manual_seed(self.schedule.seed + FURTHER * index)
        further = self.kernel.init_further if index else None
        with interrupts.droppable():
            return Chain((further or self.kernel.init)(self.model, self.prepared, generator), generator)

    def unfinished(self, chain: Chain) -> bool:
        """Whether there is a sweep left to do."""
        return chain.step < self.schedule.num_steps and not chain.finished

    def advance(self, chain: Chain, interrupts: Interrupts, look: Callable[[], None] = lambda: None) -> None:
        """Make one sweep of a chain; on Ctrl-C the chain is as before. `look` is called before the value is computed.

        Raises
        ------
        FloatingPointError    if the value of the sweep is not finite (names the sweep and a remedy).
        """
        kernel, schedule = self.kernel, self.schedule
        started, before = time.perf_counter(), chain.generator.get_state()
        try:
            with interrupts.droppable():
                state = kernel.sweep(chain.state, self.prepared, self.model, chain.generator, chain.step)
                look()
                drawn = [self.drawn(state)] if schedule.keep(chain.step) else []
                known = drawn[0].get(kernel.value_in) if drawn else None
                value = self.value(state) if known is None else float(known)
                seconds = time.perf_counter() - started
        except FitStopped:
            chain.generator.set_state(before)
            raise
        if not math.isfinite(value):
            raise FloatingPointError(
                f"The {schedule.value_name} is {value} after step {chain.step + 1}. "
                "Use float64 inputs, standardize X, or take a smaller loss strength."
            )
        chain.draws += drawn
        chain.state, chain.step, chain.seconds = state, chain.step + 1, chain.seconds + seconds
        chain.values.append(value)
        chain.times.append(chain.seconds)
        chain.finished = schedule.stop(chain)


class Sized(Protocol):
    """The methods of `Backend` that estimate the memory of a fit."""

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...

    def truncation_of(self, model: Model) -> str: ...

    def least_steps(self, schedule: Schedule) -> int: ...


def require_room_to_fit(backend: Sized, model: Model, data: KernelData, schedule: Schedule) -> None:
    """Raise ValueError if the components, chains, draws or trace of a fit need more than the memory that there is."""
    data, options = getattr(data, "first", data), backend.get_params(deep=False)  # for a stream, the first rows
    device, (N, D), item = data.X.device, data.X.shape, data.X.dtype.itemsize
    size = structure_of(model).state_size
    if size is not None and (name := backend.truncation_of(model)):
        number = getattr(model, name)
        require_room(name, number, item * size(model, data, number), device)
    if (batch := options.get("batch_size")) and not hasattr(data, "lengths"):  # sequences bound the batch
        require_room("batch_size", batch, batch * (item * D + 8), device)
    name, number = next(((name, options[name] or 1) for name in _CHAINS if name in options), ("num_chains", 1))
    require_room(name, number, _CHAIN * number)
    steps = {name: options[name] for name in _STEPS if name in options}
    if not steps:
        return
    longest = max(steps, key=lambda name: steps[name])
    require_room(longest, steps[longest], _STEP * number * backend.least_steps(schedule))
    draws = options.get("num_samples", 1) * number
    require_room("num_samples", options.get("num_samples", 1), draws * (_DRAW + N), device)


FURTHER = 1_000_003  # added to the seed for each further chain
_CHAINS = ("num_chains", "num_restarts")
_STEPS = ("num_samples", "num_warmup", "thinning", "num_steps", "max_steps")
_CHAIN = 5000  # bytes: the state of a random generator
_STEP = 64  # bytes: a value and a time as numbers in Python lists
_DRAW = 200  # bytes: a tensor
