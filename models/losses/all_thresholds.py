"""The loss of ordered levels: one binary loss at each threshold between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from ..domains import LARGEST
from .base import Loss, PseudoObservation
from .hinge import Hinge


class Increasing:
    """The domain of thresholds: increasing finite numbers."""

    words = "finite numbers, each larger than the one before"

    def read(self, value: Any) -> tuple[float, ...]:
        """The numbers as a tuple; ValueError or TypeError if they are refused."""
        if isinstance(value, str | bytes | dict | set):
            raise ValueError
        numbers = tuple(float(each) for each in value)
        if not numbers or not all(abs(each) <= LARGEST for each in numbers):
            raise ValueError
        if not all(one < two for one, two in pairwise(numbers)):
            raise ValueError
        return numbers


@dataclass(eq=False)
class AllThresholds(Loss):
    """phi(y | f) = prod_l phi_binary(s_l | f - b_l) of levels y = 0, 1, ..., with s_l = +1 if y >= l, else -1.

    Each threshold b_l asks its own binary question of scores f [..., C], l = 1, 2, ... Pseudo-observations add up: with
    precision o_l and shift h_l of the binary loss at the score f - b_l,

        precision = sum_l o_l,    shift = sum_l (h_l + o_l b_l)

    for a draw, an expectation and a majorizer alike. The target `Ordinal` turns the binary loss of a model into this
    loss.

    Parameters
    ----------
    loss : a binary loss
    thresholds : b_1 < b_2 < ...

    References
    ----------
    Rennie & Srebro (2005).
    """

    loss: Loss = field(default_factory=Hinge)
    thresholds: Annotated[tuple[float, ...], Increasing()] = (-1.0, 1.0)

    def checked(self, name: str = "") -> Self:
        found = super().checked(name)
        if not found.loss.binary:
            raise ValueError(f"{name}loss is {found.loss!r}; it must be a binary one such as Hinge() or Logistic().")
        return found

    target = "level"
    step = 0.005  # the kinks of two hinges may coincide

    @property
    def is_augmented(self) -> bool:
        return self.loss.is_augmented

    @property
    def has_expectation(self) -> bool:
        return self.loss.has_expectation

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        """The sum [...] of the factors of all thresholds."""
        away, _, sides = self._questions(score, y)
        return self.loss.log_factor(away, sides).sum(0)

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        """The pseudo-observation [...] of the score, with an independent augmentation variable for each threshold."""
        return self._joined(score, y, lambda away, sides: self.loss.augment(away, sides, generator))

    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        """The sum [...] of the thresholds' pseudo-observations, which share the mean and the variance of the score."""
        return self._joined(score_mean, y, lambda away, sides: self.loss.expect(away, score_var, sides))

    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        """The sum [...] of the thresholds' lower bounds."""
        away, _, sides = self._questions(score_mean, y)
        return self.loss.expected_log_factor(away, score_var, sides).sum(0)

    def majorize(self, score: Tensor, y: Tensor) -> PseudoObservation:
        """The sum [...] of the thresholds' majorizers."""
        return self._joined(score, y, self.loss.majorize)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The factor [..., L] of one score [..., 1], normalized over the levels."""
        levels = torch.arange(len(self.thresholds) + 1, dtype=scores.dtype, device=scores.device)
        return self.log_factor(scores, levels).softmax(-1)

    def _questions(self, score: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """f - b_l [L - 1, ...] of scores [...], thresholds b [L - 1, 1 ...], and signs s [L - 1, ...] of levels."""
        b = score.new_tensor(self.thresholds).view(-1, *[1] * max(score.dim(), y.dim()))
        level = torch.arange(1, len(b) + 1, dtype=y.dtype, device=y.device).view(b.shape)
        return score - b, b, torch.where(y >= level, 1.0, -1.0).to(score.dtype)

    def _joined(
        self, score: Tensor, y: Tensor, reading: Callable[[Tensor, Tensor], PseudoObservation]
    ) -> PseudoObservation:
        """The pseudo-observations of all thresholds, added to one of the score."""
        away, b, sides = self._questions(score, y)
        precision, shift = reading(away, sides)
        return PseudoObservation(precision.sum(0), (shift + precision * b).sum(0))
