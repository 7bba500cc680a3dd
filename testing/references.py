"""Exact answers on tiny data for `check_kernel` and `check_model`, one object for each structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..models.priors import PartitionPrior
from .requirements import OF_ARGUMENTS, named_errors


def together(assignments: Tensor) -> Tensor:
    """1 where two points share a component, else 0, [N, N], from assignments [N]; independent of the labels."""
    return (assignments.unsqueeze(0) == assignments.unsqueeze(1)).double().cpu()


@dataclass(frozen=True)
class Reference:
    """Exact answers for the models of one structure.

    `posterior` and `log_evidence` take the resolved model, X, y, lengths and the truncation (None: the infinite model);
    latents are tuples of integers.
    """

    posterior: Callable[..., dict[Any, float]]  # the probability of every value of the latents
    log_evidence: Callable[..., float]  # log p(X, y), the upper bound of an ELBO
    program: Callable[..., None]  # (model, X, y, lengths, seed): AssertionError if the program differs from its parts
    site: str = "assignments"  # the name of the latents among the samples
    indicators: Callable[[Tensor], Tensor] = together  # from one draw, numbers [...] whose means are compared


def register_reference(data_type: type[Any], reference: Reference) -> None:
    """Register the reference for models with this `data_type`, or with one derived from it."""
    _REFERENCES[data_type] = reference


def reference_of(model: Any) -> Reference:
    """The reference of a model's structure.

    Raises
    ------
    NotImplementedError    if none is registered for its `data_type`.
    """
    for kind in model.data_type.__mro__:
        if kind in _REFERENCES:
            return _REFERENCES[kind]
    raise NotImplementedError(
        f"Nothing exact is known for {model.data_type.__name__}. Call testing.register_reference for it first."
    )


def check_program(model: Any, X: Any, y: Any = None, lengths: Any = None, seed: int = 0) -> None:
    """Require that the program of a model has the density of its parts, on rows X [N, D] and targets y [N].

    What is wrong with the arguments is raised as it is. A prior without sticks has no program to check.
    """
    reference, prior = reference_of(model), getattr(model, "prior", None)
    with named_errors(model, *OF_ARGUMENTS):
        model.prepare(X, y, lengths)
    if isinstance(prior, PartitionPrior) and prior.lacks("sticks"):
        return
    with named_errors(model):
        reference.program(model, X, y, lengths, seed)


_REFERENCES: dict[type[Any], Reference] = {}
