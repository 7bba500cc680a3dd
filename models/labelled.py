"""What models with labels or real targets share: what y is, and the loss and the classes that go with it."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor

from .losses import Loss, masked
from .sparse import Rows
from .sums import all_any
from .targets import Binary, EachClass, Ordinal, Real, Target


def target_of(target: Target | None, loss: Loss, classes: Tensor | None) -> Target:
    """The target of a model with these classes [L], None: not known yet. A target of None is what the loss asks for: a
    real number, one score of two or of ordered classes, or a score for each class.

    Raises
    ------
    ValueError    on a target of many columns: a row of such a model has one y.
    """
    if target is None:
        binary = loss.binary and (classes is None or len(classes) == 2)
        kinds: dict[str, type[Target]] = {"real": Real, "level": Ordinal, "sign": Binary if binary else EachClass}
        target = kinds[loss.target]()
    if target.is_matrix:
        raise ValueError(
            f"target is {target!r}, whose y is a matrix; a row of this model has one y, as for Ordinal(). Leave it "
            "out. BNMC() takes sets of labels, and MultiTaskInfiniteLatentSVM() many tasks."
        )
    return target.of(classes)


def coding_of(model: Any) -> Target | None:
    """What the y of a model of any structure is; None if it has none."""
    found: Target | None = getattr(model, "coding", None)
    return found


def with_factor(model: Any) -> Any:
    """A model whose loss is as kernels read it on the targets of the model's y; of one without labels the same."""
    coding = coding_of(model)
    return model if coding is None else model.replace(loss=coding.factor(model.loss))


class Labelled:
    """A mixin for models with fields `loss`, `classes` and `target`, which are resolved from y.

    A missing target is NaN in y, or -1 among integer labels (unless the labels are the signs -1 and +1).
    """

    loss: Loss
    classes: Tensor | None
    target: Target | None
    replace: Any  # of `Config`

    @property
    def coding(self) -> Target:
        """What y is: the object that encodes it for the kernels, and decodes scores."""
        return target_of(self.target, self.loss, self.classes)

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        """As `Model.resolve`, and what the target takes from y [N]."""
        model: Any = self
        model.require_targets(y)
        X = model.as_rows(X)
        return super().resolve(X, weights=weights).resolve_targets(X, y)  # type: ignore[misc]

    def resolve_targets(self, X: Rows, y: Any) -> Self:
        """A copy with the classes of y [N], those of the rows of X [N, D], and with the loss that its target needs.

        A binary loss is one-versus-rest where there are more than two classes, and masked where targets are missing.

        Raises
        ------
        ValueError    on targets that the loss cannot read, or of fewer than two classes.
        """
        values = self.coding.values(y, X)
        model: Self = self.replace(classes=self.coding.find_classes(values, X))
        loss = model.coding.factor(model.loss)
        missing = all_any(model.targets(X, y).isnan())
        return model.replace(loss=masked(loss) if missing else loss)

    def targets(self, X: Any, y: Any = None) -> Tensor:
        """Targets [N, C] of the scores in the dtype of X [N, D], as the loss takes them; NaN where one is missing."""
        return self.coding.encode(y, X)
