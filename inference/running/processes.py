"""Processes that run the chains of a fit, while the fit's own process receives their reports.

A process gets the kernel, the model and the data once, by cloudpickle, which also sends classes and functions of a
notebook; then it gets one chain after another. It reports the progress of the chain, at most twice a second, and at the
end. A chain has a random stream of its own and the same number of threads wherever it runs, so its draws are the same.
The reports contain all that is needed to continue the chain, so that a fit that is stopped, or whose process was
killed, loses half a second of it.

Processes belong to one fit. Each ends when its connection does, so that none outlasts the fit, however that ends. They
are loky's, which need no `if __name__ == "__main__"` in a script; but not of loky's executor, which waits forever if a
process is killed while its result is being sent.
"""

from __future__ import annotations

import io
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, current_process, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

import cloudpickle
import torch
from numpy.typing import NDArray
from torch import Tensor

from .chains import Chain, News, chain_of
from .interrupts import Interrupts
from .sweeps import Sweeps


class ProcessLost(UserWarning):
    """A process that ran a chain was killed; the fit continued the chain from its last report."""


def most_jobs(sweeps: Sweeps) -> int:
    """The largest number of processes for the chains of a fit: one on other devices, and among ranks."""
    ranked = torch.distributed.is_available() and torch.distributed.is_initialized()
    elsewhere = sweeps.data.X.device.type != "cpu"
    if elsewhere or ranked or current_process().daemon:
        return 1
    if sweeps.schedule.num_jobs is not None:
        return min(sweeps.schedule.num_jobs, sweeps.schedule.num_chains)
    # in a child process, the parent decides how cores are used
    return 1 if parent_process() else min(num_cores(), sweeps.schedule.num_chains)


def num_cores() -> int:
    """The number of cores that this process may use."""
    from loky import cpu_count  # loky is for fits that last: to import it takes time

    return int(cpu_count())


class CannotTravel(ValueError):
    """The fit cannot be sent to another process, or cannot be read there."""


@dataclass
class Report:
    """A report about a chain from its process, or that the process has ended."""

    news: News | None = None  # since the last report; None: the chain has no state yet
    ended: bool = False  # whether the process is free for another chain
    warned: list[tuple[str, type[Warning]]] = field(default_factory=list)
    error: Exception | None = None  # the error that ended the chain
    refusal: str = ""  # why the process cannot run any chain
    lost: int | None = None  # exit code of a process that ended before its chain


# -- in the process of the fit -----------------------------------------------------------------------------------------


def sweep_apart(
    sweeps: Sweeps, number: int, indices: list[int], begun: dict[int, Chain], interrupts: Interrupts
) -> Generator[tuple[int, Report], None, None]:
    """Run chains in `number` processes; yields reports, each with the index of its chain.

    A chain in `begun` is continued. No process is left when the generator is closed.

    Raises
    ------
    CannotTravel    if the fit holds what cannot be sent to another process, or not be read there.
    FitStopped      on Ctrl-C while it waits.
    """
    try:
        fit = _packed((torch.get_num_threads(), torch.get_default_dtype(), sweeps))
    except Exception as error:
        raise CannotTravel(f"the fit cannot be sent to another process: {error!r}") from error
    processes, waiting, at = dict[Connection, Any](), list(indices), dict[Connection, int]()
    try:
        with interrupts.droppable():
            for _ in range(number):
                _start(processes)
            for connection in processes:  # while this sends, the other processes start
                _send(connection, fit)
        free = list(processes)
        while True:
            for connection in free[: len(waiting)]:
                index = at[connection] = waiting.pop(0)
                known = begun.get(index)
                _send(connection, _packed((index, known and known.news(0, len(known.draws)))))
            if not at:
                return
            with interrupts.droppable():
                speaking = wait(list(at))
            free = []
            for connection in [each for each in at if each in speaking]:
                report, index = _heard(connection, processes), at[connection]
                if report.ended:
                    free.append(connection)
                if report.ended or report.lost is not None:
                    del at[connection]
                yield index, report
    finally:
        for connection, process in processes.items():
            connection.close()
            process.terminate()
        for process in processes.values():
            process.join()


def _start(processes: dict[Connection, Any]) -> None:
    from loky.backend import get_context

    ours, theirs = Pipe()
    with _unheard():
        process = get_context("loky").Process(target=_work, args=(theirs,), daemon=True, env=_SETTINGS)
        process.start()
        processes[ours] = process
    theirs.close()


def _heard(connection: Any, processes: dict[Connection, Any]) -> Report:
    try:
        report: Report = cloudpickle.loads(connection.recv_bytes())
    except (EOFError, OSError):
        process = processes[connection]
        process.join(_SOON)
        process.terminate()  # if only its connection has ended
        process.join()
        return Report(lost=process.exitcode)
    if report.refusal:
        raise CannotTravel(report.refusal)
    return report


def _send(connection: Connection, message: bytes) -> None:
    """Send to the other side; if it has ended, the next attempt to receive fails."""
    with suppress(OSError):
        connection.send_bytes(message)


@contextmanager
def _unheard() -> Iterator[None]:
    """A context in which new processes ignore Ctrl-C, which a terminal sends to all processes."""
    from loky.backend import resource_tracker as tracker

    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    for each in (tracker, resource_tracker):  # starting these would unblock signals
        each.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in a process that runs chains -------------------------------------------------------------------------------------


def _work(connection: Connection) -> None:
    """Run the chains that the fit sends, until the fit ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = SimpleQueue[bytes]()
    threading.Thread(target=_hear, args=(connection, orders), daemon=True).start()
    try:
        num_threads, dtype, sweeps = cloudpickle.loads(orders.get())
    except Exception as error:
        _send(connection, _packed(Report(refusal=f"another process cannot read the fit: {error!r}")))
        return
    torch.set_num_threads(num_threads)
    torch.set_default_dtype(dtype)
    while True:
        index, news = cloudpickle.loads(orders.get())
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("default")
            _Chain(connection, index, warned).sweep(sweeps, news)


def _hear(connection: Connection, orders: SimpleQueue[bytes]) -> None:
    """Receive messages of the fit, also during a sweep; end the process when the fit ends."""
    try:
        while True:
            orders.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


class _Chain:
    """A chain in its process, and how much of it was reported."""

    chain: Chain

    def __init__(self, connection: Connection, index: int, warned: list[warnings.WarningMessage]) -> None:
        self._connection, self._index, self._warned = connection, index, warned
        self._step = self._num_draws = 0

    def sweep(self, sweeps: Sweeps, news: News | None) -> None:
        """Run the chain to its end, with reports on the way."""
        interrupts, due = Interrupts(), 0.0
        try:
            if news is None:
                self.chain = sweeps.start(self._index, interrupts)
                self._report()
            else:
                self.chain = chain_of(news)
                self._step = self.chain.step
            while sweeps.unfinished(self.chain):
                sweeps.advance(self.chain, interrupts)
                if (started := time.monotonic()) >= due:
                    self._report()
                    due = started + max(_OFTEN, _SHARE * (time.monotonic() - started))
        except Exception as error:
            error.add_note("In another process:\n" + "".join(traceback.format_exception(error)))
            self._report(ended=True, error=error)
        else:
            self._report(ended=True)

    def _report(self, *, ended: bool = False, error: Exception | None = None) -> None:
        chain, warned = getattr(self, "chain", None), [(str(each.message), each.category) for each in self._warned]
        self._warned.clear()
        news = chain and chain.news(self._step, self._num_draws)
        try:
            message = _packed(Report(news, ended, warned, error))
        except Exception as refused:
            why = ValueError(f"Chain {self._index + 1} cannot leave its process: {refused!r}. Use num_jobs=1.")
            message = _packed(Report(ended=True, error=why))
        _send(self._connection, message)
        if chain:
            self._step, self._num_draws = chain.step, len(chain.draws)


# -- serialization -----------------------------------------------------------------------------------------------------


def _packed(content: Any) -> bytes:
    """Content as bytes; functions and classes that another process could not import are sent by value."""
    file = io.BytesIO()
    _Pickler(file).dump(content)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Send most tensors as arrays, ten times as fast as by torch."""
        if type(value) is Tensor and _is_array(value):
            return _tensor, (value.numpy(),)
        return super().reducer_override(value)


def _is_array(value: Tensor) -> bool:
    plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
    return plain and value.dtype in _KNOWN and value.is_contiguous()


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array).clone()  # clone: memory allocated by torch


_KNOWN = {torch.float64, torch.float32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
_SETTINGS = {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that wait then leave the cores to other chains
_SOON = 1.0  # seconds in which a process without a connection has to end
_OFTEN, _SHARE = 0.5, 20.0  # least seconds between reports, and the least in units of the time that a report takes
