"""Sets of labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..arrays import as_target_matrix, read_rows
from ..domains import Count
from ..losses.base import Loss
from ..sparse import Rows, SparseRows
from .base import Target


@dataclass(eq=False)
class LabelSet(Target):
    """Y [N, C] of bits or counts: a score for each label, +1 where the label is present and -1 where it is not.

    NaN, or -1, is a missing label.

    Parameters
    ----------
    num_labels : C; None: that of the data
    """

    num_labels: Count | None = None

    has_classes = True
    is_matrix = True

    @property
    def num_scores(self) -> int:
        return self.num_labels or 1

    def values(self, y: Any, X: Rows) -> Rows:
        """Labels [N, C] in the dtype of X [N, D], dense or sparse, NaN where one is missing.

        Raises
        ------
        ValueError    unless there is a row for each row of X and, if given, a column for each of `num_labels`.
        """
        strided = not isinstance(y, Tensor) or y.layout == torch.strided
        if strided and not isinstance(y, SparseRows) and not hasattr(y, "tocsr"):
            found = as_target_matrix(y, X, self.num_labels, "num_labels").to(X.dtype)
            return torch.where(found == -1, torch.nan, found)
        labels = read_rows(y, "Y")
        if labels.shape[0] != len(X) or self.num_labels not in {None, labels.shape[1]}:
            expected = f"[{len(X)}, {self.num_labels or 'C'}]"
            raise ValueError(
                f"Y has shape {tuple(labels.shape)}; expected {expected}, a row for each row of X, a "
                "column for each label (num_labels)."
            )
        labels = labels.to(X.values if X.is_sparse else X)
        return replace(labels, values=labels.values.masked_fill(labels.values == -1, torch.nan))

    def read(self, y: Rows, like: Rows) -> Tensor:
        dense = y.to_dense()
        signs = torch.where(dense > 0, 1.0, -1.0).to(dense.dtype)
        return torch.where(dense.isnan(), torch.nan, signs)

    def decisions(self, scores: Tensor, loss: Loss) -> Tensor:
        """log phi(+1 | f) - log phi(-1 | f) [..., C], which are the scores of a logistic loss."""
        one = torch.ones_like(scores)
        return loss.log_factor(scores, one) - loss.log_factor(scores, -one)

    def choose(self, decisions: Tensor) -> Tensor:
        return (decisions > 0).long()

    def probabilities(self, scores: Tensor, loss: Loss) -> Tensor:
        """The probability [..., C] of each label to be present."""
        return self.decisions(scores, loss).sigmoid()

    def log_odds(self, probabilities: Tensor) -> Tensor:
        """The log odds [..., C] of each label."""
        return probabilities.logit()
