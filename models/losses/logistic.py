"""The logistic factor of a linear score."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..compiled import register_compiled
from ..distributions.polya_gamma import polya_gamma
from ..distributions.sampling import normals, uniforms
from .base import Loss, PseudoObservation


@dataclass
class Logistic(Loss):
    """phi(y | f) = 1 / (1 + exp(-y f)), a Gaussian scale mixture in f [..., C] (Polson, Scott & Windle 2013).

    phi = (1/2) exp(y f / 2) E exp(-omega f^2 / 2),   omega ~ PG(1, 0)

    so that given omega the factor is a pseudo-observation with precision omega and shift y / 2. The bound of `expect`
    is that of Jaakkola & Jordan (2000).
    """

    is_likelihood = True

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return logsigmoid(y * score)

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        score, y = torch.broadcast_tensors(score, y)
        return PseudoObservation(polya_gamma(score, generator), y / 2)

    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        width = _width(score_mean, score_var)
        precision, y = torch.broadcast_tensors(torch.tanh(width / 2) / (2 * width), y)
        return PseudoObservation(precision, y / 2)

    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        width = _width(score_mean, score_var)
        return logsigmoid(width) + (y * score_mean - width) / 2

    def log_marginal(self, scale: Tensor, y: Tensor) -> Tensor:
        """log(1/2) at every scale: phi(+1 | f) + phi(-1 | f) = 1 and the prior is symmetric."""
        scale, _ = torch.broadcast_tensors(scale, y)
        return torch.full_like(scale, -math.log(2))

    def draw_score(self, scale: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        scale, y = torch.broadcast_tensors(scale, y)
        score = scale * normals(scale.shape, generator, scale)
        return torch.where(uniforms(scale.shape, generator) < torch.sigmoid(y * score), score, -score)

    def one_point(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The optimum f solves y f = variance sigma(-y f); Newton's method in log(y f), monotone from above."""
        variance, y = torch.broadcast_tensors(variance.clamp(min=torch.finfo(variance.dtype).tiny), y)
        log_score = torch.minimum(variance / 2, torch.log1p(variance)).log()
        for _ in range(_NEWTON_STEPS):
            score = log_score.exp()
            excess = log_score - logsigmoid(-score) - variance.log()  # softplus would round too early
            log_score = log_score - excess / (1 + score * torch.sigmoid(score))
        score = log_score.exp()
        return y * score, score * (score / variance) / 2 - logsigmoid(score)

    def conjugate(self, tilt: Tensor, y: Tensor) -> Tensor:
        """a log a + (1 - a) log(1 - a) for 0 <= a <= 1, a = y t."""
        share = y * tilt
        return -torch.special.entr(share) - torch.special.entr(1 - share)

    def best_tilt(self, score: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """y sigma(-m) at the root of m = y score + variance sigma(-m); Newton's method, monotone on either side of 0.

        Where the sigmoid is exponential a step is about 1, up to the log of the variance; then the digits double.
        """
        start, score = torch.zeros_like(score * y + variance), y * score
        rises = score + variance / 2 > 0
        m = torch.where(rises, torch.maximum(score, start), torch.minimum(score + variance, start))
        for _ in range(8 + int(variance.amax().log1p()) if m.numel() else 0):
            rest = torch.sigmoid(-m)
            m = m - (m - score - variance * rest) / (1 + variance * rest * torch.sigmoid(m))
        return y * torch.sigmoid(-m)

    def feasible(self, tilt: Tensor, y: Tensor) -> Tensor:
        return y * (y * tilt).clamp(0.0, 1.0)

    def moderated(self, score_mean: Tensor, score_var: Tensor) -> Tensor:
        """E sigmoid(f) is about sigmoid(E f / sqrt(1 + pi var f / 8)) (MacKay 1992)."""
        return score_mean / (1 + math.pi / 8 * score_var).sqrt()


register_compiled(Logistic, f"{__package__}._numba_logistic:CompiledLogistic")


_NEWTON_STEPS = 8  # from the right of a convex function: exact to rounding for variances in 1e-30..1e30


def _width(score_mean: Tensor, score_var: Tensor) -> Tensor:
    """sqrt(E f^2) [...], with a lower limit against 0 / 0."""
    return (score_mean.square() + score_var).clamp(min=torch.finfo(score_mean.dtype).tiny).sqrt()
