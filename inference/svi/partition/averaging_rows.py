"""The responsibilities of single points under the averaging rule, for all points in parallel.

    maximize  sum_k r_k (s_k - log r_k) - g(sum_k r_k f_k)     over the simplex, f_k [C] the scores of component k
    minimize  log sum_k exp(s_k + t . f_k) + g*(-t)            over tilts t [C]

have the same optimal value, and r_k prop. to exp(s_k + t . f_k) (docs/derivations/mixtures.md). With one score the dual
has one variable and is solved by bisection. With more it is solved by an interior-point method (`averaging_interior`)
or, if the conjugate is neither a box nor a simplex, by updates of the class that adds most to the duality gap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....models.losses import Loss
from ....models.losses.conjugates import Box
from ....models.shares import shares_of
from ...classifiers.duals import joint_hinge
from .averaging_interior import Problem, interior_tilt


def best_responsibilities(
    logits: Tensor, scores: Tensor, targets: Tensor, loss: Loss, tilt: Tensor
) -> tuple[Tensor, Tensor]:
    """Responsibilities [N, T] and tilts [N, C], from logits s [N, T], scores [N, T, C], targets and tilts [N, C]."""
    tilt, rows = loss.feasible(tilt, targets).clone(), torch.arange(len(logits), device=logits.device)
    for _ in range(_MOST_TURNS[scores.shape[2] > 1]):
        s, f, y, t = logits[rows], scores[rows], targets[rows], tilt[rows]
        total = s + (f @ t.unsqueeze(2)).squeeze(2)
        mean = expected(shares_of(total)[0], f)
        apart = duality_gaps(loss, mean, t, y).sum(1) > _tolerance(s)
        if not apart.any():
            break
        rows, s, total, f, y, t, mean = (part[apart] for part in (rows, s, total, f, y, t, mean))
        problem = _problem(s, f, y, loss)
        if problem is not None:
            tilt[rows] = _all_at_once(problem, y, t, loss)
            break
        tilt[rows] = _turn_of_a_class(total, f, y, t, mean, loss)
    return shares_of(logits + (scores @ tilt.unsqueeze(2)).squeeze(2))[0], tilt


def _problem(s: Tensor, f: Tensor, y: Tensor, loss: Loss) -> Problem | None:
    """The problem for an interior-point method; None for one score, a tube or any other conjugate."""
    hinge, box = joint_hinge(loss), loss.box(y)
    if y.shape[1] == 1:
        return None
    if hinge is not None:
        own = (y > 0).to(y.dtype)
        box = Box(hinge.margin * own, torch.full_like(y, -torch.inf), 2 * hinge.strength * own)
    return None if box is None or box.tube else Problem.of(s, f, box, hinge is not None)


def _all_at_once(problem: Problem, y: Tensor, t: Tensor, loss: Loss) -> Tensor:
    """The optimal tilts [n, C]."""

    def gap(some: Tensor, mean: Tensor, t: Tensor) -> Tensor:
        return duality_gaps(loss, mean, loss.feasible(t, y[some]), y[some]).sum(1)

    return loss.feasible(interior_tilt(problem, t, gap, _tolerance(t)), y)


def _turn_of_a_class(total: Tensor, f: Tensor, y: Tensor, t: Tensor, mean: Tensor, loss: Loss) -> Tensor:
    """Update the tilt of one class of each row, from logits s + t . f [n, T] and mean scores [n, C]; tilts [n, C]."""
    chosen = duality_gaps(loss, mean, t, y).argmax(1, keepdim=True)
    before = t.gather(1, chosen)
    line = f.gather(2, chosen.unsqueeze(1).expand(-1, f.shape[1], -1)).squeeze(2)
    most_steps = 50 if t.shape[1] == 1 else _STEPS_OF_A_TURN
    return t.scatter(1, chosen, bisect(total - before * line, line, y.gather(1, chosen), loss, before, most_steps))


def bisect(s: Tensor, f: Tensor, y: Tensor, loss: Loss, tilt: Tensor, most_steps: int = 50) -> Tensor:
    """The t [n, 1] that minimize log sum_k exp(s_k + t f_k) + g*(-t), for s and f [n, T] and targets y [n, 1].

    Proximal Newton steps t <- argmin g*(-u) + m (u - t) + v (u - t)^2 / 2, with m the mean and v the variance of f
    under r(t), alternate with steps that halve the remaining interval.
    """
    rows, nothing = torch.arange(len(s), device=s.device), torch.zeros_like(tilt)
    ends = f.amax(1, keepdim=True), f.amin(1, keepdim=True)
    least, most = (loss.best_tilt(end, nothing, y) for end in ends)
    t = tilt.clamp(least, most)
    found = t.clone()
    for step in range(most_steps):
        r, _ = shares_of(s + t * f)
        mean = (r * f).sum(1, keepdim=True)
        found[rows] = t
        best = loss.best_tilt(mean, nothing[: len(t)], y)
        gap = loss.conjugate(t, y) - loss.conjugate(best, y) + (t - best) * mean
        apart = ((gap > _tolerance(s) / 4) & (most - least > 4 * torch.finfo(s.dtype).eps * t.abs())).squeeze(1)
        if not apart.any():
            break
        rows, s, f, y, t, r, mean, least, most = (part[apart] for part in (rows, s, f, y, t, r, mean, least, most))
        variance = (r * (f - mean).square()).sum(1, keepdim=True)
        moved = loss.best_tilt(mean - variance * t, variance, y)
        least, most = torch.where(moved > t, t, least), torch.where(moved < t, t, most)
        t = moved.clamp(least, most) if step % 2 == 0 else (least + most) / 2
    return found


def expected(responsibilities: Tensor, scores: Tensor) -> Tensor:
    """sum_k r_k f_k [N, C]."""
    return (responsibilities.unsqueeze(1) @ scores).squeeze(1)


def duality_gaps(loss: Loss, score: Tensor, tilt: Tensor, targets: Tensor) -> Tensor:
    """g(f) + g*(-t) + t f [N, C], or [N, 1] where classes meet; 0 where -t is a subgradient of g at f."""
    gap = loss.conjugate(tilt, targets) - loss.log_factor(score, targets)
    along = tilt * score
    return gap + (along if gap.shape == along.shape else along.sum(1, keepdim=True))


def _tolerance(like: Tensor) -> float:
    """The largest duality gap of a point, in nats."""
    return float(torch.finfo(like.dtype).eps ** 0.6)


_STEPS_OF_A_TURN = 16  # with several scores
_MOST_TURNS = (1, 200)  # updates of a class: with one score, with several
