"""Warnings that point at the line of the user."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning]) -> None:
    """Warn as from the nearest caller that is neither of this package nor of what calls its estimators."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


_INNER = {__name__.partition(".")[0], "sklearn", "joblib"}
