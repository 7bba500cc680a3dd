"""What surrounds every kernel: chains, progress, checkpoints, interrupts. Written once for all backends and models.

A kernel is a few functions on an immutable state. The engine calls `sweep` again and again, records `value` with the
elapsed seconds, keeps `draw` when asked to, and can write all of it to a checkpoint from which a later run goes on bit
for bit. Chains run one after another, or side by side in processes of their own (`workers`), with the same draws.
"""

from __future__ import annotations

import itertools
import math
import os
import time
import warnings
from collections import deque

from tqdm import tqdm

from ...models.config import to_plain
from ...models.domains import shown
from ..posterior.shapes import require_samples
from ..protocol import Model
from ..structures import Draw as Draw
from ..structures import structure_of
from .chains import Chain as Chain
from .checkpoints import Checkpoint, fingerprint, kind_of, read_chains
from .interrupts import FitStopped, Interrupts
from .labels import LabelRows
from .reports import Report, add_news, chain_of
from .sweeps import Kernel as Kernel
from .sweeps import Schedule as Schedule
from .sweeps import Sweeps
from .workers import ProcessLost, Worker, Workers, most_jobs


class FitInterrupted(UserWarning):
    """The fit was stopped by Ctrl-C; what it had drawn until then was returned."""


def run(sweeps: Sweeps) -> list[Chain]:
    """All chains of a fit; Ctrl-C ends each of them with the last sweep that was finished, and is raised if the
    schedule says so.

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
    with fit.show() as fit.bar, fit.interrupts.caught(), fit.workers:
        try:
            fit.run()
        except FitStopped:
            fit.gather()
            fit.write(now=True)
            if schedule.on_interrupt == "raise" or not fit.reached():
                raise KeyboardInterrupt from None
            # of a call by `Backend.finish`
            warnings.warn(fit.how_far(), FitInterrupted, stacklevel=4)
        else:
            fit.workers.keep()
            fit.write(now=True)
    if schedule.on_interrupt == "raise" and fit.interrupts.noted:  # after the last sweep
        raise KeyboardInterrupt
    return fit.reached()


class _Fit:
    """A fit in the middle: its chains, and the steps that `run` takes."""

    bar: tqdm

    def __init__(self, sweeps: Sweeps) -> None:
        self.sweeps, self.schedule = sweeps, sweeps.schedule
        self.chains: dict[int, Chain] = {}
        self.found: dict[int, int] = {}  # steps of chains that come from a file
        self.waiting: deque[int] = deque(range(self.schedule.num_chains))  # chains that no process is at
        self.left: deque[int] = deque()  # chains of processes that were killed, to go on here
        self.interrupts, self.workers = Interrupts(), Workers()
        self.checkpoint: Checkpoint | None = None
        self.num_kept = self.schedule.num_kept  # draws of each chain
        self.rows = LabelRows(self.num_kept * self.schedule.num_chains)
        self.num_jobs = most_jobs(sweeps) if self.schedule.num_chains > 1 else 1
        self.started, self.num_swept, self.looked = time.monotonic(), 0, 0.0

    def open_files(self) -> None:
        """Read the chains to go on from, and see that a checkpoint can be written: before any work."""
        path, schedule = self.schedule.resume, self.schedule
        if schedule.checkpoint is None and path is None:
            return
        described = {"backend": schedule.backend, "model": to_plain(self.sweeps.model), "seed": schedule.seed}
        whose = fingerprint(data=self.sweeps.data, **described)
        if schedule.checkpoint is not None:
            self.checkpoint = Checkpoint(schedule.checkpoint, schedule.checkpoint_every, whose)
        if path is None:
            return
        chains = read_chains(path, self.sweeps.kernel.state, self.sweeps.data.X.device, whose)
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
            if not self.sweeps.unfinished(chain):
                self.waiting.remove(index)

    def _require_sound(self, chain: Chain) -> None:
        """Raise ValueError if a chain of a file is none that the kernel can go on from."""
        due = sum(map(self.schedule.keep, range(chain.step)))
        if len(chain.draws) != due:
            raise ValueError(f"The file has {len(chain.draws)} draws of a chain, not {due}; regbayes did not write it.")
        try:
            finite = not chain.step or math.isfinite(self.sweeps.value(chain.state))
            present = self.sweeps.drawn(chain.state)
        except Exception as error:  # whatever kernels raise on what is no state of theirs
            raise _no_state(error) from None
        sizes = [_sizes(draw, self.sweeps.model) for draw in ([present, *chain.draws] if due else [])]
        alike = all(size == sizes[0] for size in sizes) and (not due or kind_of(present) == kind_of(chain.draws[-1]))
        if not (finite and alike):
            raise ValueError("The file has a state and draws that differ in kind. It was not written by regbayes.")

    def show(self) -> tqdm:
        """A bar of all sweeps."""
        return tqdm(
            total=self.schedule.num_steps * self.schedule.num_chains,
            initial=sum(chain.step for chain in self.chains.values()),
            disable=None if self.schedule.progress is None else not self.schedule.progress,
            leave=False,
        )

    def run(self) -> None:
        """Sweep all chains to their ends."""
        while self.left or self.waiting or self.workers.at_work():
            if self.left or self.waiting:
                self._run_chain((self.left or self.waiting).popleft())
            else:
                self._hear(None)

    def _run_chain(self, index: int) -> None:
        self._share()
        if index not in self.chains:
            self._admit(index, self.sweeps.start(index, self.interrupts))
        chain = self.chains[index]
        while self.sweeps.unfinished(chain):
            num_draws = len(chain.draws)
            self._advance(index, chain)
            self._keep(index, num_draws)
            self.num_swept += 1
            self._tell(chain, 1)
            self.interrupts.check()
            self._share()

    def _advance(self, index: int, chain: Chain) -> None:
        try:
            self.sweeps.advance(chain, self.interrupts)
        except (ArithmeticError, ValueError):
            raise
        except Exception as error:
            if chain.step != self.found.get(index):
                raise
            raise _no_state(error) from error  # it comes from a file, and is of other shapes

    def _admit(self, index: int, chain: Chain) -> None:
        if self.checkpoint:
            self.checkpoint.admit(chain)
        self.chains[index] = chain

    def _keep(self, index: int, num_draws: int) -> None:
        """Draws after the first so many, with their labels in the rows that they have among all."""
        draws, first = self.chains[index].draws, index * self.num_kept
        for place in range(num_draws, len(draws)):
            draws[place] = self.rows.keep(draws[place], first + place)

    def _tell(self, chain: Chain, num_steps: int) -> None:
        self.bar.update(num_steps)
        if chain.values:
            self.bar.set_postfix_str(f"{self.schedule.value_name} {chain.values[-1]:.6g}", refresh=False)
        self.write()

    def write(self, *, now: bool = False) -> None:
        """Write the checkpoint, if there is one and it is time to."""
        if self.checkpoint and self.reached():
            self.checkpoint.write(self.reached(), now=now)

    # -- side by side --------------------------------------------------------------------------------------------------

    def _share(self) -> None:
        """Let others have the chains that wait; now and then hear what they have done."""
        if self.waiting and not self.workers and self.num_jobs > 1 and self._pays():
            self._start_workers()
        if self.workers and time.monotonic() >= self.looked + _MOMENT:
            self._hear(0.0)
            self.looked = time.monotonic()
        for worker in self.workers.idle():
            if self.waiting:
                worker.give(self.waiting.popleft())

    def _pays(self) -> bool:
        """Whether to share: at once where that was asked for, else when there is much to do as far as can be told."""
        seconds = time.monotonic() - self.started
        if self.schedule.num_jobs is not None or seconds < _PATIENCE or not self.num_swept:
            return self.schedule.num_jobs is not None
        left = sum(
            self.schedule.num_steps - (self.chains[index].step if index in self.chains else 0) for index in self.waiting
        )
        return seconds / self.num_swept * left > _WORTH

    def _start_workers(self) -> None:
        begun = {index: self.chains[index] for index in self.waiting if index in self.chains}
        try:
            self.workers.start(min(self.num_jobs - 1, len(self.waiting)), self.sweeps, begun)
        except ValueError as error:
            self._do_without(str(error))

    def _do_without(self, why: str) -> None:
        """Run all chains here; ValueError if that was not asked for."""
        if self.schedule.num_jobs is not None:
            raise ValueError(
                f"num_jobs is {self.schedule.num_jobs}, but {why}. Put the classes and functions of the model into a "
                "module that can be imported, or use num_jobs=1."
            )
        self.num_jobs = 1
        self.waiting.extend(self.workers.at_work())
        self.workers.close()

    def _hear(self, seconds: float | None) -> None:
        """Take in what others have done, waiting for it for so many seconds; None: for as long as it takes."""
        with self.interrupts.droppable():
            speaking = self.workers.wait(seconds)
        for worker in speaking:
            self._listen(worker)

    def _listen(self, worker: Worker) -> None:
        try:
            report = worker.listen()
        except (EOFError, OSError):
            self._lose(worker)
            return
        if report.refusal:
            self._do_without(report.refusal)
            return
        for warned in report.warned:
            warnings.warn(warned, stacklevel=6)
        self._take(report)
        if report.error:
            raise report.error

    def _lose(self, worker: Worker) -> None:
        """Do without a process that was killed, and go on here with the chain that it was at, from its last report."""
        index, self.num_jobs = worker.at, self.num_jobs - 1
        code = self.workers.drop(worker)
        if index is None:
            return
        self.left.append(index)
        step = self.chains[index].step if index in self.chains else 0
        message = (
            f"The process of chain {index + 1} ended with exit code {code} (-9: killed, often for want of memory); the "
            f"fit goes on with the chain in its own process, from step {step} of {self.schedule.num_steps}, with the "
            "same draws. If memory is short, use num_jobs=1."
        )
        warnings.warn(message, ProcessLost, stacklevel=6)

    def _take(self, report: Report) -> None:
        index, news = report.index, report.news
        if news is None:
            return
        step, num_draws = 0, 0
        if index not in self.chains:
            self._admit(index, chain_of(news))
        else:
            step, num_draws = self.chains[index].step, len(self.chains[index].draws)
            add_news(self.chains[index], news)
        self._keep(index, num_draws)
        self._tell(self.chains[index], self.chains[index].step - step)

    # -- Ctrl-C --------------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """End the other processes, with what they have done."""
        for report in self.workers.stop():
            self._take(report)

    def reached(self) -> list[Chain]:
        """The chains that have begun, up to the first one that has not."""
        return [self.chains[index] for index in itertools.takewhile(self.chains.__contains__, itertools.count())]

    def how_far(self) -> str:
        """What a fit that was stopped says."""
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
    """The lengths of the axes of one draw, without the number of components; ValueError if they do not fit together."""
    try:
        posterior = structure_of(model).posterior
    except NotImplementedError:  # nobody has said what draws of the kernel look like
        return {}
    samples = {name: value.unsqueeze(0) for name, value in draw.items()}
    sizes = require_samples(samples, [1], posterior.kept, posterior.axes)
    return {axis: size for axis, size in sizes.items() if axis != "K"}


def _no_state(error: Exception) -> ValueError:
    return ValueError(f"The file has no state of this fit: {shown(str(error))}. It was not written by regbayes.")


_MOMENT = 0.05  # seconds between looks at what others have said
_PATIENCE, _WORTH = 4.0, 10.0  # seconds of a fit, and of its chains that wait, from which on others help
