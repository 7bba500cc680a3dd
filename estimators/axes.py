"""The values that a search chooses from: an axis for each part of a setting."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from ..inference import Backend
from ..models.domains import POSITIVE, Domain, Number, Whole, read, shown


class Axis(NamedTuple):
    """One part of a setting; the estimator's argument with its values has a name of its own."""

    setting: str  # its name in a setting, and with "_" that of the attribute
    domain: Domain


AXES = {
    "length_scales": Axis("length_scale", POSITIVE),
    "num_components": Axis("num_components", Whole(1)),
    "num_topics": Axis("num_topics", Whole(1)),
    "concentrations": Axis("concentration", POSITIVE),
    "strengths": Axis("strength", POSITIVE),
    "weight_scales": Axis("weight_scale", POSITIVE),
    "temperatures": Axis("temperature", Number(least=0.0)),
}


def given_values(estimator: Any, names: tuple[str, ...]) -> dict[str, tuple[Any, ...] | None]:
    """The values that a user names for each argument, each in its domain; None: those by default."""
    defaults = inspect.signature(type(estimator)).parameters
    return {name: _values(name, getattr(estimator, name), defaults[name].default is None) for name in names}


def require_use(estimator: Any, idle: dict[str, Any], model: Any, inference: Backend) -> None:
    """ValueError if values were given of something that the model and the backend do not have."""
    defaults = inspect.signature(type(estimator)).parameters
    for name, values in idle.items():
        if values not in (None, defaults[name].default):
            raise ValueError(
                f"{name} is {shown(getattr(estimator, name))}, but {type(inference).__name__} with {shown(model)} has "
                f"nothing to choose there. Leave {name} out."
            )


def _values(name: str, given: Any, optional: bool) -> tuple[Any, ...] | None:
    if given is None and optional:
        return None
    try:
        values = () if isinstance(given, str | bytes | dict | set) else tuple(given[:])
    except (TypeError, ValueError, IndexError):
        values = ()
    if not values:
        raise ValueError(f"{name} is {shown(given)}; expected a sequence of at least one value, such as [1].")
    return tuple(read(name, value, AXES[name].domain) for value in values)
