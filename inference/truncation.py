"""Warnings about draws in which a truncated model has no empty component left."""

from __future__ import annotations

import torch

from ..models.base import Model
from ..models.sums import all_sum
from ..models.warning import warn
from .structures import Draw


class TruncationWarning(UserWarning):
    """All components of the truncated model are occupied: the truncation binds."""


def warn_if_full(draws: list[Draw], model: Model, remedy: str = "") -> None:
    """Warn if the `assignments` [N] of a draw occupy all `model.truncation` components.

    For use as `Kernel.warn` of truncated models; `remedy` follows the advice of a larger truncation.
    """
    if not draws:
        return
    none = torch.zeros(model.truncation, dtype=torch.int64, device=draws[0]["assignments"].device)
    occupied = all_sum(torch.stack([none.index_fill(0, draw["assignments"].long(), 1) for draw in draws]))
    _warn("components are occupied", (occupied > 0).all(1).tolist(), model, remedy)


def warn_if_all_used(draws: list[Draw], model: Model, remedy: str = "") -> None:
    """Warn if every one of the `model.truncation` features, in `features` [N, K] of a draw, has a row.

    For use as `Kernel.warn`; `remedy` follows the advice of a larger truncation.
    """
    if draws:
        used = all_sum(torch.stack([(draw["features"] > 0.5).sum(0) for draw in draws]))
        _warn("features are in use", (used > 0).all(1).tolist(), model, remedy)


def _warn(what: str, full: list[bool], model: Model, remedy: str = "") -> None:
    if any(full):
        warn(
            f"All {model.truncation} {what} in {sum(full)} of {len(full)} draws, so the truncation binds. "
            f"Fit again with truncation={2 * model.truncation}{remedy}.",
            TruncationWarning,
        )
