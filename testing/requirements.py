"""The requirements of checks, and messages about errors in a user's part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..models.config import Config


@contextmanager
def named_errors(part: Any, *others: type[Exception]) -> Iterator[None]:
    """Raise an AssertionError in place of any error inside, with the method that it comes from.

    The method is the innermost one of a part, without an underscore. An error outside of all methods is one of the
    check, to which the part gave what it cannot use: then the AssertionError names the part and the check. The `others`
    are raised as they are.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (AssertionError, *others)):
            raise
        told = _cause(str(error))
        raise AssertionError(f"{_origin(part, error.__traceback__)} raised {type(error).__name__}: {told}") from error


def _cause(message: str) -> str:
    """The first line of a message, or of the innermost error that numba reports in it."""
    lines = ["", *map(str.strip, message.splitlines())]
    nested = [line for before, line in pairwise(lines) if "Failed in nopython mode" in before]
    return nested[-1] if nested else next(iter(lines[1:]), "")


def _origin(part: Any, traceback: TracebackType | None) -> str:
    own, check = "", ""
    while traceback is not None:
        frame, name = traceback.tb_frame, traceback.tb_frame.f_code.co_name
        if frame.f_globals.get("__package__") == __package__ and name.startswith("_check_"):
            check = name.removeprefix("_check_").replace("_", " ")
        user = frame.f_locals.get("self")
        if isinstance(user, Config) and name.isidentifier() and not name.startswith("_"):
            own = f"{type(user).__name__}.{name}"
        traceback = traceback.tb_next
    return own or f"{type(part).__name__}, whose {check or 'methods'} cannot be checked,"


def require(condition: bool | Tensor, method: str, message: str) -> None:
    """Raise an AssertionError of this method unless the condition [] holds."""
    if not bool(condition):
        raise AssertionError(f"{method} {message}.")


def require_close(found: Tensor | float, exact: Tensor | float, method: str, message: str, tol: float = 1e-8) -> None:
    """Require equality [...] up to `tol`, times the exact value where that is more than 1."""
    found, exact = (torch.as_tensor(value, dtype=torch.float64).detach() for value in (found, exact))
    gaps = torch.where(found == exact, 0.0, (found - exact).abs() / exact.abs().clamp(min=1.0))  # both may be -inf
    gap = float(gaps.max()) if found.numel() else 0.0
    require(gap <= tol, method, f"{message} (off by {gap:.2g})")


def require_centered(values: Tensor, method: str, message: str) -> None:
    """Require that the means of independent values [n, ...] are zero within five standard errors."""
    ratio = float((values.mean(0).abs() / (values.std(0) / math.sqrt(len(values))).clamp(min=1e-12)).max())
    require(ratio < 5, method, f"{message} ({ratio:.1f} standard errors)")


OF_ARGUMENTS = ValueError, TypeError, NotImplementedError
"""The errors by which models and parts refuse what a user passes."""
