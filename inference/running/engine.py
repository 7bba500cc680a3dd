"""The engine that runs the kernels of all backends and models: chains, progress, checkpoints, interrupts.

A kernel is a few functions on an immutable state. The engine calls `sweep` repeatedly, records `value` with the elapsed
seconds, keeps `draw` when asked to, and can write all of it to a checkpoint, from which a later run continues bit for
bit. Chains run one after another, or in parallel in processes of their own (`processes`), with the same draws.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any, cast

from torch import Tensor
from tqdm import tqdm

from ...models.config import to_plain
from ...models.domains import shown
from ...models.sums import ranks
from ...models.warning import warn
from ..compiled.clock import COMPILATION
from ..distributed.collectives import agreed, agreed_later, on_all
from ..posterior.draws import AnyDraw, axes_of, names_of, tables_of
from ..posterior.shapes import require_samples
from ..protocol import Model
from ..structures import Draw as Draw
from ..structures import structure_of
from .chains import LABELS, LabelRows, chain_of, shares_of
from .chains import Chain as Chain
from .checkpoints import Checkpoint, kind_of, read_chains
from .files import foreign
from .fingerprints import fingerprint
from .interrupts import FitStopped, Interrupts
from .processes import CannotTravel, ProcessLost, Report, most_jobs, sweep_apart
from .shards import shard_of
from .sweeps import Kernel as Kernel
from .sweeps import Schedule as Schedule
from .sweeps import Sweeps


class FitInterrupted(UserWarning):
    """The fit was stopped by Ctrl-C; what it had drawn until then was returned."""


def run(sweeps: Sweeps) -> list[Chain]:
    """Run all chains of a fit; Ctrl-C ends them after the last complete sweep, and is raised if the schedule says so.

    Raises
    ------
    FloatingPointError    if the value of a sweep is not finite (names the sweep and a remedy).
    KeyboardInterrupt     on Ctrl-C before the first chain has a state, on a second Ctrl-C, and if the schedule has
                          `on_interrupt` "raise", on one at any time: with the checkpoint written all the same.
    ValueError            if `resume` names a file that is broken, or of another or a longer fit, if there is a
                          `checkpoint` and the model, or the file, cannot be written, or if more than one process is
                          asked for and the model cannot be sent to another one.
    """
    fit, schedule = _Fit(sweeps), sweeps.schedule
    fit.open_files()
    with fit.show() as fit.bar, fit.interrupts.caught(), fit.told_of_compilation():
        try:
            fit.run()
        except FitStopped:
            fit.write()
            if schedule.on_interrupt == "raise" or not fit.reached():
                raise KeyboardInterrupt from None
            warn(fit.how_far(), FitInterrupted)
        else:
            fit.write()
    if schedule.on_interrupt == "raise" and any(agreed(fit.interrupts.noted)):  # noted after the last sweep
        raise KeyboardInterrupt
    return fit.reached()


class _Fit:
    """A running fit: its chains, and the steps of `run`."""

    bar: tqdm

    def __init__(self, sweeps: Sweeps) -> None:
        self.sweeps, self.schedule = sweeps, sweeps.schedule
        self.chains: dict[int, Chain] = {}
        self.found: dict[int, int] = {}  # number of steps of each chain that was read from a file
        self.interrupts = Interrupts()
        self.checkpoint: Checkpoint | None = None
        self.num_kept = self.schedule.num_kept  # draws of each chain
        self.rows = LabelRows(self.num_kept * self.schedule.num_chains)
        # ranks are processes already, and run the chains in the same order
        alone = ranks() is None
        self.may_share = alone and self.schedule.num_chains > 1 and self.schedule.num_jobs != 1
        self.started, self.num_swept = _spent(), 0
        self.asked = self._flags

    def open_files(self) -> None:
        """Read the chains to resume, and check that a checkpoint can be written, before any work."""
        path, schedule = self.schedule.resume, self.schedule
        if schedule.checkpoint is None and path is None:
            return
        model, data = self.sweeps.model, self.sweeps.data
        described = to_plain(model)
        described["params"] |= {name: to_plain(part) for name, part in schedule.parts.items()}
        whose = fingerprint(data=data, backend=schedule.backend, model=described, seed=schedule.seed)
        shard, tables = shard_of(data, "num_own"), tables_of(_record_of(model) or AnyDraw)
        if schedule.checkpoint is not None:
            self.checkpoint = Checkpoint(schedule.checkpoint, schedule.checkpoint_every, whose, shard, tables)
        if path is None:
            return
        kind, device = self.sweeps.kernel.state, data.X.device
        chains = on_all(lambda: read_chains(path, kind, device, whose, shard, tables))
        done = max((chain.step for chain in chains), default=0)
        if done > schedule.num_steps or len(chains) > schedule.num_chains:
            raise ValueError(
                f"{os.fspath(path)!r} has {len(chains)} chain(s) of up to {done} steps, more than the "
                f"{schedule.num_chains} of {schedule.num_steps} that are asked for. Ask for at least as many."
            )
        for index, chain in enumerate(chains):
            self._require_sound(chain)
            self.chains[index], self.found[index] = chain, chain.step
            self._keep(index, 0)

    def _require_sound(self, chain: Chain) -> None:
        """Raise ValueError if the kernel cannot continue a chain of the file."""
        due = sum(map(self.schedule.keep, range(chain.step)))
        if len(chain.draws) != due:
            raise ValueError(f"The file has {len(chain.draws)} draws of a chain, not {due}; regbayes did not write it.")
        self._require_rows(chain)
        ended = not self.sweeps.unfinished(chain)
        try:
            finite = not chain.step or math.isfinite(self.sweeps.value(chain.state))
            present = (self.sweeps.finished if ended else self.sweeps.drawn)(chain.state)
        except Exception as error:  # whatever a kernel raises on a state that is not its own
            raise _no_state(error) from None
        labelled = due or ended or len(present.get(LABELS, ()))  # amid stochastic steps a state may lack assignments
        sizes = [_sizes(draw, self.sweeps.model) for draw in ([present, *chain.draws] if labelled else [])]
        finite = finite and not any(bool(value.isnan().any()) for value in present.values())
        alike = all(size == sizes[0] for size in sizes) and (not due or kind_of(present) == kind_of(chain.draws[-1]))
        if not (finite and alike):
            raise foreign("a state and draws that differ in kind")

    def _require_rows(self, chain: Chain) -> None:
        """Raise ValueError if a state has entries for other rows than the data."""
        data = self.sweeps.data
        sizes = {"N": getattr(data, "num_own", data.num_data), **getattr(data, "axes", {})}
        for name, axis in shares_of(type(chain.state)).items():
            found = getattr(chain.state, name)
            if axis in sizes and isinstance(found, Tensor) and found.shape[:1] not in ((0,), (sizes[axis],)):
                raise foreign(f"{name} of shape {list(found.shape)} for {sizes[axis]} rows")

    def show(self) -> tqdm:
        """A progress bar over all sweeps."""
        return tqdm(
            total=self.schedule.num_steps * self.schedule.num_chains,
            initial=sum(chain.step for chain in self.chains.values()),
            disable=None if self.schedule.progress is None else not self.schedule.progress,
            leave=False,
        )

    def told_of_compilation(self) -> AbstractContextManager[None]:
        """In this context the bar says "compiling" before the first compilation, until the first sweep ends."""
        if self.bar.disable:
            return nullcontext()
        return COMPILATION.told(partial(self.bar.set_postfix_str, "compiling"))

    def run(self) -> None:
        """Sweep all chains to their ends."""
        while unfinished := self._unfinished():
            if (number := self._num_useful(unfinished)) > 1:
                self._run_apart(unfinished, number)
            else:
                self._run_here(unfinished[0])

    def _unfinished(self) -> list[int]:
        return [
            index
            for index in range(self.schedule.num_chains)
            if index not in self.chains or self.sweeps.unfinished(self.chains[index])
        ]

    def _run_here(self, index: int) -> None:
        """Run a chain to its end, or until it pays to distribute the chains among processes."""
        if index not in self.chains:
            self._admit(index, self.sweeps.start(index, self.interrupts))
        chain = self.chains[index]
        while self.sweeps.unfinished(chain):
            num_draws = len(chain.draws)
            self._advance(index, chain)
            self._keep(index, num_draws)
            self.num_swept += 1
            self._tell(chain, 1)
            if self.may_share and self._num_useful(self._unfinished()) > 1:
                return

    def _advance(self, index: int, chain: Chain) -> None:
        try:
            self.sweeps.advance(chain, self.interrupts, self._look)
        except (ArithmeticError, ValueError):
            raise
        except Exception as error:
            if chain.step != self.found.get(index):
                raise
            raise _no_state(error) from error  # the state comes from a file and has other shapes

    def _admit(self, index: int, chain: Chain) -> None:
        if self.checkpoint:
            self.checkpoint.admit(chain)
        self.chains[index] = chain

    def _keep(self, index: int, num_draws: int) -> None:
        """Move the assignments of new draws into the array that holds those of all draws."""
        draws, first = self.chains[index].draws, index * self.num_kept
        for place in range(num_draws, len(draws)):
            draws[place] = self.rows.keep(draws[place], first + place)

    def _look(self) -> None:
        """Ask all ranks whether to stop and whether to write; the answers arrive with the value of the sweep."""
        if ranks() is not None:
            self.asked = agreed_later(*self._flags())

    def _flags(self) -> list[bool]:
        return [self.interrupts.noted, self.checkpoint is not None and self.checkpoint.is_due]

    def _tell(self, chain: Chain, num_steps: int) -> None:
        self.bar.update(num_steps)
        if chain.values:
            self.bar.set_postfix_str(f"{self.schedule.value_name} {chain.values[-1]:.6g}", refresh=False)
        stops, is_due = self.asked()
        if is_due:
            self.write()
        if stops:
            raise FitStopped

    def write(self) -> None:
        """Write the checkpoint, if one was asked for and a chain has begun."""
        if self.checkpoint and self.reached():
            self.checkpoint.write(self.reached())

    # -- parallel chains -----------------------------------------------------------------------------------------------

    def _num_useful(self, unfinished: list[int]) -> int:
        """The number of processes to use: as many as asked for; by default more than one once that saves much time."""
        asked, seconds = self.schedule.num_jobs is not None, _spent() - self.started
        if not self.may_share or not (asked or (seconds >= _PATIENCE and self.num_swept)):
            return 1
        number = min(most_jobs(self.sweeps), len(unfinished))
        if number < 2 or asked:
            return number
        left = [
            self.schedule.num_steps - (self.chains[index].step if index in self.chains else 0) for index in unfinished
        ]
        saved = sum(left) - math.ceil(len(left) / number) * max(left)  # a chain is in one process at a time
        return number if seconds / self.num_swept * saved > _WORTH else 1

    def _run_apart(self, unfinished: list[int], number: int) -> None:
        """Run the chains in processes of their own; this process continues the chains of processes that were killed."""
        self.may_share = False
        try:
            with closing(sweep_apart(self.sweeps, number, unfinished, self.chains, self.interrupts)) as reports:
                for index, report in reports:
                    self._take(index, report)
        except CannotTravel as error:
            if self.schedule.num_jobs is not None:
                raise ValueError(
                    f"num_jobs is {self.schedule.num_jobs}, but {error}. Put the classes and functions of the model "
                    "into a module that can be imported, or use num_jobs=1."
                ) from None

    def _take(self, index: int, report: Report) -> None:
        """Add a report to the fit's own chain, as if the sweeps had been made here."""
        for warned in report.warned:
            warn(*warned)
        if report.news is not None:
            step, num_draws = 0, 0
            if chain := self.chains.get(index):
                step, num_draws = chain.step, len(chain.draws)
                chain.add(report.news)
            else:
                self._admit(index, chain_of(report.news))
            self._keep(index, num_draws)
            self._tell(self.chains[index], self.chains[index].step - step)
        if report.lost is not None:
            step = self.chains[index].step if index in self.chains else 0
            message = (
                f"The process of chain {index + 1} ended with exit code {report.lost} (-9: killed, often for want of "
                f"memory); the fit goes on with the chain in its own process, from step {step} of "
                f"{self.schedule.num_steps}, with the same draws. If memory is short, use num_jobs=1."
            )
            warn(message, ProcessLost)
        if report.error:
            raise report.error

    # -- Ctrl-C --------------------------------------------------------------------------------------------------------

    def reached(self) -> list[Chain]:
        """The chains that have begun, up to the first one that has not."""
        return [self.chains[index] for index in itertools.takewhile(self.chains.__contains__, itertools.count())]

    def how_far(self) -> str:
        """The message for a fit that was interrupted."""
        chains, schedule = self.reached(), self.schedule
        which = [place for place, chain in enumerate(chains) if self.sweeps.unfinished(chain)] or [len(chains) - 1]
        steps, numbers = (
            ", ".join(map(str, each))
            for each in ([chains[place].step for place in which], [1 + place for place in which])
        )
        return (
            f"Interrupted after step {steps} of {schedule.num_steps}, chain {numbers} of {schedule.num_chains}; "
            f"returning {_what_there_is(chains, schedule)}."
        )


def _what_there_is(chains: list[Chain], schedule: Schedule) -> str:
    if not schedule.keep(schedule.num_steps - 1):
        return "the state that it had reached"
    if not any(chain.draws for chain in chains):
        return "the state that the warm-up had reached, which is no draw from the posterior"
    return "what was drawn so far"


def _sizes(draw: Draw, model: Model) -> dict[str, int]:
    """The lengths of the axes of one draw, except the number of components; ValueError if they are inconsistent."""
    if (record := _record_of(model)) is None:
        return {}
    samples = {name: value.unsqueeze(0) for name, value in draw.items()}
    sizes = require_samples(samples, [1], names_of(record), axes_of(record))
    return {axis: size for axis, size in sizes.items() if axis != "K"}


def _record_of(model: Model) -> type[Any] | None:
    """The record type of a draw; None if the structure has none."""
    try:
        return cast(type[Any], structure_of(model).posterior.record)
    except NotImplementedError:
        return None


def _no_state(error: Exception) -> ValueError:
    return foreign(f"no state of this fit: {shown(str(error))}")


def _spent() -> float:
    """CPU seconds of this thread, without compilation."""
    return time.thread_time() - COMPILATION.seconds


# CPU seconds: by wall time, a busy machine would make short fits start processes and wait for them
_PATIENCE = 4.0  # seconds of a fit before it may start processes
_WORTH = 6.0  # seconds that processes must save; starting them takes two or three
