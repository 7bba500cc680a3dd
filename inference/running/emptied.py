"""A warning where hyperplanes emptied the clusters that the likelihood holds, by whatever backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...models.warning import warn
from ..protocol import Model


class ClustersEmptied(UserWarning):
    """Hyperplanes that repel left one cluster where the likelihood alone finds several."""


def warn_if_one_is_left(labels: Tensor, model: Model, X: Any, lengths: Any, weights: Tensor | None) -> None:
    """Warn if a fit whose components repel ends in labels [N] of one cluster, but for a few rows, and a short
    variational fit of the rows [N, D] and their weights [N] without hyperplanes holds several clusters."""
    plain = getattr(model, "without_hyperplanes", lambda: model)()
    if plain is model or not one_is_left(labels):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone = SHORT_FITS[0](plain, X, lengths=lengths, sample_weight=weights)
    except NotImplementedError:  # a family or prior without expectations
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
    """Whether the clusters of labels [N] but the largest one would together be a small one."""
    sizes = sizes_of(labels)
    return bool(sizes.sum() - sizes.max() < least_held(labels))


def num_held(labels: Tensor) -> int:
    """The number of clusters of labels [N] that are not small: small ones come and go."""
    return int((sizes_of(labels) >= least_held(labels)).sum())


def sizes_of(labels: Tensor) -> Tensor:
    """Numbers of rows [K] of the labels [N] 0..K-1; -1 has none."""
    return torch.bincount(labels.long()[labels >= 0], minlength=1)


def least_held(labels: Tensor) -> float:
    """The rows of a cluster that is not small, from labels [N]: ten, and a twentieth of all."""
    return max(len(labels) / 20, _FEWEST)


SHORT_FITS: list[Callable[..., Any]] = []  # one, by which SVI serves here: a backend, which comes after this
_FEWEST = 10
