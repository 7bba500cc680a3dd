"""Processes that sweep some of a fit's chains while the fit's own process sweeps the others.

A worker gets the kernel, the model and the data once, by cloudpickle, so that classes and functions of a notebook are
no hindrance; then the number of a chain at a time. It reports what the chain has done, once in a while and at its end,
and the fit adds that to its own chains as if it had made the sweeps. A chain has a random stream of its own, and as
many threads wherever it runs: its draws are the same.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, current_process, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait

import cloudpickle
import torch
from joblib import cpu_count
from joblib.externals.loky.backend import get_context
from joblib.externals.loky.backend import resource_tracker as tracker

from .chains import Chain
from .reports import Report, news_of, packed
from .sweeps import Sweeps
from .worker_process import work_for_fit


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
            worker.process.join()
            worker.connection.close()
        self._all = []

    def __len__(self) -> int:
        return len(self._all)

    def start(self, number: int, sweeps: Sweeps, begun: dict[int, Chain]) -> None:
        """Start so many, which know the chains that have begun.

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
            self._all.append(Worker(payload))

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

    def __init__(self, payload: bytes) -> None:
        self.at: int | None = None
        self.connection, theirs = Pipe()
        inbox, outbox = Pipe(duplex=False)
        with _unheard():
            process = get_context("loky").Process
            self.process = process(target=work_for_fit, args=(theirs, inbox), daemon=True, env=_SETTINGS)
            self.process.start()
        theirs.close()
        inbox.close()
        threading.Thread(target=_send, args=(outbox, payload), daemon=True).start()

    def give(self, index: int) -> None:
        """Let it go on with a chain."""
        self.at = index
        with suppress(OSError):  # that it has ended is seen when it is heard
            self.connection.send(index)

    def hear(self) -> Report:
        """What it says next.

        Raises
        ------
        RuntimeError    if it has ended without a word.
        """
        try:
            return self.listen()
        except (EOFError, OSError):
            self.process.join()
            raise RuntimeError(
                f"The process of chain {(self.at or 0) + 1} ended with exit code {self.process.exitcode} "
                "(-9: often for want of memory). Use num_jobs=1, which runs the chains one after another."
            ) from None

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


def _send(outbox: Connection, payload: bytes) -> None:
    with suppress(OSError), outbox:
        outbox.send_bytes(payload)


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
