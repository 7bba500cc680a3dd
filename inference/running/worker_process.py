"""What a worker does, a process that sweeps chains for a fit: see `workers`."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
import traceback
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import cloudpickle
import numpy as np
import pyro
import torch

from .chains import Chain
from .interrupts import FitStopped, Interrupts
from .reports import Report, chain_of, news_of, packed
from .sweeps import Sweeps


def work_for_fits(connection: Connection, inbox: Connection, patience: float) -> None:
    """Work for one fit after another, until told to stop by SIGTERM, or there was none for so many seconds.

    A fit comes in the inbox, then the numbers of its chains, then None; and None again once there is another fit, to
    which a worker that is still there says so.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the fit, which tells its workers
    interrupts, reports = Interrupts(signal.SIGTERM), _Reports(connection)
    stream = torch.get_rng_state()
    gc.freeze()  # what was imported stays: to look through it takes longer than to let go of a fit
    with interrupts.caught(), suppress(FitStopped, EOFError):
        while _work_for_fit(connection, inbox, interrupts, reports):
            gc.collect()
            with interrupts.droppable():
                if not connection.poll(patience):
                    break
                connection.recv()
            torch.set_rng_state(stream)
            np.random.seed()  # noqa: NPY002 (the legacy stream)
            random.seed()
            pyro.clear_param_store()
            reports.put(Report(-1))
    reports.close()


def _work_for_fit(connection: Connection, inbox: Connection, interrupts: Interrupts, reports: _Reports) -> bool:
    """The chains whose numbers come, until None; False if the fit cannot be read."""
    try:
        (num_threads, dtype), sweeps, begun = cloudpickle.loads(inbox.recv_bytes())
    except Exception as error:
        reports.put(Report(-1, refusal=f"another process cannot read the fit: {error!r}"))
        return False
    torch.set_num_threads(num_threads)
    torch.set_default_dtype(dtype)
    while True:
        with interrupts.droppable():
            index = connection.recv()
        if index is None:
            return True
        _go_on(index, begun, sweeps, interrupts, reports)


def _go_on(index: int, begun: dict[int, Any], sweeps: Sweeps, interrupts: Interrupts, reports: _Reports) -> None:
    """A chain to its end, with reports of it; `FitStopped` after the last one if it was stopped."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        told = _Told(index, reports, warned)
        try:
            told.begin(chain_of(begun[index]) if index in begun else sweeps.start(index, interrupts))
            while sweeps.unfinished(told.chain):
                sweeps.advance(told.chain, interrupts)
                told.now_and_then()
                interrupts.check()
        except FitStopped:
            told.report()
            raise
        except Exception as error:
            told.report(ended=True, error=_with_origin(error))
        else:
            told.report(ended=True)


class _Told:
    """How much of a chain the fit has been told."""

    chain: Chain

    def __init__(self, index: int, reports: _Reports, warned: list[warnings.WarningMessage]) -> None:
        self._index, self._reports, self._warned = index, reports, warned
        self._step = self._num_draws = self._num_warned = 0
        self._next = 0.0

    def begin(self, chain: Chain) -> None:
        """A chain, new or as the fit knows it."""
        self.chain, self._step, self._num_draws = chain, chain.step, len(chain.draws)

    def now_and_then(self) -> None:
        """Report if it is time to: that takes no more than some percents of it."""
        started = time.monotonic()
        if started >= self._next:
            self.report()
            self._next = started + max(_OFTEN, _SHARE * (time.monotonic() - started))

    def report(self, *, ended: bool = False, error: Exception | None = None) -> None:
        chain, warned = getattr(self, "chain", None), [found.message for found in self._warned[self._num_warned :]]
        self._num_warned += len(warned)
        news = chain and news_of(chain, self._step, self._num_draws)
        self._reports.put(Report(self._index, news, ended, warned, error))
        if chain:
            self._step, self._num_draws = chain.step, len(chain.draws)


class _Reports:
    """Sends reports from a thread, so that sweeps go on while the fit is in one of its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._queue = connection, SimpleQueue[bytes]()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def put(self, report: Report) -> None:
        try:
            message = packed(report)
        except Exception as error:
            refused = ValueError(f"Chain {report.index} cannot leave its process: {error!r}. Use num_jobs=1.")
            message = packed(Report(report.index, ended=True, error=refused))
        self._queue.put(message)

    def close(self) -> None:
        """Return when all is sent."""
        self._queue.put(b"")
        self._thread.join()

    def _send(self) -> None:
        try:
            while message := self._queue.get():
                self._connection.send_bytes(message)
        except OSError:  # the fit is no more
            os._exit(1)


def _with_origin(error: Exception) -> Exception:
    """The error with a note of where it was raised, which is lost on the way."""
    error.add_note("In another process:\n" + "".join(traceback.format_exception(error)))
    return error


_OFTEN, _SHARE = 0.5, 20.0  # seconds between reports; their length in units of that of a report
