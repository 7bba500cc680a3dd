"""Losses built on another loss: with all methods delegated (`WrappedLoss`), or 0 for missing targets (`Masked`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..compiled import compiled_loss, register_compiled
from ..distributions.sampling import normals
from .base import Loss, PseudoObservation
from .conjugates import Box
from .hinge import Hinge


class WrappedLoss(Loss):
    """Delegates every method to its field `loss`, on scores [..., C] and targets that broadcast with them."""

    loss: Loss

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return self.loss.log_factor(score, y)


_HANDED_ON = (
    "is_likelihood target keeps_units meets takes_missing binary lacking is_augmented has_expectation has_marginal "
    "has_conjugate augment expect expected_log_factor expect_with_bound majorize log_marginal draw_score draw_target "
    "one_point probabilities moderated blocks reference conjugate best_tilt feasible box"
)
for _name in _HANDED_ON.split():
    setattr(WrappedLoss, _name, property(attrgetter(f"loss.{_name}")))


class HandedOn:
    """The compiled form of the inner loss; compiled code skips missing targets itself."""

    @staticmethod
    def of(loss: WrappedLoss) -> Any:
        """The form of the inner loss with its numbers; None if it has none."""
        return compiled_loss(loss.loss)


@dataclass(eq=False)
class Masked(WrappedLoss):
    """A `loss` whose targets may be NaN: phi = 1 there, so that precision, shift, log integral and cost are 0.

    With one joint factor of all classes, a row with any missing target [..., C] counts as missing. The inner loss gets
    a legal target in place of NaN (0 * NaN is NaN, in gradients too), and its result is discarded.
    """

    loss: Loss = field(default_factory=Hinge)

    takes_missing = True

    @property
    def unmasked(self) -> Loss:
        return self.loss

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return self._read(y, partial(self.loss.log_factor, score))

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        return self._observe(y, lambda y: self.loss.augment(score, y, generator))

    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        return self._observe(y, partial(self.loss.expect, score_mean, score_var))

    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        return self._read(y, partial(self.loss.expected_log_factor, score_mean, score_var))

    def expect_with_bound(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> tuple[PseudoObservation, Tensor]:
        known, y = self._known(y)
        observed, bound = self.loss.expect_with_bound(score_mean, score_var, y)
        precision, shift, bound = (torch.where(known, part, 0.0) for part in (*observed, bound))
        return PseudoObservation(precision, shift), bound

    def majorize(self, score: Tensor, y: Tensor) -> PseudoObservation:
        return self._observe(y, partial(self.loss.majorize, score))

    def log_marginal(self, scale: Tensor, y: Tensor) -> Tensor:
        return self._read(y, partial(self.loss.log_marginal, scale))

    def draw_score(self, scale: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """As the inner loss; a draw from the prior N(0, scale^2) for a missing target."""
        known, y = self._known(y)
        score = self.loss.draw_score(scale, y, generator)
        return torch.where(known, score, scale * normals(score.shape, generator, score))

    def one_point(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        known, y = self._known(y)
        score, cost = self.loss.one_point(variance, y)
        return torch.where(known, score, 0.0), torch.where(known, cost, 0.0)

    def reference(self, scores: Tensor, y: Tensor, columns: slice) -> Tensor | float:
        return self.loss.reference(scores, self._known(y)[1], columns)

    def conjugate(self, tilt: Tensor, y: Tensor) -> Tensor:
        """As the inner loss; for a missing target 0 at tilt 0 and +inf elsewhere."""
        known, legal = self._known(y)
        other = (tilt != 0).any(-1, keepdim=True) if self.meets else tilt != 0
        missing = torch.where(other, torch.inf, torch.zeros((), dtype=tilt.dtype, device=tilt.device))
        return torch.where(known, self.loss.conjugate(tilt, legal), missing)

    def best_tilt(self, score: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return self._read(y, partial(self.loss.best_tilt, score, variance))

    def feasible(self, tilt: Tensor, y: Tensor) -> Tensor:
        return self._read(y, partial(self.loss.feasible, tilt))

    def box(self, y: Tensor) -> Box | None:
        known, legal = self._known(y)
        box = self.loss.box(legal)
        if box is None:
            return None
        linear, lower, upper = (torch.where(known, part, 0.0) for part in box[:3])
        return Box(linear, lower, upper, box.curvature, box.tube)

    def _known(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each target is known, [..., C] or [..., 1], and y with legal targets in place of missing ones."""
        known = ~y.isnan()
        if not self.meets:
            return known, torch.where(known, y, 1.0)
        known = known.all(-1, keepdim=True)
        legal = -torch.ones_like(y)
        legal[..., :1] = 1.0  # one class for each row, as in a known row
        return known, torch.where(known, y, legal)

    def _read(self, y: Tensor, reading: Callable[[Tensor], Tensor]) -> Tensor:
        known, y = self._known(y)
        return torch.where(known, reading(y), 0.0)

    def _observe(self, y: Tensor, reading: Callable[[Tensor], PseudoObservation]) -> PseudoObservation:
        known, y = self._known(y)
        return PseudoObservation(*(torch.where(known, part, 0.0) for part in reading(y)))


register_compiled(Masked, HandedOn)


def masked(loss: Loss) -> Loss:
    """The loss for targets of which some are missing; the same loss if it takes missing targets already."""
    return loss if loss.takes_missing else Masked(loss)
