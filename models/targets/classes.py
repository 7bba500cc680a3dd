"""Targets of class labels: a table with the targets of each class says it all."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from ..arrays import read_labels
from ..losses.base import Loss
from ..numbers import as_tensor
from ..sparse import Rows
from .base import Target


class Classes:
    """The domain of given class labels."""

    words = "sorted integer labels [L] of at least two classes"

    def read(self, value: Any) -> Tensor:
        """The labels [L]; ValueError or TypeError if they are no such labels."""
        labels = as_tensor("classes", value)
        if labels.ndim != 1 or len(labels) < 2 or labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError
        if not (labels.diff() > 0).all():
            raise ValueError
        return labels


@dataclass(eq=False)
class ClassTarget(Target):
    """A y of L sorted integer labels, of which class l has row l of the table `codes` [L, C] for its targets:

        log phi(y | f) = sum_c log phi(codes_yc | f_c),      decode(f) = argmax_y,      probabilities(f) = softmax_y

    A class that derives from this one writes `codes`. A missing label is NaN, or -1 among integers (unless the labels
    are the signs -1 and +1): its targets are NaN.

    Parameters
    ----------
    classes : the labels [L]; None: those of the model
    """

    classes: Annotated[Tensor, Classes()] | None = None

    has_classes = True

    @abstractmethod
    def codes(self) -> Tensor:
        """The targets [L, C] of the classes 0..L-1, as the loss takes them: -1 / +1 of a binary one."""

    @property
    def labels(self) -> Tensor:
        """The classes [L], which are known once y is."""
        if self.classes is None:
            raise ValueError(f"{type(self).__name__} has no classes yet: fit, or pass them as classes=.")
        return self.classes

    @property
    def num_scores(self) -> int:
        return self.codes().shape[1]

    def of(self, classes: Tensor | None) -> Self:
        return self if classes is None else self.replace(classes=classes)

    def find_classes(self, y: Tensor, like: Rows) -> Tensor:
        return read_labels(y, self.classes)[1]

    def factor(self, loss: Loss) -> Loss:
        if loss.target != "sign":
            raise ValueError(f"loss is {loss!r}; {type(self).__name__}() needs one of signs, such as Hinge().")
        return loss

    def read(self, y: Tensor, like: Rows) -> Tensor:
        index, _ = read_labels(y, self.labels)
        found = self.codes().to(index.device, like.dtype)[index]
        return torch.where((index >= 0).unsqueeze(-1), found, torch.nan)

    def log_densities(self, scores: Tensor, loss: Loss) -> Tensor:
        """log phi(y | f) [..., L] of each class at scores [..., C]."""
        return loss.log_factor(scores.unsqueeze(-2), self.codes().to(scores)).sum(-1)

    def contrast(self, values: Tensor) -> Tensor:
        """Decisions by values of the classes [..., L]: of two classes by how much the larger label has more, [...]."""
        return values[..., 1] - values[..., 0] if len(self.labels) == 2 else values

    def decisions(self, scores: Tensor, loss: Loss) -> Tensor:
        return self.contrast(self.log_densities(scores, loss))

    def choose(self, decisions: Tensor) -> Tensor:
        best = (decisions > 0).long() if len(self.labels) == 2 else decisions.argmax(-1)
        return self.labels.to(decisions.device)[best]

    def probabilities(self, scores: Tensor, loss: Loss) -> Tensor:
        return self.log_densities(scores, loss).softmax(-1)

    def log_odds(self, probabilities: Tensor) -> Tensor:
        return self.contrast(super().log_odds(probabilities))
