"""Domains of arguments, checked with messages that name them."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


def require_number(name: str, value: Any, *, above: float = 0.0, below: float = math.inf, closed: bool = False) -> None:
    """Raise ValueError unless `value` is a finite number in (above, below), or [above, below) if `closed`."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (above < number < below or (closed and number == above)):
        domain = "a positive number" if (above, below, closed) == (0.0, math.inf, False) else None
        start = f"at least {above:g}" if closed else f"more than {above:g}"
        end = f" and less than {below:g}" if below < math.inf else ""
        raise ValueError(f"{name} is {value!r}; it must be {domain or f'a number of {start}{end}'}.")


def require_gamma_prior(name: str, prior: Any) -> None:
    """Raise ValueError unless the prior is None or a pair (shape > 0, rate > 0)."""
    if prior is None:
        return
    try:
        shape, rate = prior
        require_number(name, shape)
        require_number(name, rate)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {prior!r}; expected (shape > 0, rate > 0).") from None
