"""The responsibilities of one point under the averaging rule, of all points in parallel.

    maximize  sum_k r_k (s_k - log r_k) - g(sum_k r_k f_k)     over the simplex, f_k [C] the scores of component k
    minimize  log sum_k exp(s_k + t . f_k) + g*(-t)            over tilts t [C]

have one value, and r_k prop. to exp(s_k + t . f_k) (math/dp-mixtures, section 6). With one score the dual is a function
of one number, and bisection finds it. With more, the class that adds most to the duality gap takes its turn; where the
classes meet in one hinge, the tilts are a simplex, and the pair of its entries with the steepest exchange does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...models.losses import CrammerSinger, Loss
from ...models.losses.conjugates import Box
from ..duals import joint_hinge


class Conjugate(NamedTuple):
    """g* of one number, in terms of targets y [n, ...] of any kind."""

    best_tilt: Callable[[Tensor, Tensor, Tensor], Tensor]  # (score, variance, y), each [n, 1]
    value: Callable[[Tensor, Tensor], Tensor]  # (tilt, y)


def best_responsibilities(
    logits: Tensor, scores: Tensor, targets: Tensor, loss: Loss, tilt: Tensor
) -> tuple[Tensor, Tensor]:
    """Responsibilities [N, T] and tilts [N, C], from logits s [N, T], scores [N, T, C], targets and tilts [N, C]."""
    hinge, tilt = joint_hinge(loss), loss.feasible(tilt, targets).clone()
    rows = torch.arange(len(logits), device=logits.device)
    for _ in range(_MOST_TURNS[scores.shape[2] > 1]):
        s, f, y, t = logits[rows], scores[rows], targets[rows], tilt[rows]
        total = s + (f @ t.unsqueeze(2)).squeeze(2)
        mean = expected(total.softmax(1), f)
        apart = duality_gaps(loss, mean, t, y).sum(1) > _tolerance(s)
        if not apart.any():
            break
        rows, total, f, y, t, mean = (part[apart] for part in (rows, total, f, y, t, mean))
        if hinge is None:
            tilt[rows] = _turn_of_a_class(total, f, y, t, mean, loss)
        else:
            tilt[rows] = _turn_of_a_pair(total, f, y, t, mean, hinge)
    return (logits + (scores @ tilt.unsqueeze(2)).squeeze(2)).softmax(1), tilt


def _turn_of_a_class(total: Tensor, f: Tensor, y: Tensor, t: Tensor, mean: Tensor, loss: Loss) -> Tensor:
    """Tilts [n, C] after one class of each row has its best, from logits s + t . f [n, T] and mean scores [n, C]."""
    chosen = duality_gaps(loss, mean, t, y).argmax(1, keepdim=True)
    before = t.gather(1, chosen)
    line = f.gather(2, chosen.unsqueeze(1).expand(-1, f.shape[1], -1)).squeeze(2)
    conjugate = Conjugate(loss.best_tilt, loss.conjugate)
    found = bisect(
        total - before * line, line, y.gather(1, chosen), conjugate, before, 50 if t.shape[1] == 1 else _STEPS_OF_A_TURN
    )
    return t.scatter(1, chosen, found)


def _turn_of_a_pair(total: Tensor, f: Tensor, y: Tensor, t: Tensor, mean: Tensor, hinge: CrammerSinger) -> Tensor:
    """The same where t = w 1[m = y] - tau: two entries of tau, on the simplex of mass w, share their sum anew."""
    own = (y > 0).to(t.dtype)
    cost, tau = hinge.margin * (1 - own), (2 * hinge.strength * own - t).clamp(min=0.0)
    gain = cost + mean
    more = gain.argmax(1, keepdim=True)
    less = torch.where(tau > 0, gain, torch.inf).argmin(1, keepdim=True)
    line_of = more.unsqueeze(1).expand(-1, f.shape[1], -1), less.unsqueeze(1).expand(-1, f.shape[1], -1)
    line = (f.gather(2, line_of[1]) - f.gather(2, line_of[0])).squeeze(2)
    before = tau.gather(1, more)
    both = before + tau.gather(1, less)
    interval = torch.cat([cost.gather(1, more) - cost.gather(1, less), torch.zeros_like(both), both], 1)
    found = bisect(total - before * line, line, interval, _INTERVAL, before, _STEPS_OF_A_TURN)
    tau = tau.scatter(1, more, found).scatter(1, less, both - found)
    return hinge.feasible(2 * hinge.strength * own - tau, y)


def bisect(s: Tensor, f: Tensor, y: Tensor, conjugate: Conjugate, tilt: Tensor, most_steps: int = 50) -> Tensor:
    """The t [n, 1] that minimize log sum_k exp(s_k + t f_k) + g*(-t), for s and f [n, T].

    Proximal Newton steps t <- argmin g*(-u) + m (u - t) + v (u - t)^2 / 2, with m the mean and v the variance of f
    under r(t); every other step halves the interval that is left for t = -g'(m) instead.
    """
    rows, nothing = torch.arange(len(s), device=s.device), torch.zeros_like(tilt)
    ends = f.amax(1, keepdim=True), f.amin(1, keepdim=True)
    least, most = (conjugate.best_tilt(end, nothing, y) for end in ends)
    t = tilt.clamp(least, most)
    found = t.clone()
    for step in range(most_steps):
        r = (s + t * f).softmax(1)
        mean = (r * f).sum(1, keepdim=True)
        found[rows] = t
        best = conjugate.best_tilt(mean, nothing[: len(t)], y)
        gap = conjugate.value(t, y) - conjugate.value(best, y) + (t - best) * mean
        apart = ((gap > _tolerance(s) / 4) & (most - least > 4 * torch.finfo(s.dtype).eps * t.abs())).squeeze(1)
        if not apart.any():
            break
        rows, s, f, y, t, r, mean, least, most = (part[apart] for part in (rows, s, f, y, t, r, mean, least, most))
        variance = (r * (f - mean).square()).sum(1, keepdim=True)
        moved = conjugate.best_tilt(mean - variance * t, variance, y)
        least, most = torch.where(moved > t, t, least), torch.where(moved < t, t, most)
        t = moved.clamp(least, most) if step % 2 == 0 else (least + most) / 2
    return found


def expected(responsibilities: Tensor, scores: Tensor) -> Tensor:
    """sum_k r_k f_k [N, C]."""
    return (responsibilities.unsqueeze(1) @ scores).squeeze(1)


def duality_gaps(loss: Loss, score: Tensor, tilt: Tensor, targets: Tensor) -> Tensor:
    """g(f) + g*(-t) + t f [N, C], or [N, 1] where classes meet; 0 where t is minus a slope of g at f."""
    gap = loss.conjugate(tilt, targets) - loss.log_factor(score, targets)
    along = tilt * score
    return gap + (along if gap.shape == along.shape else along.sum(1, keepdim=True))


def _interval(y: Tensor) -> Box:
    """g*(-t) = -linear t in an interval, of y = (linear, lower, upper) [n, 3]."""
    return Box(y[:, :1], y[:, 1:2], y[:, 2:])


def _tolerance(like: Tensor) -> float:
    """In nats, for each point."""
    return float(torch.finfo(like.dtype).eps ** 0.6)


_INTERVAL = Conjugate(
    lambda score, variance, y: _interval(y).best(score, variance),
    lambda tilt, y: _interval(y).value(tilt),
)
_STEPS_OF_A_TURN = 16  # of one number among several
_MOST_TURNS = (1, 10)  # with one score, with more; the next sweep goes on from there
