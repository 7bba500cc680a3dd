"""What surrounds every kernel: chains, progress, checkpoints, interrupts. Written once for all backends and models.

A kernel is a few functions on an immutable state. The engine calls `sweep` again and again, records `value` with the
elapsed seconds, keeps `draw` when asked to, and can write all of it to a checkpoint from which a later run goes on bit
for bit.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..models.config import to_plain
from .files import plain, read_file, write_file
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
    `finish` and `warn` are for those who need them.
    """

    state: type[Any]  # the dataclass, by which a checkpoint is read
    init: Callable[..., Any]  # (model, data, generator) -> state
    sweep: Callable[..., Any]  # (state, data, model, generator, step) -> state
    value: Callable[..., Tensor | float]  # (state, data, model) -> log joint, ELBO or objective
    draw: Callable[..., Draw]  # (state, data, model) -> what the posterior keeps of a state
    finish: Callable[..., Any] = _unchanged  # (state, data, model) -> a chain's last state, completed to be drawn
    warn: Callable[[list[Draw], Any], None] = _nothing  # (all draws kept, model): warns of what they show


@dataclass
class Chain:
    """What one chain (or restart) has done so far: all that a checkpoint holds."""

    state: Any
    generator: torch.Generator
    step: int = 0
    seconds: float = 0.0
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    finished: bool = False


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
    checkpoint_every: int = 50
    resume: str | os.PathLike[str] | None = None
    repeatable: bool = True  # whether a later run sees the same data in the same order


def run(kernel: Kernel, model: Model, data: KernelData, schedule: Schedule) -> list[Chain]:
    """All chains of a fit, one after another; stops after the sweep in which Ctrl-C was pressed.

    Raises
    ------
    FloatingPointError    if the value of a sweep is not finite (names the sweep and a remedy).
    ValueError            if `resume` names a file that is broken or of another model or data set, or if there is a
                          `checkpoint` and the model cannot be written to a file.
    """
    fingerprint = {"model": to_plain(model), "num_data": data.num_data, "seed": schedule.seed}
    if schedule.checkpoint or schedule.resume:
        fingerprint = {name: plain(value, name) for name, value in fingerprint.items()}
    chains = _read_chains(schedule.resume, kernel, data, fingerprint) if schedule.resume else []
    bar = tqdm(
        total=schedule.num_steps * schedule.num_chains,
        initial=sum(chain.step for chain in chains),
        disable=None if schedule.progress is None else not schedule.progress,
        leave=False,
    )
    with bar, _interrupts() as interrupted:
        for index in range(schedule.num_chains):
            if index == len(chains):
                generator = torch.Generator(data.X.device).manual_seed(schedule.seed + 1_000_003 * index)
                chains.append(Chain(kernel.init(model, data, generator), generator))
            chain = chains[index]
            while chain.step < schedule.num_steps and not chain.finished and not interrupted():
                _advance(chain, kernel, model, data, schedule)
                bar.update()
                bar.set_postfix_str(f"{schedule.value_name} {chain.values[-1]:.6g}", refresh=False)
                if schedule.checkpoint and chain.step % schedule.checkpoint_every == 0:
                    _write_chains(schedule.checkpoint, chains, fingerprint)
            if interrupted():
                warnings.warn(
                    f"Interrupted in step {chain.step} of {schedule.num_steps}, chain {index + 1} of "
                    f"{schedule.num_chains}; returning {_what_there_is(chains, schedule)}.",
                    FitInterrupted,
                    stacklevel=4,  # of a call by `Backend.finish`
                )
                break
    if schedule.checkpoint:
        _write_chains(schedule.checkpoint, chains, fingerprint)
    return chains


def _what_there_is(chains: list[Chain], schedule: Schedule) -> str:
    if not schedule.keep(schedule.num_steps - 1):
        return "the state that it had reached"
    if not any(chain.draws for chain in chains):
        return "the state that the warm-up had reached, which is no draw from the posterior"
    return "what was drawn so far"


def _advance(chain: Chain, kernel: Kernel, model: Model, data: KernelData, schedule: Schedule) -> None:
    started = time.perf_counter()
    chain.state = kernel.sweep(chain.state, data, model, chain.generator, chain.step)
    value = float(kernel.value(chain.state, data, model))
    chain.seconds += time.perf_counter() - started
    if not math.isfinite(value):
        raise FloatingPointError(
            f"The {schedule.value_name} is {value} after step {chain.step + 1}. "
            "Use float64 inputs, standardize X, or take a smaller loss strength."
        )
    chain.values.append(value)
    chain.times.append(chain.seconds)
    if schedule.keep(chain.step):
        chain.draws.append(kernel.draw(chain.state, data, model))
    chain.step += 1
    chain.finished = schedule.stop(chain)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noted, not raised, so that a sweep ends whole; a second one is raised at once."""
    noted = False

    def note(number: int, frame: Any) -> None:
        nonlocal noted
        if noted:
            raise KeyboardInterrupt
        noted = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: noted
    finally:
        signal.signal(signal.SIGINT, previous)


def _write_chains(path: str | os.PathLike[str], chains: list[Chain], fingerprint: dict[str, Any]) -> None:
    written = [
        {
            **{item.name: getattr(chain, item.name) for item in dataclasses.fields(chain)},
            "state": {item.name: getattr(chain.state, item.name) for item in dataclasses.fields(chain.state)},
            "generator": chain.generator.get_state(),
        }
        for chain in chains
    ]
    write_file(path, "checkpoint", {"chains": written, "fingerprint": fingerprint})


def _read_chains(
    path: str | os.PathLike[str], kernel: Kernel, data: KernelData, fingerprint: dict[str, Any]
) -> list[Chain]:
    content = read_file(path, "checkpoint", data.X.device)
    for name, value in fingerprint.items():
        if not _same(content["fingerprint"][name], value):
            raise ValueError(
                f"{os.fspath(path)!r} was written by a fit with another {name}. "
                "Resume with the same model, data and seed."
            )
    chains = []
    for written in content["chains"]:
        generator = torch.Generator(data.X.device)
        generator.set_state(written["generator"].cpu())
        chains.append(Chain(**{**written, "state": kernel.state(**written["state"]), "generator": generator}))
    return chains


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
