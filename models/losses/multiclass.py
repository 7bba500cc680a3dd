"""Losses of several classes: one binary loss for each (`OneVsRest`), or one joint factor (`CrammerSinger`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ..compiled import register_compiled
from ..distributions.sampling import uniforms
from ..domains import Positive
from .base import Loss, PseudoObservation
from .conjugates import balanced, crammer_singer_tilt
from .hinge import Hinge
from .tilted_normal import draw_hinge, draw_interpolated, log_hinge_integral, log_uniform, normal_excess, normal_rule
from .wrapped import HandedOn, WrappedLoss


@dataclass(eq=False)
class OneVsRest(WrappedLoss):
    """A binary `loss` for each of L classes, target +1 at the class of the point and -1 elsewhere; factors multiply."""

    loss: Loss = field(default_factory=Hinge)

    binary = False


@dataclass(eq=False)
class CrammerSinger(Loss):
    """phi(y | f) = exp(-2 c max_m (l 1[m != y] + f_m - f_y)), scores f of L classes (Crammer & Singer 2001).

    As a function of one class score, the others fixed, it is a hinge of (f_m - reference_m) with the sign of class m,
    so the classes are updated in turn: see `blocks` and `reference`. Targets are sign matrices [..., L]; terms of the
    factor and costs have one column, [..., 1]. The maximum has no expectation in closed form, hence there is no
    `expect`.

    Parameters
    ----------
    strength : c > 0, half the slope of the loss
    margin : l > 0, by how much the score of the class should beat the others
    """

    strength: Positive = 1.0
    margin: Positive = 1.0

    meets = True

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        own = torch.where(y > 0, score, 0.0).sum(-1, keepdim=True)
        return -2 * self.strength * (self._with_cost(score, y).amax(-1, keepdim=True) - own)

    def blocks(self, num_scores: int) -> list[slice]:
        return [slice(m, m + 1) for m in range(num_scores)]

    def reference(self, scores: Tensor, y: Tensor, columns: slice) -> Tensor:
        """b_m - sign * l, with b_m = max_{j != m} (l 1[j != y] + f_j) - l 1[m != y]."""
        others = _largest_other(self._with_cost(scores, y))[..., columns]
        sign = y[..., columns]
        return others - self.margin * (1 - sign) / 2 - sign * self.margin

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        """For one class score minus its reference, as `majorize`."""
        return Hinge(self.strength, self.margin).augment(score, y, generator)

    def majorize(self, score: Tensor, y: Tensor) -> PseudoObservation:
        return Hinge(self.strength, self.margin).majorize(score, y)

    def log_marginal(self, scale: Tensor, y: Tensor) -> Tensor:
        """The hinge's integral over f_y, averaged over the largest other score (docs/derivations/mixtures)."""
        rows = scale.split(_CHUNK)
        return torch.cat([self._log_largest(row, y.shape[-1] - 1)[1].logsumexp(-1, keepdim=True) for row in rows])

    def draw_score(self, scale: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the largest of the other scores, then the own score given it, then the rest below it."""
        num_others = y.shape[-1] - 1
        largest = draw_interpolated(*self._log_largest(scale, num_others), generator).unsqueeze(-1)
        own = draw_hinge(self.strength, self.margin + scale * largest, scale, generator)
        below = largest.expand(*largest.shape[:-1], num_others).contiguous()
        rest = below - normal_excess(-below, log_uniform(below, generator))
        chosen = uniforms(rest.shape, generator).argmax(-1, keepdim=True)
        rest = scale * rest.scatter(-1, chosen, largest)
        score = own.expand(y.shape).clone()
        score[y < 0] = rest.reshape(-1)
        return score

    def one_point(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The class's score q a, the others' -q a / (L - 1), with a = min(2c, l (L - 1) / (L q)), q the variance."""
        num_classes = y.shape[-1]
        share = num_classes / (num_classes - 1)
        a = (self.margin / (share * variance)).clamp(max=2 * self.strength)
        own = variance * a
        score = torch.where(y > 0, own, -own / (num_classes - 1))
        return score, 2 * self.strength * torch.relu(self.margin - own * share) + own * a * share / 2

    def conjugate(self, tilt: Tensor, y: Tensor) -> Tensor:
        """-l t_y for t = w 1[m = y] - tau with tau >= 0 and sum tau = w = 2 c, up to rounding of the sum."""
        own = torch.where(y > 0, tilt, 0.0).sum(-1, keepdim=True)
        rounding = 1e2 * torch.finfo(tilt.dtype).eps
        inside = (tilt <= torch.where(y > 0, torch.inf, 0.0)).all(-1, keepdim=True)
        inside &= own <= 2 * self.strength * (1 + rounding)
        inside &= tilt.sum(-1, keepdim=True).abs() <= rounding * own
        return torch.where(inside, -self.margin * own, torch.inf)

    def best_tilt(self, score: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return crammer_singer_tilt(score, variance, y, self.strength, self.margin)

    def feasible(self, tilt: Tensor, y: Tensor) -> Tensor:
        return balanced(tilt, y, 2 * self.strength)

    def _with_cost(self, score: Tensor, y: Tensor) -> Tensor:
        """l 1[m != y] + f_m."""
        return score + self.margin * (1 - y) / 2

    def _log_largest(self, scale: Tensor, num_others: int) -> tuple[Tensor, Tensor]:
        """Nodes g [G], and the log weights [N, G] of the largest of the others' scores / scale, times the factor."""
        g, log_law = normal_rule(scale, _STEP)
        log_law = log_law + math.log(num_others) + (num_others - 1) * torch.special.log_ndtr(g)
        return g, log_law + log_hinge_integral(self.strength, self.margin + scale * g, scale)


class CompiledCrammerSinger(NamedTuple):
    """The compiled form: the loss's numbers and the factor of all scores [C] of a row."""

    strength: float
    margin: float

    def log_factors(self, scores, y):
        own, largest = 0.0, -math.inf
        for c in range(len(scores)):
            if y[c] > 0:
                own = scores[c]
            largest = max(largest, scores[c] + (0.0 if y[c] > 0 else self.margin))
        return -2.0 * self.strength * (largest - own)


register_compiled(CrammerSinger, CompiledCrammerSinger)
register_compiled(OneVsRest, HandedOn)


_STEP = 0.05  # in standard deviations; the integrand is smooth, so that the trapezoid rule is exact to rounding
_CHUNK = 1024  # rows of nodes in memory at a time


def _largest_other(values: Tensor) -> Tensor:
    """max_{j != m} values_j for every m, [..., L]."""
    top, index = values.topk(2, dim=-1)
    is_top = torch.arange(values.shape[-1], device=values.device) == index[..., :1]
    return torch.where(is_top, top[..., 1:], top[..., :1])
