"""The common part of models whose components repel each other: every component's hyperplane sees every point.

    factor  prod_n prod_k phi(y_nk | f_nk),    y_nk = +1 if z_n = k, else -1,    f_nk = eta_k^T a_n
          = prod_n exp(h(f_{n z_n})) prod_k phi(-1 | f_nk),    h(f) = log phi(+1 | f) - log phi(-1 | f)

The product over k does not depend on z, so only exp(h) enters the weight of a component for a point. In the infinite
model the product joins the prior of every hyperplane: a component without points has the law of a hyperplane that
rejects all points (docs/derivations/repelling, "Joint density" and "Hyperplanes without points"; Nguyen, Phung, Le &
Bui).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor

from .losses.base import Loss


class Hyperplanes:
    """A mixin with the targets and the margin factors of a model whose components repel."""

    repels: ClassVar[bool] = True

    loss: Loss
    weight_scale: float

    def checked(self, name: str = "") -> Self:
        """As `Config.checked`; the loss must be a binary one."""
        model: Any = super().checked(name)  # type: ignore[misc]
        if not model.loss.binary:
            raise ValueError(
                f"{name}loss is {self.loss!r}; a hyperplane needs a binary loss such as Hinge() or Logistic()."
            )
        return model

    def targets(self, X: Any, y: Any = None) -> Tensor:
        """+1 [N, 1]: the side of its own component's hyperplane on which a point should lie."""
        return X.new_ones(len(X), 1)

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """h(f) [...] of scores [..., 1]: the margin term in the log weight of a component."""
        return (self.loss.log_factor(scores, targets) - self.loss.log_factor(scores, -targets)).sum(-1)

    def log_rejection(self, scores: Tensor) -> Tensor:
        """sum_k log phi(-1 | f_nk) [N] of scores [N, K]: the factor that all hyperplanes reject the point."""
        return self.loss.log_factor(scores, scores.new_tensor(-1.0)).sum(-1)
