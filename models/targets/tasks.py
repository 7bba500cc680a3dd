"""Many tasks, each with its targets in one column."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..arrays import as_target_matrix
from ..domains import Count
from ..losses.base import Loss
from ..sparse import Rows
from .base import Target
from .classes import Binary


@dataclass(eq=False)
class Tasks(Target):
    """Y [N, M]: a column, and a score, for each of M tasks, whose targets are alike; NaN where a row has none.

    Parameters
    ----------
    each : the target of a task, of one score
    num_tasks : M; None: that of the data
    """

    each: Target = field(default_factory=Binary)
    num_tasks: Count | None = None

    is_matrix = True

    @property
    def has_classes(self) -> bool:  # type: ignore[override]
        """Whether the target of each task has classes."""
        return self.each.has_classes

    @property
    def keeps_units(self) -> bool:  # type: ignore[override]
        """Whether the target of each task does."""
        return self.each.keeps_units

    @property
    def num_scores(self) -> int:
        return self.num_tasks or 1

    def values(self, y: Any, X: Rows) -> Tensor:
        return as_target_matrix(y, X, self.num_tasks)

    def find_classes(self, y: Tensor, like: Rows) -> Tensor | None:
        return self.each.find_classes(y, like)

    def read(self, y: Tensor, like: Rows) -> Tensor:
        return self.each.read(y, like).squeeze(-1)

    def factor(self, loss: Loss) -> Loss:
        return self.each.factor(loss)

    def decisions(self, scores: Tensor, loss: Loss) -> Tensor:
        """The decisions of each task, [..., M] or [..., M, L]."""
        return self.each.decisions(scores.unsqueeze(-1), loss)

    def choose(self, decisions: Tensor) -> Tensor:
        return self.each.choose(decisions)

    def probabilities(self, scores: Tensor, loss: Loss) -> Tensor:
        """The class probabilities of each task [..., M, L]."""
        return self.each.probabilities(scores.unsqueeze(-1), loss)

    def log_odds(self, probabilities: Tensor) -> Tensor:
        return self.each.log_odds(probabilities)
