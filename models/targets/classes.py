"""Classes without an order: two with one score, or a score for each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..losses import OneVsRest
from ..losses.base import Loss
from .base import ClassTarget


@dataclass(eq=False)
class Binary(ClassTarget):
    """Two classes with one score and targets -1 and +1; positive scores mean the larger label."""

    def codes(self) -> Tensor:
        return torch.tensor([[-1.0], [1.0]], device="cpu")

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


@dataclass(eq=False)
class EachClass(ClassTarget):
    """L classes with a score each: target +1 at the class of the point and -1 elsewhere.

    A binary loss is used one-versus-rest; other losses, such as `CrammerSinger`, have one joint factor of all scores.
    """

    def codes(self) -> Tensor:
        return 2 * torch.eye(len(self.labels), device="cpu") - 1

    def factor(self, loss: Loss) -> Loss:
        return OneVsRest(loss) if loss.binary else super().factor(loss)

    def decisions(self, scores: Tensor, loss: Loss) -> Tensor:
        """The scores [..., L]; for two classes their difference [...]."""
        return self.contrast(scores)

    def probabilities(self, scores: Tensor, loss: Loss) -> Tensor:
        """As `ClassTarget.probabilities` [..., L], at the cost of L factors in place of L^2."""
        return loss.probabilities(scores)

    def expected_probabilities(self, score_mean: Tensor, score_var: Tensor, loss: Loss) -> Tensor:
        return loss.expected_probabilities(score_mean, score_var)
