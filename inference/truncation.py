"""Warnings about draws in which a truncated model has no empty component left."""

from __future__ import annotations

import torch

from ..models.base import Model, coding_of
from ..models.sums import all_sum
from ..models.warning import warn
from .structures import Draw


class TruncationWarning(UserWarning):
    """All components of the truncated model are occupied, or so many that a fit may have missed some."""


def warn_if_full(draws: list[Draw], model: Model, remedy: str = "", *, share: float = 1.0) -> None:
    """Warn if the `assignments` [N] of a draw occupy all `model.truncation` components, or this share of them.

    For use as `Kernel.warn` of truncated models; `remedy` follows the advice of a larger truncation.
    """
    if not draws:
        return
    none = torch.zeros(model.truncation, dtype=torch.int64, device=draws[0]["assignments"].device)
    sizes = all_sum(torch.stack([none.index_fill(0, draw["assignments"].long(), 1) for draw in draws]))
    _warn("components are occupied", (sizes > 0).sum(1).tolist(), model, remedy, share)


def warn_if_nearly_full(draws: list[Draw], model: Model) -> None:
    """`warn_if_full`; of a model without targets at 85 % of the components, where its start may have missed clusters.

    The start has a seed for each component, and some clusters get several of them.
    """
    warn_if_full(draws, model, share=0.85 if coding_of(model) is None else 1.0)


def warn_if_all_used(draws: list[Draw], model: Model, remedy: str = "") -> None:
    """Warn if every one of the `model.truncation` features, in `features` [N, K] of a draw, has a row.

    For use as `Kernel.warn`; `remedy` follows the advice of a larger truncation.
    """
    if draws:
        used = all_sum(torch.stack([(draw["features"] > 0.5).sum(0) for draw in draws]))
        _warn("features are in use", (used > 0).sum(1).tolist(), model, remedy)


def _warn(what: str, numbers: list[int], model: Model, remedy: str, share: float = 1.0) -> None:
    """Warn if draws have `numbers` of components that are this share of all, or more."""
    total, most = model.truncation, max(numbers)
    least = total if most == total else share * total
    if most >= least:
        many, binds = (f"All {total}", "binds") if most == total else (f"{most} of {total}", "may bind")
        warn(
            f"{many} {what} in {sum(number >= least for number in numbers)} of {len(numbers)} draws, so the truncation "
            f"{binds}. Fit again with truncation={2 * total}{remedy}.",
            TruncationWarning,
        )
