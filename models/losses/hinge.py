"""The hinge factor of a linear score: the max-margin loss of support vector machines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..compiled import register_compiled
from ..distributions.inverse_gaussian import inverse_gaussian
from ..domains import Positive
from .base import Loss, PseudoObservation
from .conjugates import Box
from .tilted_normal import draw_hinge, log_hinge_integral


@dataclass
class Hinge(Loss):
    r"""phi(y | f) = exp(-2 c max(0, l - y f)), a Gaussian scale mixture in f [..., C] (Polson & Scott 2011).

    phi = int_0^inf (2 pi omega)^(-1/2) exp(-(omega + c slack)^2 / (2 omega)) d omega,   slack = l - y f

    so that given omega the factor is a pseudo-observation with precision c^2 / omega and shift y (c + c^2 l / omega).
    `expect` and `majorize` keep |slack| above 1e-4 l, which costs at most c 1e-4 l / 2 of the factor's log at the kink.

    Parameters
    ----------
    strength : c > 0, half the slope of the loss
    margin : l > 0, the least score y f without loss
    """

    strength: Positive = 1.0
    margin: Positive = 1.0

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -2 * self.strength * torch.relu(self.margin - y * score)

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        slack = self.margin - y * score
        return self._observe(self.strength**2 * draw_inverse_omega(self.strength * slack.abs(), generator), y)

    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        *_, width = self._width(score_mean, score_var, y)
        return self._observe(self.strength / width, y)

    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        return self._bound(*self._width(score_mean, score_var, y))

    def expect_with_bound(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> tuple[PseudoObservation, Tensor]:
        slack, square, width = self._width(score_mean, score_var, y)
        return self._observe(self.strength / width, y), self._bound(slack, square, width)

    def log_marginal(self, scale: Tensor, y: Tensor) -> Tensor:
        return torch.broadcast_tensors(log_hinge_integral(self.strength, self.margin, scale), y)[0]

    def draw_score(self, scale: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        scale, y = torch.broadcast_tensors(scale, y)
        return y * draw_hinge(self.strength, self.margin, scale, generator)

    def one_point(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        variance, y = torch.broadcast_tensors(variance, y)
        score, cost = hinge_optimum(self.strength, torch.full_like(variance, self.margin), variance)
        return y * score, cost

    def box(self, y: Tensor) -> Box:
        """g*(-t) = -l y t for 0 <= y t <= 2 c."""
        bound = 2 * self.strength * y
        return Box(self.margin * y, bound.clamp(max=0.0), bound.clamp(min=0.0))

    def _width(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E slack, E slack^2 and its root with a lower limit, the mode of q(omega) in units of 1 / c."""
        slack = (-y * score_mean).add_(self.margin)
        square = torch.addcmul(score_var, slack, slack)
        return slack, square, square.clamp(min=(1e-4 * self.margin) ** 2).sqrt_()

    def _bound(self, slack: Tensor, square: Tensor, width: Tensor) -> Tensor:
        """-c (slack + (square / width + width) / 2)."""
        return (square / width).add_(width).div_(2).add_(slack).mul_(-self.strength)

    def _observe(self, precision: Tensor, y: Tensor) -> PseudoObservation:
        """The pseudo-observation with this precision and shift y (c + l precision)."""
        return PseudoObservation(precision, (self.margin * precision).add_(self.strength).mul_(y))


class CompiledHinge(NamedTuple):
    strength: float
    margin: float

    def log_factor(self, score, y):
        return -2.0 * self.strength * max(0.0, self.margin - y * score)

    def observe(self, score, y, half, uniform):
        """The precision and shift of `Hinge.augment`, from |N(0, 1)| / 2 and a uniform draw."""
        violation = self.strength * abs(self.margin - y * score)
        root = math.sqrt(violation + half * half) + half
        root *= root
        is_smaller = uniform * (violation + root) > root
        inverse = root / (violation * violation) if is_smaller else 1.0 / root
        precision = self.strength * self.strength * min(inverse, _MOST)
        return precision, y * (self.strength + self.margin * precision)


_MOST = 0.01 / torch.finfo(torch.float64).eps  # as in `draw_inverse_omega`

register_compiled(Hinge, CompiledHinge)


def draw_inverse_omega(violation: Tensor, generator: torch.Generator) -> Tensor:
    """Draws of 1 / omega [...], p(omega) prop. to omega^(-1/2) exp(-(omega - violation)^2 / (2 omega)), c |slack| >= 0.

    At violation 0 the law has no mean. Draws beyond 0.01 / eps of the dtype, which already fix the score at the kink
    within rounding, are cut there, so that a Cholesky factorization still works.
    """
    return inverse_gaussian(1 / violation, generator).clamp(max=0.01 / torch.finfo(violation.dtype).eps)


def hinge_optimum(strength: Positive, margin: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """(f, cost), each [...], that minimize 2 c max(0, margin - f) + f^2 / (2 variance); margin, variance >= 0 [...]."""
    reach = 2 * strength * variance
    cost = torch.where(reach <= margin, 2 * strength * (margin - strength * variance), margin.square() / (2 * variance))
    return torch.minimum(reach, margin), cost
