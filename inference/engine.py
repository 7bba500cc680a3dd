"""What surrounds every kernel: chains, progress, checkpoints, interrupts. Written once for all backends and models.

A kernel is a few functions on an immutable state. The engine calls `sweep` again and again, records `value` with the
elapsed seconds, keeps `draw` when asked to, and can write all of it to a checkpoint from which a later run goes on bit
for bit.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..models.config import to_plain
from .chains import Chain as Chain
from .checkpoints import Checkpoint, fingerprint, read_chains
from .interrupts import FitStopped, Interrupts
from .labels import LabelRows
from .protocol import KernelData, Model
from .structures import Draw as Draw


class FitInterrupted(UserWarning):
    """The fit was stopped by Ctrl-C; what it had drawn until then was returned."""


def _unchanged(state: Any, data: Any, model: Any) -> Any:
    return state


def _nothing(draws: list[Draw], model: Any) -> None:
    pass


@dataclass(frozen=True)
class Kernel:
    """One algorithm for one kind of model, the backend's options bound in its functions.

    States are frozen dataclasses of tensors and plain data: all that a chain needs to go on from, so that a checkpoint
    holds it. Randomness comes from `generator` alone; `step` is the number of the sweep, 0-based, warm-up included.
    A sweep changes nothing but the generator: Ctrl-C drops an unfinished one. `finish` and `warn` are for those who
    need them.
    """

    state: type[Any]  # the dataclass, by which a checkpoint is read
    init: Callable[..., Any]  # (model, data, generator) -> state
    sweep: Callable[..., Any]  # (state, data, model, generator, step) -> state
    value: Callable[..., Tensor | float]  # (state, data, model) -> log joint, ELBO or objective
    draw: Callable[..., Draw]  # (state, data, model) -> what the posterior keeps of a state
    finish: Callable[..., Any] = _unchanged  # (state, data, model) -> a chain's last state, completed to be drawn
    warn: Callable[[list[Draw], Any], None] = _nothing  # (all draws kept, model): warns of what they show


@dataclass(frozen=True)
class Schedule:
    """How long to run, what to keep, and what to show."""

    num_steps: int
    num_chains: int = 1
    keep: Callable[[int], bool] = lambda step: False  # of the 0-based step
    stop: Callable[[Chain], bool] = lambda chain: False
    value_name: str = "value"
    seed: int = 0
    progress: bool | None = None  # None: a bar on a terminal only
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 60.0  # seconds
    resume: str | os.PathLike[str] | None = None
    backend: Any = None  # options that a resumed fit must share, as plain data
    repeatable: bool = True  # whether a later run sees the same data in the same order


def run(kernel: Kernel, model: Model, data: KernelData, schedule: Schedule) -> list[Chain]:
    """All chains of a fit, one after another; Ctrl-C ends them with the last sweep that was finished.

    Raises
    ------
    FloatingPointError    if the value of a sweep is not finite (names the sweep and a remedy).
    KeyboardInterrupt     on Ctrl-C before the first chain has a state, and on a second Ctrl-C.
    ValueError            if `resume` names a file that is broken, or of another or a longer fit, or if there is a
                          `checkpoint` and the model, or the file, cannot be written.
    """
    fit = _Fit(kernel, model, data, schedule)
    fit.open_files()
    bar = tqdm(
        total=schedule.num_steps * schedule.num_chains,
        initial=sum(chain.step for chain in fit.chains),
        disable=None if schedule.progress is None else not schedule.progress,
        leave=False,
    )
    with bar, fit.interrupts.caught():
        try:
            for index in range(schedule.num_chains):
                chain = fit.chain(index)
                while chain.step < schedule.num_steps and not chain.finished:
                    fit.advance(index)
                    bar.update()
                    bar.set_postfix_str(f"{schedule.value_name} {chain.values[-1]:.6g}", refresh=False)
        except FitStopped:
            if not fit.chains:
                raise KeyboardInterrupt from None
            warnings.warn(
                f"Interrupted after step {fit.chains[-1].step} of {schedule.num_steps}, chain {len(fit.chains)} of "
                f"{schedule.num_chains}; returning {_what_there_is(fit.chains, schedule)}.",
                FitInterrupted,
                stacklevel=4,  # of a call by `Backend.finish`
            )
        fit.write(now=True)
    return fit.chains


def _what_there_is(chains: list[Chain], schedule: Schedule) -> str:
    if not schedule.keep(schedule.num_steps - 1):
        return "the state that it had reached"
    if not any(chain.draws for chain in chains):
        return "the state that the warm-up had reached, which is no draw from the posterior"
    return "what was drawn so far"


class _Fit:
    """A fit in the middle: its chains, and the steps that `run` takes."""

    def __init__(self, kernel: Kernel, model: Model, data: KernelData, schedule: Schedule) -> None:
        self.kernel, self.model, self.data, self.schedule = kernel, model, data, schedule
        self.chains: list[Chain] = []
        self.interrupts = Interrupts()
        self.checkpoint: Checkpoint | None = None
        self.num_kept = sum(map(schedule.keep, range(schedule.num_steps)))  # draws of each chain
        self.rows = LabelRows(self.num_kept * schedule.num_chains)

    def open_files(self) -> None:
        """Read the chains to go on from, and see that a checkpoint can be written: before any work."""
        path, schedule = self.schedule.resume, self.schedule
        if schedule.checkpoint is None and path is None:
            return
        described = {"backend": schedule.backend, "model": to_plain(self.model), "seed": schedule.seed}
        whose = fingerprint(data=self.data, **described)
        if schedule.checkpoint is not None:
            self.checkpoint = Checkpoint(schedule.checkpoint, schedule.checkpoint_every, whose)
        if path is None:
            return
        self.chains = read_chains(path, self.kernel.state, self.data.X.device, whose)
        done = max((chain.step for chain in self.chains), default=0)
        if done > schedule.num_steps or len(self.chains) > schedule.num_chains:
            raise ValueError(
                f"{os.fspath(path)!r} has {len(self.chains)} chain(s) of up to {done} steps, more than the "
                f"{schedule.num_chains} of {schedule.num_steps} that are asked for. Ask for at least as many."
            )
        for index, chain in enumerate(self.chains):
            for place, draw in enumerate(chain.draws):
                chain.draws[place] = self.rows.keep(draw, index * self.num_kept + place)

    def chain(self, index: int) -> Chain:
        """A chain, started when its turn comes."""
        if index == len(self.chains):
            generator = torch.Generator(self.data.X.device).manual_seed(self.schedule.seed + 1_000_003 * index)
            with self.interrupts.droppable():
                chain = Chain(self.kernel.init(self.model, self.data, generator), generator)
            if self.checkpoint:
                self.checkpoint.admit(chain)
            self.chains.append(chain)
        return self.chains[index]

    def advance(self, index: int) -> None:
        """One sweep of a chain with all that is kept of it; on Ctrl-C the chain is as before it."""
        chain, schedule, model, data = self.chains[index], self.schedule, self.model, self.data
        started, before = time.perf_counter(), chain.generator.get_state()
        try:
            with self.interrupts.droppable():
                state = self.kernel.sweep(chain.state, data, model, chain.generator, chain.step)
                value = float(self.kernel.value(state, data, model))
                seconds = time.perf_counter() - started
                drawn = [self.kernel.draw(state, data, model)] if schedule.keep(chain.step) else []
        except FitStopped:
            chain.generator.set_state(before)
            raise
        if not math.isfinite(value):
            raise FloatingPointError(
                f"The {schedule.value_name} is {value} after step {chain.step + 1}. "
                "Use float64 inputs, standardize X, or take a smaller loss strength."
            )
        row = index * self.num_kept + len(chain.draws)
        chain.draws += [self.rows.keep(draw, row) for draw in drawn]
        chain.state, chain.step, chain.seconds = state, chain.step + 1, chain.seconds + seconds
        chain.values.append(value)
        chain.times.append(chain.seconds)
        chain.finished = schedule.stop(chain)
        self.write()
        self.interrupts.check()

    def write(self, *, now: bool = False) -> None:
        """Write the checkpoint, if there is one and it is time to."""
        if self.checkpoint and self.chains:
            self.checkpoint.write(self.chains, now=now)
