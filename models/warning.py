"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the nearest caller outside this package and the code that calls its estimators."""
    told = _TOLD.get()
    if told is not None and message in told:
        return
    if told is not None:
        told.add(message)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def each_once() -> Iterator[None]:
    """A context in which `warn` gives each message only once."""
    known = _TOLD.get()
    token = _TOLD.set(set() if known is None else known)
    try:
        yield
    finally:
        _TOLD.reset(token)


_TOLD: ContextVar[set[str] | None] = ContextVar("told", default=None)
_INNER = {__name__.partition(".")[0], "sklearn", "joblib"}
