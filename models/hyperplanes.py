"""What the models share whose components repel each other: every component's hyperplane sees every point.

    factor  prod_n prod_k phi(y_nk | f_nk),    y_nk = +1 if z_n = k, else -1,    f_nk = eta_k^T a_n
          = prod_n exp(h(f_{n z_n})) prod_k phi(-1 | f_nk),    h(f) = log phi(+1 | f) - log phi(-1 | f)

The product over k does not depend on z, so a point weighs a component by exp(h) alone. In the infinite model it joins
the prior of every hyperplane: a component without points has the law of one that rejects them all
(math/discriminative-clustering, sections 1 and 2; Nguyen, Phung, Le & Bui).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .losses.base import Loss
from .losses.multiclass import CrammerSinger, OneVsRest

__all__ = ["Directions", "Hyperplanes", "principal_directions"]


class Directions(NamedTuple):
    """An affine map of the inputs to what the hyperplanes see."""

    loc: Tensor  # [D]
    axes: Tensor  # [D, P']


class Hyperplanes:
    """A mixin: features, and the factors that kernels ask of a model whose components repel."""

    repels = True

    loss: Loss
    weight_scale: float
    intercept: float
    num_directions: int
    proportions: bool
    feature_loc: Any
    feature_axes: Any

    def directions(self, X: Tensor) -> Directions:
        """The map in use: as given, or the principal directions of X [N, D]; checks the arguments of hyperplanes."""
        if not (isinstance(self.num_directions, int) and self.num_directions >= 1):
            raise ValueError(f"num_directions is {self.num_directions!r}; it must be an integer of at least 1.")
        if self.loss.target != "sign" or isinstance(self.loss, OneVsRest | CrammerSinger):
            raise ValueError(f"loss is {self.loss!r}; a hyperplane needs a binary loss such as Hinge() or Logistic().")
        if (self.feature_loc is None) != (self.feature_axes is None):
            raise ValueError("feature_loc and feature_axes belong together: give both or neither.")
        if self.feature_loc is not None and self.feature_axes is not None:
            return Directions(self.feature_loc.to(X), self.feature_axes.to(X))
        return principal_directions(self._inputs(X), self.num_directions)

    def features(self, X: Tensor) -> Tensor:
        """What the hyperplanes see [N, P] of the rows of X: ((x - loc) axes, intercept)."""
        if self.feature_axes is None:
            raise ValueError("The model is not resolved. Call model.resolve(X) first.")
        projected = (self._inputs(X) - self.feature_loc) @ self.feature_axes
        if not self.intercept:
            return projected
        return torch.cat([projected, X.new_full((len(X), 1), self.intercept)], 1)

    def targets(self, X: Tensor, y: Any = None) -> Tensor:
        """+1 [N, 1]: the side of its own component's hyperplane that a point should be on."""
        return X.new_ones(len(X), 1)

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """h(f) [...] of scores [..., 1]: what a point adds to the log weight of a component."""
        return (self.loss.log_factor(scores, targets) - self.loss.log_factor(scores, -targets)).sum(-1)

    def log_rejection(self, scores: Tensor) -> Tensor:
        """sum_k log phi(-1 | f_nk) [N] of scores [N, K]: all hyperplanes reject the point."""
        return self.loss.log_factor(scores, scores.new_tensor(-1.0)).sum(-1)

    def _inputs(self, X: Tensor) -> Tensor:
        if not self.proportions:
            return X
        return X / X.sum(1, keepdim=True).clamp(min=torch.finfo(X.dtype).tiny)


def principal_directions(X: Tensor, most: int) -> Directions:
    """The mean of X and its leading principal axes, `most` at the most, scaled so that the mean square length of a
    projected row is 1. All of X, unrotated, if it has no more columns than that.

    The prior standard deviation of a score is then about nu (math/discriminative-clustering, section 3).
    """
    loc = X.mean(0, dtype=torch.float64)
    centred = X.double() - loc
    num_columns = X.shape[1]
    axes = torch.eye(num_columns, dtype=torch.float64, device=X.device)
    if num_columns > most:
        covariance = centred.T @ centred
        axes = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :most]
        # the sign of an axis is arbitrary; fixed, so that a fit can be repeated
        axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    size = (centred @ axes).square().sum(1).mean().sqrt()
    tiny = torch.finfo(X.dtype).eps * X.double().abs().amax()
    scale = size if size > tiny else torch.ones_like(size)
    return Directions(loc.to(X.dtype), (axes / scale).to(X.dtype))
