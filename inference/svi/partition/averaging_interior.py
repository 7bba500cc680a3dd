"""The tilts (dual variables) of the averaging rule by an interior-point method, for all points in parallel, to any gap.

    minimize  log sum_k exp(s_k + t . f_k) - linear . t + curvature |t|^2 / 2    over lower <= t <= upper, [sum t = 0]

Where few components share a point, this function is flat in most directions, so that changing one entry of t at a time
hardly lowers it. Newton steps move all entries at once, with a barrier -mu log(distance) at each bound; mu is reduced
as they converge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ....models.losses.conjugates import Box


class Problem(NamedTuple):
    """The problems of n points, T components and C scores; `of` makes them from a box without a tube."""

    s: Tensor  # [n, T]
    f: Tensor  # [n, T, C]
    linear: Tensor  # [n, C]
    lower: Tensor  # [n, C]
    upper: Tensor  # [n, C]
    curvature: float
    balanced: bool  # whether the tilts of a point sum to 0

    @classmethod
    def of(cls, s: Tensor, f: Tensor, box: Box, balanced: bool) -> Problem:
        """From logits s [n, T] and scores f [n, T, C].

        A tilt that is fixed at 0 gets the bounds -1 and 1; its slope and its scores are set to 0, so that it stays at
        0.
        """
        linear, lower, upper = (part.expand_as(f[:, 0]) for part in box[:3])
        free = lower < upper
        lower, upper = (torch.where(free, end.clamp(-_FAR, _FAR), one) for end, one in ((lower, -1.0), (upper, 1.0)))
        return cls(s, f * free.unsqueeze(1), linear * free, lower, upper, box.curvature, balanced)

    def rows(self, some: Tensor) -> Problem:
        """The problems of some points, from their indices [m] or a mask [n]."""
        s, f, linear, lower, upper = (part[some] for part in self[:5])
        return self._replace(s=s, f=f, linear=linear, lower=lower, upper=upper)

    def inside(self, t: Tensor) -> Tensor:
        """Move feasible tilts [n, C] off their bounds."""
        if self.balanced:
            return torch.lerp(t, self.upper - self.upper.mean(1, keepdim=True), _OFF)
        return t + _OFF * ((self.upper - t).clamp(max=1.0) - (t - self.lower).clamp(max=1.0))

    def logits(self, t: Tensor) -> Tensor:
        """s + t . f [n, T]."""
        return self.s + (self.f @ t.unsqueeze(2)).squeeze(2)

    def mean(self, t: Tensor) -> Tensor:
        """The expected scores [n, C]."""
        return (self.logits(t).softmax(1).unsqueeze(1) @ self.f).squeeze(1)

    def cost(self, t: Tensor, mu: Tensor) -> Tensor:
        """The objective [n] with barriers of weight mu [n]."""
        barrier = ((t - self.lower).log() + (self.upper - t).log()).sum(1)
        return self.logits(t).logsumexp(1) + ((self.curvature / 2 * t - self.linear) * t).sum(1) - mu * barrier

    def step(self, t: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """Tilts [n, C] after a damped Newton step, and mu [n], reduced where the step has converged."""
        low, high = t - self.lower, self.upper - t
        move, fall = self._newton(t, low, high, mu.unsqueeze(1))
        size = 0.9 / torch.maximum(move / low, -move / high).amax(1).clamp(min=0.9)
        cost = self.cost(t, mu)
        for _ in range(_MOST_HALVINGS):
            rise = self.cost(t - size.unsqueeze(1) * move, mu) - cost
            long = rise > 8 * torch.finfo(t.dtype).eps * cost.abs() - 1e-4 * size * fall
            if not long.any():
                break
            size = torch.where(long, size / 2, size)
        return t - size.unsqueeze(1) * move, torch.where(fall < mu, mu / 10, mu)

    def _newton(self, t: Tensor, low: Tensor, high: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the Newton step [n, C], and twice the decrease [n] of the quadratic model."""
        r = self.logits(t).softmax(1).unsqueeze(1)
        mean = r @ self.f
        apart = self.f - mean
        slope = mean.squeeze(1) - self.linear + self.curvature * t - mu / low + mu / high
        bend = self.curvature + mu / low.square() + mu / high.square()
        others = torch.ones_like(t)
        if self.balanced:  # eliminate the tilt that is farthest from its bound: it is minus the sum of the others
            one = high.argmax(1, keepdim=True)
            others.scatter_(1, one, 0.0)
            slope = slope - slope.gather(1, one)
            apart = apart - apart.gather(2, one.unsqueeze(1).expand(-1, apart.shape[1], -1))
        hessian = apart.mT @ (r.mT * apart) + torch.diag_embed(bend)
        if self.balanced:
            hessian = hessian + (bend.gather(1, one) * others).unsqueeze(2) * others.unsqueeze(1)
        move = torch.linalg.solve(hessian, slope)
        fall = (slope * move).sum(1)
        return (move.scatter(1, one, -move.sum(1, keepdim=True)) if self.balanced else move), fall


def interior_tilt(
    problem: Problem, tilt: Tensor, gap: Callable[[Tensor, Tensor, Tensor], Tensor], tolerance: float
) -> Tensor:
    """Tilts [n, C] with a duality gap of at most `tolerance`, from feasible ones.

    gap(points, mean scores, tilts) [m] is the duality gap of each point.
    """
    found, rows, t = tilt.clone(), torch.arange(len(tilt), device=tilt.device), problem.inside(tilt)
    mu = gap(rows, problem.mean(t), t) / t.shape[1]
    for _ in range(_MOST_STEPS):
        t, mu = problem.step(t, mu)
        found[rows] = t
        apart = gap(rows, problem.mean(t), t) > tolerance
        if not apart.any():
            break
        rows, t, mu, problem = rows[apart], t[apart], mu[apart], problem.rows(apart)
    return found


_FAR = 1e30  # replaces infinite bounds
_OFF = 0.1  # fraction of the way to the middle
_MOST_STEPS, _MOST_HALVINGS = 200, 30
