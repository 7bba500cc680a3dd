"""The entries that all backends write to a draw of a multi-label model."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ...models.bnmc import BNMC
from ...models.label_data import LabelData
from ...models.likelihoods import ExponentialFamily
from ..distributed.collectives import all_sum
from ..protocol import KernelData
from ..structures import Draw


def label_draw(kept: Draw, classifiers: Tensor, data: KernelData, model: BNMC) -> Draw:
    """A draw of the mixture of (x, y), with separate parameters of x and y and with classifiers [P, C].

    `hyperparameters` [K, S] become those of x, and `label_hyperparameters` [K, R] those of y. In the small-variance
    limit `centers` [K, D'] become those of x in its coordinates, and `label_means` [K, C] those of y. Labels that are
    counts also have `label_totals` [K + 1], the mean total of a row in each component and in a new one. `data` are
    `LabelData`, or a stream of it.
    """
    parts: Draw = {}
    if "centers" in kept:
        (_, of_rows), (labels, of_labels) = model.family.own_centers(kept["centers"])
        parts |= {"centers": of_rows.contiguous(), "label_means": labels.from_coordinates(of_labels).contiguous()}
    else:
        (_, of_rows), (_, of_labels) = model.family.own(kept["hyperparameters"])
        parts |= {"hyperparameters": of_rows.contiguous(), "label_hyperparameters": of_labels.contiguous()}
    return finished_draw({**kept, **parts}, classifiers, data, model)


def finished_draw(kept: Draw, classifiers: Tensor, data: KernelData, model: BNMC) -> Draw:
    """The draw with its classifiers [P, C], and with `label_totals` [K + 1] where labels are counts."""
    found = {**kept, "classifiers": classifiers}
    if counts_labels(model):
        found["label_totals"] = _totals(found, data, model)
    del found["weights"]  # components have no classifiers
    return found


def counts_labels(model: BNMC) -> bool:
    """Whether labels are counts that share a total, rather than bits."""
    family: Any = model.label_likelihood  # resolved
    found: bool = family.given_totals
    return found


def label_means(model: BNMC, chi: Tensor) -> Tensor:
    """E psi_k [..., C] under hyperparameters [..., R]: probabilities of bits, or shares of counts."""
    if counts_labels(model):
        return chi / chi.sum(-1, keepdim=True)
    a, b = chi.chunk(2, -1)
    return a / (a + b)


def _totals(kept: Draw, data: Any, model: BNMC) -> Tensor:
    """Mean counts [K + 1] of the labelled rows of each component, shrunk by one row towards the mean of all.

    For a stream, they are those of its first rows, in the components given x.
    """
    shares = kept.get("responsibilities")
    if hasattr(data, "first"):  # a stream
        data, family = data.first, cast(ExponentialFamily, model.likelihood)
        shares = (family.log_predictive(data.inputs.X, kept["hyperparameters"]) + kept["log_mixture"][:-1]).softmax(1)
    elif shares is None:
        shares = torch.nn.functional.one_hot(kept["assignments"].long(), len(kept["log_mixture"]) - 1)
    total, each = data.labels.nansum(1).double(), data.points.counted(_labelled(data))
    sums, sizes = (all_sum(values @ shares.double()) for values in (each * total, each))
    mean = sums.sum() / sizes.sum().clamp(min=1)
    return torch.cat([(sums + mean) / (sizes + 1), mean.reshape(1)]).to(kept["log_mixture"])


def _labelled(data: LabelData) -> Tensor:
    """1 [N] float64 for a row with labels, 0 for one without."""
    return (~data.targets.isnan().all(1)).double()
