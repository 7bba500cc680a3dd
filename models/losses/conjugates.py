"""Convex conjugates of costs g(f) = -log phi(y | f) at tilts t: a posterior gains the factor exp(t . f).

g*(-t) = max_f [-t . f - g(f)] is the cost of a tilt in the dual (docs/derivations/regbayes, "Conjugates of the
losses"). `Box` is a conjugate that is a parabola on an interval; `crammer_singer_tilt` is for one joint hinge of all
classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Box(NamedTuple):
    """g*(-t) = curvature t^2 / 2 - linear t + tube |t| for lower <= t <= upper, +inf elsewhere; all [..., C]."""

    linear: Tensor
    lower: Tensor  # <= 0
    upper: Tensor  # >= 0, inf where there is no bound
    curvature: float = 0.0
    tube: float = 0.0

    def value(self, tilt: Tensor) -> Tensor:
        """g*(-t) of tilts [..., C]."""
        cost = (self.curvature / 2 * tilt - self.linear) * tilt + self.tube * tilt.abs()
        return torch.where((tilt >= self.lower) & (tilt <= self.upper), cost, torch.inf)

    def best(self, score: Tensor, variance: Tensor) -> Tensor:
        """The tilt that minimizes g*(-t) + t score + variance t^2 / 2."""
        slope = self.linear - score
        excess = slope.sign() * (slope.abs() - self.tube).relu()
        denominator = (self.curvature + variance).clamp(min=torch.finfo(score.dtype).tiny)
        return self.clamp(excess / denominator)

    def clamp(self, tilt: Tensor) -> Tensor:
        """The nearest tilt in the interval."""
        return torch.minimum(torch.maximum(tilt, self.lower), self.upper)


def crammer_singer_tilt(score: Tensor, variance: Tensor, y: Tensor, strength: float, margin: float) -> Tensor:
    """The tilt [..., L] that minimizes -l t_y + sum_m (t_m score_m + variance_m t_m^2 / 2).

    The constraints are t_m <= 0 for m != y, t_y <= w = 2 c and sum_m t_m = 0. So t_m = min(its bound, (theta - cost_m)
    / variance_m) with cost_m = score_m - l 1[m = y], and theta is found between the values at which entries reach their
    bounds.
    """
    own = y > 0
    bound = torch.where(own, 2.0 * strength, torch.zeros_like(score))
    cost = score - margin * own
    cost = cost - torch.where(own, cost, 0.0).sum(-1, keepdim=True)  # theta absorbs a common shift
    variance = variance.clamp(min=_LEAST_VARIANCE * margin / (2 * strength)).expand_as(score)
    ends, order = (cost + variance * bound).sort(-1)
    rate, pull, bounds = (part.gather(-1, order) for part in (1 / variance, cost / variance, bound))
    # sums over the entries below their bounds, and over those at them, with theta at the start of each interval
    rates, pulls = (part.flip(-1).cumsum(-1).flip(-1) for part in (rate, pull))
    reached = bounds.cumsum(-1) - bounds
    below = (reached + ends * rates - pulls < 0).sum(-1, keepdim=True)  # ends at which the entries sum to less than 0
    below = below.clamp(max=score.shape[-1] - 1)
    theta = ((pulls - reached) / rates).gather(-1, below)
    return balanced(torch.minimum((theta - cost) / variance, bound), y, 2 * strength)


def balanced(tilt: Tensor, y: Tensor, most: float) -> Tensor:
    """Tilts [..., L] that sum to 0: at most `most` for the class of the row, and at most 0 for the others."""
    others = torch.where(y > 0, 0.0, tilt.clamp(max=0.0))
    own = -others.sum(-1, keepdim=True)
    return torch.where(y > 0, own, others) * (most / own.abs()).clamp(max=1.0)  # 1 / -0 would be -inf


_LEAST_VARIANCE = 1e-8  # in units of margin / w: with a smaller variance the tilt is at a bound anyway
