"""Real numbers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..arrays import read_targets
from ..losses.base import Loss
from ..sparse import Rows
from .base import Target


@dataclass(eq=False)
class Real(Target):
    """Real numbers y that the score predicts; NaN is a missing target. It needs a regression loss."""

    num_scores = 1
    keeps_units = True

    def find_classes(self, y: Tensor, like: Rows) -> None:
        read_targets(y, like)

    def factor(self, loss: Loss) -> Loss:
        if loss.target != "real":
            raise ValueError(f"loss is {loss!r}; Real() needs a regression loss such as EpsilonInsensitive().")
        return loss

    def read(self, y: Tensor, like: Rows) -> Tensor:
        return read_targets(y, like, min_known=0).unsqueeze(-1)

    def decisions(self, scores: Tensor, loss: Loss) -> Tensor:
        """The score [...]."""
        return scores.squeeze(-1)

    def choose(self, decisions: Tensor) -> Tensor:
        return decisions
