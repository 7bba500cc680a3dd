"""The squared hinge of a linear score: a max-margin loss without a kink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..compiled import register_compiled
from ..domains import Positive
from .base import Loss, PseudoObservation
from .conjugates import Box
from .tilted_normal import log_normal_tail, positive


@dataclass
class SquaredHinge(Loss):
    """phi(y | f) = exp(-2 c max(0, l - y f)^2), f [..., C].

    It is not a scale mixture of Gaussians, so Gibbs takes elliptical slice steps; `expect` is a parabola of precision
    4 c.

    Parameters
    ----------
    strength, margin : c > 0, a quarter of the curvature, and l > 0 as in `Hinge`
    """

    strength: Positive = 1.0
    margin: Positive = 1.0

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -2 * self.strength * torch.relu(self.margin - y * score).square()

    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        slope = 4 * self.strength * y * torch.relu(self.margin - y * score_mean)
        precision = torch.full_like(slope, 4 * self.strength)
        return PseudoObservation(precision, slope + precision * score_mean)

    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        return self.log_factor(score_mean, y) - 2 * self.strength * score_var

    def log_marginal(self, scale: Tensor, y: Tensor) -> Tensor:
        scale, _ = torch.broadcast_tensors(positive(scale), y)
        growth = 1 + 4 * self.strength * scale.square()
        below = log_normal_tail(-self.margin, scale * growth.sqrt()) - growth.log() / 2
        return torch.logaddexp(log_normal_tail(self.margin, scale), below - 2 * self.strength * self.margin**2 / growth)

    def one_point(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        gain = 4 * self.strength * variance * y.square()
        return y * self.margin * gain / (1 + gain), 2 * self.strength * self.margin**2 / (1 + gain)

    def box(self, y: Tensor) -> Box:
        """g*(-t) = t^2 / (8 c) - l y t for y t >= 0."""
        bound = torch.inf * y
        return Box(self.margin * y, bound.clamp(max=0.0), bound.clamp(min=0.0), curvature=1 / (4 * self.strength))


class CompiledSquaredHinge(NamedTuple):
    strength: float
    margin: float

    def log_factor(self, score, y):
        return -2.0 * self.strength * max(0.0, self.margin - y * score) ** 2


register_compiled(SquaredHinge, CompiledSquaredHinge)
