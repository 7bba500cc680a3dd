"""The starts of chains of multi-label models."""

from __future__ import annotations

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ...svi.label_sets.kernel import settled
from ..backend import Gibbs


def first(backend: Gibbs, model: BNMC, data: LabelData, generator: torch.Generator) -> str | Tensor:
    """The backend's `init`; for "auto" the components [N] that variational inference finds.

    Split-merge proposals rarely open a second component of many labels, or add many components to a few. A prior
    without sticks has no such variational fit; its chains start as with "one".
    """
    if isinstance(backend.init, Tensor) or backend.init != "auto" or model.prior.lacks("sticks"):
        return backend.init
    return settled(model, data, generator)
