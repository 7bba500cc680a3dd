"""The interface of a target: one object that encodes y for the loss and decodes scores to y.

A model uses it to make the kernels' targets, a posterior to make labels and probabilities. Since both use the same
object, fit and prediction cannot disagree; `testing.check_model` checks this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from ..arrays import as_vector, read_labels
from ..config import Config
from ..losses import Loss, masked
from ..numbers import as_tensor
from ..sparse import Rows


class Target(Config, ABC):
    """The kind of y, with C scores for each row. Methods that depend on the loss take it as an argument.

    If y has labels, derive from `ClassTarget`, which needs one method.
    """

    ordered: ClassVar[bool] = False  # whether the order of its classes matters
    has_classes: ClassVar[bool] = False  # whether y has class labels, which have probabilities
    is_matrix: ClassVar[bool] = False  # whether y is [N, C], with several columns
    keeps_units: ClassVar[bool] = False  # whether a + b y may take the place of y, as estimators of regression do

    @property
    @abstractmethod
    def num_scores(self) -> int:
        """C, the number of scores of a row."""

    def values(self, y: Any, X: Rows) -> Rows:
        """The numbers [N] that a user passes as y for the rows of X [N, D], not encoded; NaN where missing."""
        return as_vector(y, X)

    @abstractmethod
    def read(self, y: Tensor, like: Rows) -> Tensor:
        """Targets [..., C] in the dtype of `like`, from values of y [...]; NaN where missing."""

    @abstractmethod
    def decisions(self, scores: Tensor, loss: Loss) -> Tensor:
        """The result of `decision_function`, [..., L] or [...] for two classes, from scores [..., C]."""

    @abstractmethod
    def choose(self, decisions: Tensor) -> Tensor:
        """The y [...] for decisions [...] or [..., L]."""

    def probabilities(self, scores: Tensor, loss: Loss) -> Tensor:
        """Class probabilities [..., L] at scores [..., C]: the softmax of `log_density` over y."""
        raise NotImplementedError(f"{type(self).__name__} has no classes: use predict(X).")

    # -- methods with defaults -----------------------------------------------------------------------------------------

    def of(self, classes: Tensor | None) -> Self:
        """The target of a model with these classes [L]; None: they are not yet known."""
        return self

    def find_classes(self, y: Tensor, like: Rows) -> Tensor | None:
        """The sorted classes [L] of values [...], or the given ones; None if y has none. ValueError on other y."""
        self.read(y, like)
        return None

    def factor(self, loss: Loss) -> Loss:
        """The loss for these targets, as kernels read it.

        Before the classes are known it is a loss of the same kind, by which backends tell whether they serve it.

        Raises
        ------
        ValueError    if the loss, or the number of classes, does not go with the target.
        """
        return loss

    def encode(self, y: Any, X: Rows) -> Tensor:
        """Targets [N, C] in the dtype of X [N, D] from a user's y; NaN where missing.

        Raises
        ------
        ValueError    on a real y for which `read` has no target, although it is not NaN.
        """
        values = self.values(y, X)
        found = self.read(values, X)
        if not self.has_classes:
            gaps, missing = (part.isnan() if part.ndim == 1 else part.isnan().any(1) for part in (found, values))
            if (lost := gaps & ~missing).any():
                row = int(torch.nonzero(lost)[0])
                raise ValueError(f"y is {values[row].tolist()} in row {row}, for which {self!r} has no target.")
        return found

    def decode(self, scores: Tensor, loss: Loss) -> Tensor:
        """The y [...] of largest `log_density` at scores [..., C]."""
        return self.choose(self.decisions(scores, loss))

    def log_density(self, scores: Tensor, y: Tensor, loss: Loss) -> Tensor:
        """log phi(y | f) [...] of scores [..., C] and values y [...], not normalized over y; 0 where y is missing."""
        return masked(loss).log_factor(scores, self.read(y, scores)).sum(-1)

    def expected_probabilities(self, score_mean: Tensor, score_var: Tensor, loss: Loss) -> Tensor:
        """Approximation of E probabilities(f) [..., L] for uncertain scores [..., C]; default: those at the mean."""
        return self.probabilities(score_mean, loss)

    def log_odds(self, probabilities: Tensor) -> Tensor:
        """Decisions for probabilities [..., L]: their logarithms; for two classes the log odds of the larger label."""
        return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


class Classes:
    """The domain of class labels."""

    words = "sorted integer labels [L] of at least two classes"

    def read(self, value: Any) -> Tensor:
        """The labels [L]; ValueError or TypeError unless they are increasing integers."""
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

    A class that derives from this one writes `codes()`. A missing label is NaN, or -1 among integers (unless the labels
    are -1 and +1, or others are negative too): its targets are NaN.

    Parameters
    ----------
    classes : the labels [L]; None: those of the model
    """

    classes: Annotated[Tensor, Classes()] | None = None

    has_classes = True

    @abstractmethod
    def codes(self) -> Tensor:
        """The targets [L, C] of the classes 0..L-1, as the loss takes them: -1 / +1 for a binary loss."""

    @property
    def labels(self) -> Tensor:
        """The classes [L]; ValueError if they are not yet known."""
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
        """Decisions from class values [..., L]; for two classes the larger label's value minus the other, [...]."""
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
