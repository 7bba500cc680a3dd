"""The Student t factor of a real target: robust regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import StudentT as StudentLaw

from ..compiled import register_compiled
from ..distributions.sampling import draw
from ..domains import Positive
from .base import Loss, PseudoObservation


@dataclass
class StudentT(Loss):
    """phi(y | f) = (1 + (y - f)^2 / (d s^2))^(-(d + 1) / 2) = E exp(-lambda (y - f)^2 / 2), a mixture in f [..., C].

    lambda ~ Gamma((d + 1) / 2, rate d s^2 / 2), and given f lambda ~ Gamma((d + 1) / 2, rate (d s^2 + (y - f)^2) / 2).

    Parameters
    ----------
    df : d > 0, degrees of freedom; the fewer, the less an outlier counts
    scale : s > 0, scale of the errors. It should not be far below a hundredth of the prior standard deviation of a
        score, since numerical integrals over scores take steps of that size
    """

    df: Positive = 4.0
    scale: Positive = 1.0

    target = "real"

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -(self.df + 1) / 2 * torch.log1p(((y - score) / self.scale).square() / self.df)

    def draw_target(self, score: Tensor, generator: torch.Generator) -> Tensor:
        return score + self.scale * draw(StudentLaw(torch.full_like(score, self.df)), generator)

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        rate = (self.df * self.scale**2 + (y - score).square()) / 2
        precision = torch._standard_gamma(torch.full_like(rate, (self.df + 1) / 2), generator=generator) / rate
        return PseudoObservation(precision, precision * y)

    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        precision = (self.df + 1) / (self.df * self.scale**2 + (y - score_mean).square() + score_var)
        return PseudoObservation(precision, precision * y)

    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        square = (y - score_mean).square() + score_var
        return -(self.df + 1) / 2 * torch.log1p(square / (self.df * self.scale**2))


class CompiledStudentT(NamedTuple):
    df: float
    scale: float

    def log_factor(self, score, y):
        return -(self.df + 1.0) / 2.0 * math.log1p(((y - score) / self.scale) ** 2 / self.df)


register_compiled(StudentT, CompiledStudentT)
