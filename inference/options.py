"""Domains of a backend's options, checked with messages that name them."""

from __future__ import annotations

from typing import Any

from ..models.checks import require_number
from ..models.config import Config


def require_counts(config: Config, **least: int) -> None:
    """Raise ValueError unless each named option is an integer of at least its bound."""
    for name, bound in least.items():
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < bound:
            raise ValueError(f"{name} is {value!r}; it must be an integer of at least {bound}.")


def require_numbers(config: Config, *names: str, optional: bool = False, **domain: Any) -> None:
    """Raise ValueError unless each named option is a number in the domain of `require_number`, or None if optional."""
    for name in names:
        value = getattr(config, name)
        if value is not None or not optional:
            require_number(name, value, **domain)


def require_choice(config: Config, name: str, choices: tuple[str, ...], for_whom: str = "") -> None:
    """Raise ValueError unless the named option is one of the choices."""
    value = getattr(config, name)
    if not isinstance(value, str) or value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name} is {value!r}; {for_whom and f'for {for_whom} '}expected one of {known}.")
