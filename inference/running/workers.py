"""Processes that sweep some of a fit's chains while the fit's own process sweeps the others.

They are those of loky's reusable executor, which keeps them for a later fit. A fit is written to a file, from which
each reads it. A process gets a chain, goes on with it for half a second, and gives it back; a thread of the executor
passes it on at once to whichever process is free. A chain has a random stream of its own, and as many threads wherever
it runs: its draws are the same. All that it needs to go on is in what was given back, so that the chain of a process
that was killed goes on from there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import active_children, current_process, parent_process, resource_tracker
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory

import torch
from loky import cpu_count, get_reusable_executor
from loky.backend import resource_tracker as tracker
from loky.backend.process import LokyProcess

from .chains import Chain
from .pieces import NotShared, Piece, begin_work, go_on, packed, packed_chain
from .sweeps import Sweeps


def most_jobs(sweeps: Sweeps) -> int:
    """How many processes the chains of a fit may have; one for other devices, ranks of a group and data that pass."""
    ranked = torch.distributed.is_available() and torch.distributed.is_initialized()
    elsewhere = sweeps.data.X.device.type != "cpu"
    if elsewhere or ranked or not sweeps.schedule.repeatable or current_process().daemon:
        return 1
    if sweeps.schedule.num_jobs is not None:
        return min(sweeps.schedule.num_jobs, sweeps.schedule.num_chains)
    # a process that has a parent leaves it to that what the cores are for
    return 1 if parent_process() else min(int(cpu_count()), sweeps.schedule.num_chains)


class ProcessLost(UserWarning):
    """A process that swept a chain was killed; the fit went on with the chain from what it had reported."""


class Workers:
    """The processes of a fit, and the chains that they are at; none until they are started."""

    def __init__(self) -> None:
        self.at_work: set[int] = set()
        self.number = 0
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, number: int, sweeps: Sweeps) -> None:
        """Start so many, or take those of an earlier fit.

        Raises
        ------
        NotShared    if the fit holds what cannot be sent to another process.
        """
        try:
            payload = packed(((torch.get_num_threads(), torch.get_default_dtype()), sweeps))
        except Exception as error:
            raise NotShared(f"the fit cannot be sent to another process: {error!r}") from error
        self._folder = TemporaryDirectory(prefix="regbayes-")
        self._file = Path(self._folder.name, "fit")
        self._file.write_bytes(payload)
        self._said, self._spoken = SimpleQueue[tuple[int, Piece | BaseException, bool]](), threading.Event()
        self._stopping = False
        with _unheard():
            self._executor = get_reusable_executor(
                number, timeout=_PATIENCE, initializer=begin_work, initargs=(os.getpid(),), env=_SETTINGS
            )
        self.number = number

    def give(self, index: int, chain: Chain | None) -> None:
        """Let one of them go on with a chain; None: begin it."""
        begun = packed_chain(chain) if chain else None
        self.at_work.add(index)
        with _unheard():
            self._submit(index, begun)

    def wait(self, seconds: float | None) -> None:
        """Until there is something to hear, or for so many seconds."""
        self._spoken.wait(seconds)

    def heard(self) -> Iterator[tuple[int, Piece | BaseException]]:
        """What they have done of chains since this was asked last, or the error by which a process has failed."""
        self._spoken.clear()
        with suppress(Empty):
            while True:
                yield self._next(block=False)

    def stop(self) -> Iterator[tuple[int, Piece | BaseException]]:
        """Let all drop the sweep that they are in; what they have done until then."""
        self._stopping = True
        for process in active_children() if self.number else []:  # else they are idle, and of another fit
            if isinstance(process, LokyProcess):
                process.terminate()
        while self.at_work:
            yield self._next(block=True)

    def keep(self) -> None:
        """Leave the processes, each at the end of its chains, to a later fit."""
        self.number = 0
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def close(self) -> None:
        """End the processes, whatever they are at."""
        if self.number:
            self._stopping = True
            self._executor.shutdown(kill_workers=True)
        self.at_work = set()
        self.keep()

    def _next(self, *, block: bool) -> tuple[int, Piece | BaseException]:
        index, piece, is_last = self._said.get(block)
        if is_last:
            self.at_work.discard(index)
        return index, piece

    def _submit(self, index: int, begun: bytes | None) -> None:
        try:
            future = self._executor.submit(go_on, str(self._file), index, begun)
        except Exception as error:  # it broke a moment ago
            self._say(index, error, True)
        else:
            future.add_done_callback(partial(self._pass_on, index))

    def _pass_on(self, index: int, future: Future[Piece]) -> None:
        """Say what was done of a chain, and let it go on if there is more to do: in a thread of the executor."""
        if error := future.exception():
            self._say(index, error, True)
            return
        piece = future.result()
        is_last = piece.ended or piece.stopped or self._stopping
        self._say(index, piece, is_last)
        if not is_last:
            self._submit(index, piece.chain)

    def _say(self, index: int, piece: Piece | BaseException, is_last: bool) -> None:
        self._said.put((index, piece, is_last))
        self._spoken.set()


@contextmanager
def _unheard() -> Iterator[None]:
    """Processes that start here do not hear of Ctrl-C, which a terminal sends to all."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    for each in (tracker, resource_tracker):  # to start them ends what follows
        each.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_SETTINGS = {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that wait leave the cores to other chains
_PATIENCE = 60  # seconds that an idle process waits for another fit
