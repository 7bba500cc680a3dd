"""The epsilon-insensitive factor of a real target: the loss of support vector regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..compiled import register_compiled
from ..distributions.sampling import uniforms
from ..domains import NonNegative, Positive
from .base import Loss, PseudoObservation
from .conjugates import Box
from .hinge import draw_inverse_omega, hinge_optimum
from .tilted_normal import log_linear_tail, log_normal_tail, log_survival_ratio, log_uniform, normal_excess, positive


@dataclass
class EpsilonInsensitive(Loss):
    """phi(y | f) = exp(-2 c max(0, |y - f| - eps)), two hinges of f [..., C], each with its own scale mixture.

    slack+ = y - f - eps, slack- = f - y - eps; given both omegas the factor is a pseudo-observation with
    precision c^2 (1/omega+ + 1/omega-) and shift c^2 ((y - eps)/omega+ + (y + eps)/omega-).
    `expect` and `majorize` keep c |slack| above 1e-4.

    Parameters
    ----------
    strength : c > 0, half the slope of the loss
    epsilon : eps >= 0, half the width of the tube without loss
    """

    strength: Positive = 1.0
    epsilon: NonNegative = 0.1

    target = "real"

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -2 * self.strength * torch.relu((y - score).abs() - self.epsilon)

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        upper, lower = (draw_inverse_omega(self.strength * slack.abs(), generator) for slack in self._slacks(score, y))
        return self._observe(upper, lower, y)

    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        upper, lower = (1 / (self.strength * width) for _, width in self._widths(score_mean, score_var, y))
        return self._observe(upper, lower, y)

    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        upper, lower = (square / width + width for square, width in self._widths(score_mean, score_var, y))
        return -self.strength * ((upper + lower) / 2 - 2 * self.epsilon)

    def log_marginal(self, scale: Tensor, y: Tensor) -> Tensor:
        return self._log_pieces(*torch.broadcast_tensors(positive(scale), y.abs())).logsumexp(-1)

    def draw_score(self, scale: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """A draw of f sign(y) from one of three pieces, each a truncated normal: below, inside and above the tube."""
        scale, y = torch.broadcast_tensors(positive(scale), y)
        cumulative = self._log_pieces(scale, y.abs()).softmax(-1).cumsum(-1)
        level = uniforms(y.shape, generator)
        below, inside = level < cumulative[..., 0], level < cumulative[..., 1]
        near, far = y.abs() - self.epsilon, y.abs() + self.epsilon
        log_level = log_uniform(scale, generator)
        log_inside = torch.log1p(-torch.exp(log_level + _log_share(near / scale, 2 * self.epsilon / scale)))
        tilt = 2 * self.strength * scale
        bound = torch.where(below, tilt - near / scale, torch.where(inside, near / scale, tilt + far / scale))
        excess = scale * normal_excess(bound, torch.where(inside & ~below, log_inside, log_level))
        score = torch.where(below, near - excess, torch.where(inside, near, far) + excess)
        return torch.where(y < 0, -score, score)

    def draw_target(self, score: Tensor, generator: torch.Generator) -> Tensor:
        """Draw y, uniform inside the tube, whose mass is 2 c eps times that of the exponential tails of rate 2 c."""
        side, piece, level = uniforms((3, *score.shape), generator)
        rate = 2 * self.strength
        inside = piece * (1 + rate * self.epsilon) < rate * self.epsilon
        distance = torch.where(inside, self.epsilon * level, self.epsilon - torch.log1p(-level) / rate)
        return score + torch.where(side < 0.5, -distance, distance).to(score)

    def one_point(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        variance, y = torch.broadcast_tensors(variance, y)
        score, cost = hinge_optimum(self.strength, torch.relu(y.abs() - self.epsilon), variance)
        return y.sign() * score, cost

    def box(self, y: Tensor) -> Box:
        """g*(-t) = eps |t| - y t for |t| <= 2 c."""
        bound = torch.full_like(y, 2 * self.strength)
        return Box(y, -bound, bound, tube=self.epsilon)

    def _slacks(self, score: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y - score - self.epsilon, score - y - self.epsilon

    def _widths(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For both hinges: E slack^2, and its root with a lower limit."""
        squares = [slack.square() + score_var for slack in self._slacks(score_mean, y)]
        return [(square, square.clamp(min=(1e-4 / self.strength) ** 2).sqrt()) for square in squares]

    def _log_pieces(self, scale: Tensor, distance: Tensor) -> Tensor:
        """log E[phi; piece] [..., 3] below, inside and above the tube around |y| = distance."""
        near, far = distance - self.epsilon, distance + self.epsilon
        inside = _log_share(near / scale, 2 * self.epsilon / scale) + log_normal_tail(near, scale)
        below, above = (log_linear_tail(self.strength, margin, scale) for margin in (near, -far))
        return torch.stack([below, inside, above], -1)

    def _observe(self, upper: Tensor, lower: Tensor, y: Tensor) -> PseudoObservation:
        shift = (y - self.epsilon) * upper + (y + self.epsilon) * lower
        return PseudoObservation(self.strength**2 * (upper + lower), self.strength**2 * shift)


class CompiledEpsilonInsensitive(NamedTuple):
    strength: float
    epsilon: float

    def log_factor(self, score, y):
        return -2.0 * self.strength * max(0.0, abs(y - score) - self.epsilon)


register_compiled(EpsilonInsensitive, CompiledEpsilonInsensitive)


def _log_share(near: Tensor, width: Tensor) -> Tensor:
    """log P(Z < near + width | Z > near) of a standard normal Z, for near >= -width / 2.

    For a narrow interval the difference of the tails would cancel; it uses the midpoint rule with its next term.
    """
    far, middle = near + width, near + width / 2
    log_ratio = torch.where(
        near > 0,
        log_survival_ratio(near.clamp(min=0.0), width),
        torch.special.log_ndtr(-far) - torch.special.log_ndtr(-near),
    )
    log_hazard = -torch.log(torch.special.erfcx(near / math.sqrt(2)) * math.sqrt(math.pi / 2))
    narrow = width.log() + log_hazard - width * (near + width / 4) / 2 + width.square() * (middle.square() - 1) / 24
    return torch.where(width * (1 + middle) < 0.01, narrow, torch.log(-log_ratio.expm1()))
