"""What the models with labels or real targets share: which loss and classes the targets ask for, and their signs."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from .arrays import as_labels, as_targets
from .losses import Loss, Masked, OneVsRest
from .numbers import as_tensor
from .sparse import Rows


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


class Targets:
    """A mixin for models with fields `loss` and `classes`: gives `targets`, and `resolve_targets` to `resolve`.

    A missing target is NaN in y, or -1 among integer labels (unless the labels are the signs -1 and +1).
    """

    loss: Loss
    classes: Tensor | None
    replace: Any  # of `Config`

    def require_targets(self, y: Any) -> None:
        """Raise ValueError if there is no y at all."""
        if y is None:
            raise ValueError(f"{type(self).__name__} needs targets: requires y to be passed, but the target y is None.")

    def resolve_targets(self, X: Rows, y: Any) -> Self:
        """A copy with the classes of y [N], and with the loss that they ask for.

        A binary loss is one-versus-rest where there are more than two classes, and masked where targets are missing.

        Raises
        ------
        ValueError    on targets that the loss cannot read, or of fewer than two classes.
        """
        loss, classes = self.loss, None
        if loss.target == "real":
            as_targets(y, X)
        else:
            _, classes = as_labels(y, X, self.classes)
            if len(classes) > 2 and loss.binary:
                loss = OneVsRest(loss)
        model: Self = self.replace(loss=loss, classes=classes)
        if not isinstance(loss, Masked) and model.targets(X, y).isnan().any():
            model = model.replace(loss=Masked(loss))
        return model

    def targets(self, X: Any, y: Any = None) -> Tensor:
        """Targets [N, C] of the scores in the dtype of X [N, D]: signs or real numbers, NaN where one is missing."""
        if self.loss.target == "real":
            return as_targets(y, X, min_known=0).unsqueeze(1)
        index, classes = as_labels(y, X, self.classes)
        signs = 2 * torch.nn.functional.one_hot(index.clamp(min=0), len(classes)).to(X.dtype) - 1
        if len(classes) == 2 and self.loss.binary:
            signs = signs[:, 1:]
        return torch.where((index >= 0).unsqueeze(1), signs, torch.nan)
