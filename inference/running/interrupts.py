"""Ctrl-C during a fit: raised at once in work that can be dropped, only noted anywhere else.

A sweep makes a new state and does not change the old one, so an unfinished sweep can be dropped. Work that must not be
interrupted, such as storing the result of a sweep, is completed; so is an import, since Python cannot repeat an import
that was interrupted.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ...models.sums import ranks


class FitStopped(KeyboardInterrupt):
    """Ctrl-C, raised where only the present work is lost."""


class Interrupts:
    """Handles Ctrl-C within `caught`; a second one is raised as KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.noted = self._droppable = False
        self._later: threading.Timer | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle Ctrl-C here, if this is the main thread and Ctrl-C is not ignored; a program's own handler hears of it
        afterwards."""
        previous = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
            yield
            return
        signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            if self._later:
                self._later.cancel()
                self._later.join()
            signal.signal(signal.SIGINT, previous)
            if self.noted and callable(previous) and previous is not signal.default_int_handler:
                previous(signal.SIGINT, None)

    @contextmanager
    def droppable(self) -> Iterator[None]:
        """Work that Ctrl-C ends at once, by `FitStopped`; not among ranks, which stop together after a sweep."""
        if ranks() is not None:
            yield
            return
        try:
            self._droppable = True
            self.check()
            yield
        finally:
            self._droppable = False

    def check(self) -> None:
        """Raise FitStopped if Ctrl-C was noted."""
        if self.noted:
            raise FitStopped

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self.noted, self._later = self.noted and self._later is None, True, None
        if again:
            raise KeyboardInterrupt
        if self._droppable and _imports(frame):
            self._later = threading.Timer(_MOMENT, _thread.interrupt_main, [signal.SIGINT])
            self._later.start()
        elif self._droppable:
            raise FitStopped


def _imports(frame: FrameType | None) -> bool:
    """Whether an import is under way."""
    while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


_MOMENT = 0.05  # seconds until the next attempt
