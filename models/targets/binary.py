"""Two classes and one score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..losses.base import Loss
from .classes import ClassTarget


@dataclass(eq=False)
class Binary(ClassTarget):
    """Two classes, -1 and +1 of one score: that of the larger label is positive."""

    def codes(self) -> Tensor:
        return torch.tensor([[-1.0], [1.0]])

    def factor(self, loss: Loss) -> Loss:
        if not loss.binary:
            raise ValueError(f"loss is {loss!r}; Binary() needs a binary one such as Hinge() or Logistic().")
        if self.classes is not None and len(self.classes) != 2:
            raise ValueError(f"y has the classes {self.classes.tolist()}; the target Binary() is of two.")
        return loss

    def decisions(self, scores: Tensor, loss: Loss) -> Tensor:
        """The score [...]."""
        return scores.squeeze(-1)

    def expected_probabilities(self, score_mean: Tensor, score_var: Tensor, loss: Loss) -> Tensor:
        return loss.expected_probabilities(score_mean, score_var)
