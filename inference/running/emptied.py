"""A warning for any backend: hyperplanes left one cluster where the likelihood alone finds several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...models.warning import warn, withheld
from ..protocol import Model


class ClustersEmptied(UserWarning):
    """Repelling hyperplanes left one cluster where the likelihood alone finds several."""


def warn_if_one_is_left(labels: Tensor, model: Model, X: Any, lengths: Any, weights: Tensor | None) -> None:
    """Warn if repelling components end in one cluster although the likelihood alone supports several.

    That is: the assignments [N] have one cluster except for a few rows, and a short variational fit of the rows [N, D]
    with weights [N] and without hyperplanes has several large clusters.
    """
    plain = getattr(model, "without_hyperplanes", lambda: model)()
    if plain is model or not one_is_left(labels):
        return
    try:
        with withheld(Warning):
            alone = SHORT_FITS[0](plain, X, lengths=lengths, sample_weight=weights)
    except NotImplementedError:  # a likelihood or prior that SVI does not support
        return
    held, loss = num_held(alone.samples["assignments"][-1]), model.get_params(deep=False)["loss"]
    if held > 1:
        message = (
            f"The likelihood alone holds {held} clusters, but hyperplanes left one of them: loss {loss!r} "
            "outweighs the density of the rows. Take a weaker one, such as Hinge(strength=0.05), or "
            f"{type(plain).__name__}()."
        )
        warn(message, ClustersEmptied)


def one_is_left(labels: Tensor) -> bool:
    """Whether all clusters of assignments [N] except the largest one would together be a small cluster."""
    sizes = sizes_of(labels)
    return bool(sizes.sum() - sizes.max() < least_held(labels))


def num_held(labels: Tensor) -> int:
    """The number of clusters of assignments [N] that are not small; small ones are not stable."""
    return int((sizes_of(labels) >= least_held(labels)).sum())


def sizes_of(labels: Tensor) -> Tensor:
    """The numbers of rows [K] with assignments [N] 0..K-1; -1 is not counted."""
    return torch.bincount(labels.long()[labels >= 0], minlength=1)


def least_held(labels: Tensor) -> float:
    """The least size of a cluster that is not small, for assignments [N]: ten rows, or a twentieth of all."""
    return max(len(labels) / 20, _FEWEST)


SHORT_FITS: list[Callable[..., Any]] = []  # the `fit` of an SVI, added by its module, which imports this one
_FEWEST = 10
