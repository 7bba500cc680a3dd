"""The epsilon-insensitive factor of a real target: the loss of support vector regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Loss, PseudoObservation
from .hinge import draw_inverse_omega, hinge_optimum
from .tilted_normal import log_linear_tail, log_normal_tail, log_survival_ratio, log_uniform, normal_excess

__all__ = ["EpsilonInsensitive"]


@dataclass
class EpsilonInsensitive(Loss):
    """phi(y | f) = exp(-2 c max(0, |y - f| - eps)), a product of two hinges, each with its own scale mixture.

    slack+ = y - f - eps, slack- = f - y - eps; given both omegas the factor is a pseudo-observation with
    precision c^2 (1/omega+ + 1/omega-) and shift c^2 ((y - eps)/omega+ + (y + eps)/omega-).
    `expect` and `majorize` keep c |slack| above 1e-4.

    Parameters
    ----------
    strength : c > 0, half the slope of the loss
    epsilon : eps >= 0, half the width of the tube without loss
    """

    strength: float = 1.0
    epsilon: float = 0.1

    target: ClassVar[str] = "real"

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
        return self._log_pieces(*torch.broadcast_tensors(scale, y.abs())).logsumexp(-1)

    def draw_score(self, scale: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        scale, y = torch.broadcast_tensors(scale, y)
        distance = y.abs()
        cumulative = self._log_pieces(scale, distance).softmax(-1).cumsum(-1)
        level = torch.rand(y.shape, generator=generator, dtype=scale.dtype, device=scale.device)
        log_level = log_uniform(scale, generator)
        near, far = distance - self.epsilon, distance + self.epsilon
        bound = near / scale
        inside = normal_excess(bound, torch.log1p(log_level.expm1() * -self._log_inside(bound, far / scale).expm1()))
        below = normal_excess(2 * self.strength * scale - bound, log_level)
        above = normal_excess(2 * self.strength * scale + far / scale, log_level)
        pieces = near - scale * below, near + scale * inside, far + scale * above
        score = torch.where(level < cumulative[..., 0], pieces[0], torch.where(level < cumulative[..., 1], *pieces[1:]))
        return torch.where(y < 0, -score, score)

    def one_point(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        variance, y = torch.broadcast_tensors(variance, y)
        score, cost = hinge_optimum(self.strength, torch.relu(y.abs() - self.epsilon), variance)
        return y.sign() * score, cost

    def _slacks(self, score: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y - score - self.epsilon, score - y - self.epsilon

    def _widths(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        """E slack^2 of both hinges and its floored root."""
        squares = [slack.square() + score_var for slack in self._slacks(score_mean, y)]
        return [(square, square.clamp(min=(1e-4 / self.strength) ** 2).sqrt()) for square in squares]

    def _observe(self, upper: Tensor, lower: Tensor, y: Tensor) -> PseudoObservation:
        shift = (y - self.epsilon) * upper + (y + self.epsilon) * lower
        return PseudoObservation(self.strength**2 * (upper + lower), self.strength**2 * shift)
