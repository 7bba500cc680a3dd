"""Processes that sweep some of a fit's chains while the fit's own process sweeps the others.

A worker gets the kernel, the model and the data once, by cloudpickle, so that classes and functions of a notebook are
no hindrance; then the number of a chain at a time. It reports what the chain has done, once in a while and at its end,
and the fit adds that to its own chains as if it had made the sweeps. A chain has a random stream of its own, and as
many threads wherever it runs: its draws are the same. A report holds all that the chain needs to go on, so that the fit
takes over the chain of a process that was killed.

To start a process takes seconds, so that a fit which has come to its regular end leaves its workers to the next one,
for a minute, without its data. A kept one finds the streams and settings of a new process. Its modules are those that
it has imported, as they stay in the fit's own process too; but it goes once the file of a module has changed since it
started, or the places where modules are found, or the environment, so that it never has an older module than a new
process would have.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, current_process, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch
from joblib import cpu_count
from joblib.externals.loky.backend import get_context
from joblib.externals.loky.backend import resource_tracker as tracker

from .chains import Chain
from .reports import Report, news_of, packed
from .sweeps import Sweeps
from .worker_process import work_for_fits


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
    """The workers of a fit; none until they are started."""

    def __init__(self) -> None:
        self._all: list[Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers, whatever they are at."""
        for worker in self._all:
            worker.kill()
        for worker in self._all:
            worker.close()
        self._all = []

    def keep(self) -> None:
        """Leave all workers, each at the end of its chains, to another fit."""
        for worker in self._all:
            worker.let_go()
        _KEPT.extend(self._all)
        self._all = []

    def __len__(self) -> int:
        return len(self._all)

    def start(self, number: int, sweeps: Sweeps, begun: dict[int, Chain]) -> None:
        """Start so many, or take kept ones, which know the chains that have begun.

        Raises
        ------
        ValueError    if the fit holds what cannot be sent to another process.
        """
        settings = torch.get_num_threads(), torch.get_default_dtype()
        chains = {index: news_of(chain, 0, len(chain.draws)) for index, chain in begun.items()}
        try:
            payload = packed((settings, sweeps, chains))
        except Exception as error:
            raise ValueError(f"the fit cannot be sent to another process: {error!r}") from error
        for _ in range(number):
            self._all.append(_kept() or Worker())
            self._all[-1].read(payload)

    def drop(self, worker: Worker) -> int | None:
        """Do without one that has ended; its exit code."""
        self._all.remove(worker)
        worker.process.join(_SOON)
        worker.kill()  # one whose connection alone has ended
        worker.close()
        return worker.process.exitcode

    def idle(self) -> list[Worker]:
        """Those that have no chain."""
        return [worker for worker in self._all if worker.at is None]

    def at_work(self) -> list[int]:
        """The chains that are under way."""
        return [worker.at for worker in self._all if worker.at is not None]

    def wait(self, seconds: float | None) -> list[Worker]:
        """Those with something to say, within so many seconds; None: until there is one."""
        spoken = wait([worker.connection for worker in self._all], seconds)
        return [worker for worker in self._all if worker.connection in spoken]

    def stop(self) -> Iterator[Report]:
        """End all workers; what they have to say at the end."""
        for worker in self._all:
            worker.process.terminate()
        for worker in self._all:
            with suppress(EOFError, OSError):
                while True:
                    yield worker.listen()


class Worker:
    """One process, from the side of the fit."""

    def __init__(self) -> None:
        self.at: int | None = None
        self._started, self._surroundings = time.time(), _surroundings()
        self.connection, theirs = Pipe()
        inbox, self._outbox = Pipe(duplex=False)
        with _unheard():
            process = get_context("loky").Process
            self.process = process(target=work_for_fits, args=(theirs, inbox, _PATIENCE), daemon=True, env=_SETTINGS)
            self.process.start()
        theirs.close()
        inbox.close()

    def read(self, payload: bytes) -> None:
        """Let it read a fit."""
        threading.Thread(target=_send, args=(self._outbox, payload), daemon=True).start()

    def let_go(self) -> None:
        """Let it forget the fit."""
        with suppress(OSError):
            self.connection.send(None)

    def as_new(self) -> bool:
        """Whether it has what a new process would have."""
        return self._surroundings == _surroundings() and not _changed_since(self._started)

    def wakes(self) -> bool:
        """Whether it is there for another fit."""
        with suppress(EOFError, OSError):
            self.connection.send(None)
            if self.connection.poll(_SOON):
                self.listen()
                return True
        return False

    def give(self, index: int) -> None:
        """Let it go on with a chain."""
        self.at = index
        with suppress(OSError):  # that it has ended is seen when it is heard
            self.connection.send(index)

    def listen(self) -> Report:
        """What it says next; EOFError if it has ended."""
        report: Report = cloudpickle.loads(self.connection.recv_bytes())
        if report.ended:
            self.at = None
        return report

    def kill(self) -> None:
        """End it at once."""
        if self.process.is_alive():
            os.kill(self.process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    def close(self) -> None:
        """Wait for its end; the outbox closes with the thread that may still be at it."""
        self.process.join()
        self.connection.close()


def _send(outbox: Connection, payload: bytes) -> None:
    with suppress(OSError):
        outbox.send_bytes(payload)


def _kept() -> Worker | None:
    """A worker of an earlier fit, if there is one that may be used again; the others are ended."""
    with suppress(IndexError):
        while True:
            worker = _KEPT.pop()
            if worker.as_new() and worker.wakes():
                return worker
            worker.kill()
            worker.close()
    return None


def _surroundings() -> tuple[Any, ...]:
    """What a new process takes over, but for settings that a fit sends."""
    return os.getcwd(), list(sys.argv), list(sys.path), dict(os.environ)


def _changed_since(moment: float) -> bool:
    """Whether the file of any module has changed."""
    # a module may import others when it is asked for an attribute
    files = [getattr(module, "__dict__", {}).get("__file__") for module in list(sys.modules.values())]
    for file in filter(None, files):
        with suppress(OSError, TypeError, ValueError):
            found = os.stat(file)
            if max(found.st_mtime, found.st_ctime) > moment:
                return True
    return False


def _end_kept() -> None:
    while _KEPT:
        _KEPT[-1].kill()
        _KEPT.pop().close()


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
_PATIENCE, _SOON = 60.0, 1.0  # seconds that a worker waits for another fit; until it has to answer, or to end
_KEPT: list[Worker] = []  # idle ones; of the module, since no fit outlasts its end
atexit.register(_end_kept)  # at once: they would be told by SIGTERM
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_KEPT.clear)  # of the other process
