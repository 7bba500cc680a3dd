"""Draws in which a truncated model has no empty component left."""

from __future__ import annotations

import warnings

import torch

from ..models.base import Model
from .structures import Draw


class TruncationWarning(UserWarning):
    """All components of the truncated model are occupied: the truncation binds."""


def warn_if_full(draws: list[Draw], model: Model, remedy: str = "") -> None:
    """Warn where the `assignments` [N] of a draw occupy all `model.truncation` components.

    It is what kernels of truncated models give as `Kernel.warn`. `remedy` comes after a larger truncation.
    """
    if num_full := sum(len(torch.unique(draw["assignments"])) == model.truncation for draw in draws):
        warnings.warn(
            f"All {model.truncation} components are occupied in {num_full} of {len(draws)} draws, so the truncation "
            f"binds. Fit again with truncation={2 * model.truncation}{remedy}.",
            TruncationWarning,
            stacklevel=4,  # of a call by `Backend.finish`
        )


def warn_if_all_used(draws: list[Draw], model: Model) -> None:
    """Warn where every one of the `model.truncation` features is one that some row has: `features` [N, K] of a draw."""
    if num_full := sum(bool((draw["features"] > 0.5).any(0).all()) for draw in draws):
        warnings.warn(
            f"All {model.truncation} features are in use in {num_full} of {len(draws)} draws, so the truncation binds. "
            f"Fit again with truncation={2 * model.truncation}.",
            TruncationWarning,
            stacklevel=4,  # of a call by `Backend.finish`
        )
