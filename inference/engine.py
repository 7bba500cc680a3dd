"""What surrounds every kernel: chains, progress, checkpoints, interrupts. Written once for all backends and models.

A kernel is four functions on an immutable state. The engine calls `sweep` again and again, records `value` with the
elapsed seconds, keeps `draw` when asked to, and can write all of it to a checkpoint from which a later run goes on bit
for bit.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..models.config import Config, to_plain

__all__ = ["Chain", "FitInterrupted", "Kernel", "Schedule", "TruncationWarning", "read_file", "run", "write_file"]

Draw = dict[str, Tensor]


class FitInterrupted(UserWarning):
    """The fit was stopped by Ctrl-C; what it had drawn until then was returned."""


class TruncationWarning(UserWarning):
    """All components of the truncated model are occupied: the truncation binds."""


@dataclass(frozen=True)
class Kernel:
    """One algorithm for one kind of model. States are frozen dataclasses of tensors and plain numbers."""

    state: type
    init: Callable[..., Any]  # (model, data, generator) -> state
    sweep: Callable[..., Any]  # (state, data, model, generator) -> state
    value: Callable[..., Tensor | float]  # (state, data, model) -> log joint, ELBO or objective
    draw: Callable[..., Draw]  # (state, data, model) -> what the posterior keeps of a state


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

    def with_files(self, checkpoint: str | os.PathLike[str] | None, resume: str | os.PathLike[str] | None) -> Schedule:
        """A copy that writes to and goes on from these files."""
        return dataclasses.replace(self, checkpoint=checkpoint, resume=resume)


def run(kernel: Kernel, model: Config, data: Any, schedule: Schedule) -> list[Chain]:
    """All chains of a fit, one after another; stops after the sweep in which Ctrl-C was pressed.

    Raises
    ------
    FloatingPointError    if the value of a sweep is not finite (names the sweep and a remedy).
    ValueError            if `resume` names a file that is broken or of another model or data set.
    """
    fingerprint = {"model": to_plain(model), "num_data": data.num_data, "seed": schedule.seed}
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
                    stacklevel=3,
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


def _advance(chain: Chain, kernel: Kernel, model: Config, data: Any, schedule: Schedule) -> None:
    started = time.perf_counter()
    chain.state = kernel.sweep(chain.state, data, model, chain.generator)
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


def write_file(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write tensors and plain data so that the file is either the old one or the whole new one."""
    folder = Path(path).resolve().parent
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_file(path: str | os.PathLike[str], kind: str, schema: int, device: Any = None) -> dict[str, Any]:
    """The content of a file written by `write_file`; never runs code from it.

    Raises
    ------
    FileNotFoundError    if there is no such file.
    ValueError           if it is cut short, of another kind, or of a newer schema.
    """
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r}.") from None
    except Exception as error:
        raise ValueError(
            f"{os.fspath(path)!r} cannot be read as a {kind} ({type(error).__name__}). It is cut short, or not a file "
            "that regbayes wrote; use an earlier copy."
        ) from None
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise ValueError(f"{os.fspath(path)!r} is not a {kind} of regbayes.")
    if content["schema"] > schema:
        raise ValueError(
            f"{os.fspath(path)!r} has schema {content['schema']}, written by regbayes {content['version']}; this "
            f"release reads up to {schema}. Upgrade regbayes to that version."
        )
    return content


_CHECKPOINT_SCHEMA = 1


def _write_chains(path: str | os.PathLike[str], chains: list[Chain], fingerprint: dict[str, Any]) -> None:
    from . import __version__

    plain = [
        {
            **{item.name: getattr(chain, item.name) for item in dataclasses.fields(chain)},
            "state": {item.name: getattr(chain.state, item.name) for item in dataclasses.fields(chain.state)},
            "generator": chain.generator.get_state(),
        }
        for chain in chains
    ]
    content = {"kind": "checkpoint", "schema": _CHECKPOINT_SCHEMA, "version": __version__, "chains": plain}
    write_file(path, content | {"fingerprint": fingerprint})


def _read_chains(path: str | os.PathLike[str], kernel: Kernel, data: Any, fingerprint: dict[str, Any]) -> list[Chain]:
    content = read_file(path, "checkpoint", _CHECKPOINT_SCHEMA, data.X.device)
    for name, value in fingerprint.items():
        if not _same(content["fingerprint"][name], value):
            raise ValueError(
                f"{os.fspath(path)!r} was written by a fit with another {name}. "
                "Resume with the same model, data and seed."
            )
    chains = []
    for plain in content["chains"]:
        generator = torch.Generator(data.X.device)
        generator.set_state(plain["generator"].cpu())
        chains.append(Chain(**{**plain, "state": kernel.state(**plain["state"]), "generator": generator}))
    return chains


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
