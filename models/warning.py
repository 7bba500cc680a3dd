"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the nearest caller outside this package and the code that calls its estimators."""
    for categories, found in _WITHHELD.get():
        if issubclass(category, categories):
            found[message] = category
            return
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


@contextmanager
def withheld(*categories: type[Warning]) -> Iterator[dict[str, type[Warning]]]:
    """A context in which `warn` puts messages of these categories into a dict, with their category, and shows none.

    Unlike `warnings.catch_warnings` it does not concern other threads.
    """
    found: dict[str, type[Warning]] = {}
    token = _WITHHELD.set(((categories, found), *_WITHHELD.get()))
    try:
        yield found
    finally:
        _WITHHELD.reset(token)


_WITHHELD: ContextVar[tuple[tuple[tuple[type[Warning], ...], dict[str, type[Warning]]], ...]] = ContextVar(
    "withheld", default=()
)
_TOLD: ContextVar[set[str] | None] = ContextVar("told", default=None)
_INNER = {__name__.partition(".")[0], "sklearn", "joblib"}
