"""The state of the samplers of multi-label models: what survives between sweeps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ...classifiers.scored import Scored
from ..state import PartitionState


@dataclass(frozen=True, kw_only=True)
class LabelState(PartitionState):
    """One draw: a partition, and one classifier for each label.

    Components have no classifiers of their own, `weights` [K, 0, 0]; in a coupled joint these are psi, or g [T, 1, C].
    """

    classifiers: Tensor  # [1, P, C]


def scored(data: LabelData, model: BNMC) -> Scored:
    """The classifiers of all labels score all rows."""
    return Scored(data.features, data.targets, model.loss, model.weight_scale)
