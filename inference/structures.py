"""The registry of structures: partitions, sequences, latent features, and so on.

A structure is identified by the class of its kernels' data, which models name as `data_type`. To add one, define that
class and a posterior, call `register_structure`, and register kernels with backends: `Gibbs.register(data_type,
module)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .protocol import Model

Draw = dict[str, Tensor]
"""The values that a posterior keeps of one state of a chain, by name."""


@dataclass(frozen=True)
class Structure:
    """A latent structure, as code for all structures needs it."""

    name: str
    data: type[Any]  # class of the kernels' data
    posterior: type[Any]  # a subclass of `Posterior`
    stack: Callable[[list[Draw]], Draw]  # S draws of any sizes -> one Tensor [S, ...] for each name
    summaries: Callable[[Any], dict[str, Tensor]]  # posterior -> label-free numbers [S], or several of a kind [S, P]
    # (resolved model, data, components) -> least number of values in a state; None: unknown
    state_size: Callable[[Any, Any, int], int] | None = None


def register_structure(structure: Structure) -> None:
    """Assign models with this `data_type`, or one derived from it, to this structure."""
    _STRUCTURES[structure.data] = structure


def structure_of(model: Model) -> Structure:
    """The structure of a model.

    Raises
    ------
    NotImplementedError    if none is registered for its `data_type`.
    """
    found: Structure | None = lookup(_STRUCTURES, model)
    if found is None:
        known = ", ".join(sorted(structure.name for structure in _STRUCTURES.values()))
        raise NotImplementedError(
            f"{type(model).__name__} has no known structure; known are: {known}. Import the module that registers it."
        )
    return found


def lookup(table: Any, model: Model) -> Any:
    """The entry of a table keyed by data types that is closest to the model's own; None if there is none."""
    kinds = getattr(model, "data_type", object).__mro__
    return next((table[kind] for kind in kinds if kind in table), None)


_STRUCTURES: dict[type[Any], Structure] = {}
