"""The classifiers of components that stay as they are, at one strength and weight scale after another.

All components are one dual problem (`inference.duals`) with a column for each component and score, whose target is
missing in the rows of other components. It starts from the tilts of the setting before. Where there are fewer rows
than features it is solved in the space of the rows, where rows have the same products; the tilts give the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..inference.classifiers.duals import solve
from ..models.data import Data
from ..models.losses import masked
from ..models.losses.base import Loss


class Hyperplanes:
    """What is the same at all settings, and where the last solution left the duals.

    Parameters
    ----------
    data : N points with P features and C scores
    labels : their components [N], 0..K-1, each with some
    """

    def __init__(self, data: Data, labels: Tensor) -> None:
        self.weights, self.num_scores = data.weights, data.targets.shape[1]
        self.features, self.rows = data.features, data.features
        if data.num_data < data.features.shape[1]:
            self.rows = torch.linalg.qr(data.features.T, mode="r").R.T.contiguous()
        own = torch.nn.functional.one_hot(labels.long()).bool().repeat_interleave(self.num_scores, 1)
        self.targets = data.targets.repeat(1, own.shape[1] // self.num_scores).where(own, torch.nan)
        self.misses, self.tilts = bool(self.targets.isnan().any()), torch.zeros_like(self.targets)

    def at(self, model: Any) -> Tensor:
        """Weights [K, P, C] at the strength and the weight scale of a resolved model."""
        found = solve(
            self.rows,
            self.targets,
            masked(model.loss) if self.misses else model.loss,
            model.weight_scale,
            row_weights=self.weights,
            start=self.tilts,
            max_passes=_MOST_PASSES,
        )
        self.tilts = found.tilt
        weights = found.weights
        if self.rows is not self.features:
            weights = model.weight_scale**2 * (self.features.T @ found.tilt)
        return weights.unflatten(1, (-1, self.num_scores)).transpose(0, 1)


def has_dual(loss: Loss) -> bool:
    """Whether components with this loss can be one problem: a convex one, whose scores have a factor each."""
    return loss.has_conjugate and not loss.meets


_MOST_PASSES = 100
