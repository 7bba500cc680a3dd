"""The interface of a target: one object encodes y for the loss, and decodes scores to y.

A model uses it to make the targets of the kernels, a posterior to make labels and probabilities. Since both use the
same object, fit and prediction cannot disagree; `testing.check_model` checks this.
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
    """What y is, given C scores of each row. Methods that depend on the loss take it as an argument.

    If y has labels, derive from `ClassTarget`, which needs one method.
    """

    ordered: ClassVar[bool] = False  # the order of its classes means something
    has_classes: ClassVar[bool] = False  # y has labels of classes, which have probabilities
    is_matrix: ClassVar[bool] = False  # y is [N, C], with a column for each of several questions

    @property
    @abstractmethod
    def num_scores(self) -> int:
        """C, the scores that a row has."""

    def values(self, y: Any, X: Rows) -> Rows:
        """What a user passes as y for the rows of X [N, D], as it is: [N], of numbers, or NaN where missing."""
        return as_vector(y, X)

    @abstractmethod
    def read(self, y: Tensor, like: Rows) -> Tensor:
        """Targets [..., C] in the dtype of `like` of such values [...], NaN where one is missing."""

    @abstractmethod
    def decisions(self, scores: Tensor, loss: Loss) -> Tensor:
        """What `decision_function` says, [..., L] or of two classes [...], of scores [..., C]."""

    @abstractmethod
    def choose(self, decisions: Tensor) -> Tensor:
        """The y [...] that decisions [...] or [..., L] stand for."""

    def probabilities(self, scores: Tensor, loss: Loss) -> Tensor:
        """Probabilities [..., L] of the classes at scores [..., C]: the softmax of `log_density` over y."""
        raise NotImplementedError(f"{type(self).__name__} has no classes: use predict(X).")

    # -- what follows --------------------------------------------------------------------------------------------------

    def of(self, classes: Tensor | None) -> Self:
        """The target of a model with these classes [L]; None: they are not known yet."""
        return self

    def find_classes(self, y: Tensor, like: Rows) -> Tensor | None:
        """The sorted classes [L] of values [...], or those given; None if y has none. ValueError if it is no such y."""
        self.read(y, like)
        return None

    def factor(self, loss: Loss) -> Loss:
        """The loss as kernels read it on these targets; of a loss that is so already the same. Before the classes are
        known, one of the same kind, by which backends tell whether they serve it.

        Raises
        ------
        ValueError    if the loss, or the number of classes, does not go with the target.
        """
        return loss

    def encode(self, y: Any, X: Rows) -> Tensor:
        """Targets [N, C] in the dtype of X [N, D] of what a user passes as y, NaN where one is missing."""
        return self.read(self.values(y, X), X)

    def decode(self, scores: Tensor, loss: Loss) -> Tensor:
        """The y [...] of largest `log_density` at scores [..., C]."""
        return self.choose(self.decisions(scores, loss))

    def log_density(self, scores: Tensor, y: Tensor, loss: Loss) -> Tensor:
        """log phi(y | f) [...] of scores [..., C] and values y [...], not normalized over y; 0 where y is missing."""
        return masked(loss).log_factor(scores, self.read(y, scores)).sum(-1)

    def expected_probabilities(self, score_mean: Tensor, score_var: Tensor, loss: Loss) -> Tensor:
        """About E probabilities(f) [..., L] of uncertain scores [..., C]; default: those at the mean."""
        return self.probabilities(score_mean, loss)

    def log_odds(self, probabilities: Tensor) -> Tensor:
        """Decisions of probabilities [..., L]: their logarithms, of two classes the log odds of the larger label."""
        return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


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
