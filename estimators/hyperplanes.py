"""The classifiers of fixed components at one strength and weight scale after another.

Each component is a dual problem of its own rows (`inference.classifiers.duals`), which starts from the tilts of the
setting before. With fewer rows than features it is solved in the space of the rows, where inner products of rows are
the same; the tilts then give the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..inference.classifiers.duals import solve_blocks
from ..models.data import Data
from ..models.losses.base import Loss


class Hyperplanes:
    """The rows of each component, which all settings share, and the tilts of the last solution.

    Parameters
    ----------
    data : N points with P features and C scores
    labels : the component [N] of each point, 0..K-1; none of them is empty
    """

    def __init__(self, data: Data, labels: Tensor) -> None:
        self.data, self.sizes = data.rows(labels.argsort(stable=True)), labels.bincount().tolist()
        self.rows, self.tilts = self.data.features, torch.zeros_like(data.targets)
        self.is_wide = len(self.rows) < self.rows.shape[1]
        if self.is_wide:
            self.rows = torch.linalg.qr(self.rows.T, mode="r").R.T.contiguous()

    def at(self, model: Any) -> Tensor:
        """Weights [K, P, C] at the strength and the weight scale of a resolved model."""
        weights, self.tilts, _ = solve_blocks(
            self.rows,
            self.data.targets,
            model.loss,
            model.weight_scale,
            self.sizes,
            row_weights=self.data.weights,
            start=self.tilts,
            max_passes=_MOST_PASSES,
        )
        if not self.is_wide:
            return weights
        blocks = zip(*(part.split(self.sizes) for part in (self.data.features, self.tilts)), strict=True)
        return model.weight_scale**2 * torch.stack([own.T @ tilts.to(own) for own, tilts in blocks])


def has_dual(loss: Loss) -> bool:
    """Whether the loss has a dual that can be warm-started: it is convex, and each score has a factor of its own."""
    return loss.has_conjugate and not loss.meets


_MOST_PASSES = 100
