"""The interface of a margin loss on linear scores: one factor phi(y | f), read by every backend.

Each backend turns the factor into a Gaussian pseudo-observation exp(-precision f^2 / 2 + shift f) of the score f:
Gibbs draws the scale-mixture variable (`augment`), SVI takes its expectation (`expect`), the small-variance limit sets
it to its limit (`majorize`). All methods act elementwise on scores of shape [..., C] and targets that broadcast with
them: C = 1 for a binary or real target, C = L for L classes (targets -1 / +1), C = 0 for no target.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..config import Config
from .tilted_normal import draw_interpolated, log_normal_density, normal_nodes

__all__ = ["Loss", "PseudoObservation"]


class PseudoObservation(NamedTuple):
    """The factor exp(-precision f^2 / 2 + shift f) of a score f."""

    precision: Tensor  # >= 0, in units of 1 / score^2
    shift: Tensor  # in units of 1 / score


class Loss(Config, ABC):
    """A margin loss; `testing.check_loss` checks every method below against `log_factor`."""

    is_likelihood: ClassVar[bool] = False  # phi(y | f) sums to one over y
    target: ClassVar[str] = (
        "sign"  # "sign": a binary loss, targets -1 / +1; "real": a regression loss, targets as they are
    )

    # -- the definition ----------------------------------------------------------------------------------------

    @abstractmethod
    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        """log phi(y | f), at most 0."""

    # -- one reading for each backend --------------------------------------------------------------------------

    @abstractmethod
    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        """Gibbs: the pseudo-observation at a draw of the augmentation variable given the score."""

    @abstractmethod
    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        """SVI: the pseudo-observation at the optimal q(omega) for a score of this mean and variance."""

    @abstractmethod
    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        """SVI: the lower bound of E log phi that the same q(omega) attains; quadratic in f around it."""

    def majorize(self, score: Tensor, y: Tensor) -> PseudoObservation:
        """Small variance: the quadratic that touches `log_factor` at the score and lies below it elsewhere."""
        return self.expect(score, torch.zeros_like(score), y)

    # -- one point alone: numerical, override where there is a closed form ---------------------------------------

    def log_marginal(self, scale: Tensor, y: Tensor) -> Tensor:
        """log E phi(y | f) for f ~ N(0, scale^2): the weight of opening a component at a point.

        The default is the trapezoid rule in f with step scale / 100: phi should not change much within a step.
        """
        scale, y = torch.broadcast_tensors(scale, y)
        rows = zip(scale.reshape(-1, 1).split(_CHUNK), y.reshape(-1, 1).split(_CHUNK), strict=True)
        log_integrals = [self._log_tilted(*row)[1].logsumexp(-1) for row in rows]
        return (torch.cat(log_integrals) + math.log(_STEP)).view(y.shape) if log_integrals else y

    def draw_score(self, scale: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """A score from N(0, scale^2) phi(y | f) / (its integral): the first score of a component just opened.

        The default interpolates the log density between nodes scale / 100 apart.
        """
        scale, y = torch.broadcast_tensors(scale, y)
        rows = zip(scale.reshape(-1, 1).split(_CHUNK), y.reshape(-1, 1).split(_CHUNK), strict=True)
        draws = [draw_interpolated(*self._log_tilted(*row), generator) for row in rows]
        return scale * torch.cat(draws).view(y.shape)

    def one_point(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Small variance: (score, cost) that minimize -log phi(y | f) + f^2 / (2 variance) over f.

        The default zooms in on the best of 65 nodes. As log phi <= 0, f^2 <= -2 variance log phi(y | 0) at the optimum.
        """
        variance, y = (tensor.unsqueeze(-1) for tensor in torch.broadcast_tensors(variance, y))
        variance = variance.clamp(min=torch.finfo(variance.dtype).tiny)
        center = torch.zeros_like(variance)
        radius = torch.sqrt(-2 * variance * self.log_factor(center, y))
        nodes = torch.linspace(-1, 1, 65, dtype=y.dtype, device=y.device)
        for _ in range(_NUM_ZOOMS):
            score = center + radius * nodes
            cost, best = (score * (score / variance) / 2 - self.log_factor(score, y)).min(-1, keepdim=True)
            center, radius = score.gather(-1, best), radius / 16
        return center.squeeze(-1), cost.squeeze(-1)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Class probabilities [..., L] of scores [..., C] (C = 1: L = 2), increasing in each class's own score.

        The default is the factor normalized over the classes: a reading for prediction, not a part of the model.
        """
        if self.target == "real":
            raise NotImplementedError(f"{type(self).__name__} has real targets, no classes: use predict(X).")
        num_scores = scores.shape[-1]
        if num_scores == 1:
            signs = scores.new_tensor([[-1.0], [1.0]])
        else:
            signs = 2 * torch.eye(num_scores, dtype=scores.dtype, device=scores.device) - 1
        return self.log_factor(scores.unsqueeze(-2), signs).sum(-1).softmax(-1)

    def _log_tilted(self, scale: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes g [G], and the log density [..., G] of N(g; 0, 1) phi(y | scale g); scale, y [..., 1]."""
        nodes = normal_nodes(scale, _STEP)
        return nodes, self.log_factor(scale * nodes, y) + log_normal_density(nodes)

    # -- classes whose scores meet in one factor (Crammer-Singer) override these two -----------------------------

    def blocks(self, num_scores: int) -> list[slice]:
        """Columns of the scores whose classifiers may be updated together."""
        return [slice(0, num_scores)] if num_scores else []

    def reference(self, scores: Tensor, y: Tensor, columns: slice) -> Tensor | float:
        """Given the other columns, the factor in these columns is a binary factor of (score - reference)."""
        return 0.0


_STEP = 0.01  # of the trapezoid rule, in standard deviations
_CHUNK = 1024  # rows of nodes in memory at a time
_NUM_ZOOMS = 14  # to 16^-14 of the first radius
