"""Where chains of label sets start."""

from __future__ import annotations

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ...svi.label_sets.kernel import settled
from ..backend import Gibbs


def first(backend: Gibbs, model: BNMC, data: LabelData, generator: torch.Generator) -> str | Tensor:
    """`init` as given; by "auto" the components [N] in which variational inference settles.

    Split-merge proposals hardly ever open a second component of many labels, nor do they join many to the few that
    there are. A prior without sticks has no such fit, and starts as by "one".
    """
    if isinstance(backend.init, Tensor) or backend.init != "auto" or model.prior.lacks("sticks"):
        return backend.init
    return settled(model, data, generator)
