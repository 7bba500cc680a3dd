"""Quadratic programs on the simplex, to a certified gap: accelerated projected gradients, then exact pivots.

    minimize F(pi) = pi^T Q pi / 2 - r^T pi    over pi >= 0, sum_j pi_j = 1,        Q [T, T] positive semidefinite

With g = Q pi - r, pi is optimal if g_j is equal for all pi_j > 0 and no other g_j is smaller. The gap pi^T g - min_j
g_j is at least F(pi) - F(pi*), and decides when to stop (docs/derivations/hilbert-embedding, "The quadratic program").
Gradient steps find the positive weights. Pivots then solve for these exactly, remove those that become negative and add
the one of smallest g_j, as in Lawson & Hanson's least squares. Neither raises F by more than rounding does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.linalg import safe_cholesky

__all__ = ["accelerate", "gap", "objective", "pivot", "project", "scale", "sweep"]


def sweep(quadratic: Tensor, linear: Tensor, weights: Tensor, enough: float = 0.0) -> Tensor:
    """Gradient steps and then pivots from pi [T], for Q [T, T] and r [T]; ends early at a gap of `enough`.

    >>> Q, r = torch.eye(3).double(), torch.tensor([1.0, 0.5, -1.0]).double()
    >>> sweep(Q, r, torch.full_like(r, 1 / 3))
    tensor([0.7500, 0.2500, 0.0000], dtype=torch.float64)
    """
    return pivot(quadratic, linear, accelerate(quadratic, linear, weights, enough), enough)


def objective(quadratic: Tensor, linear: Tensor, weights: Tensor) -> Tensor:
    """F(pi) [] of Q [T, T], r [T] and pi [T]."""
    return weights @ (quadratic @ weights) / 2 - linear @ weights


def gap(quadratic: Tensor, linear: Tensor, weights: Tensor) -> float:
    """pi^T g - min_j g_j of g = Q pi - r, from Q [T, T], r [T] and pi [T] on the simplex."""
    return _gap(quadratic @ weights - linear, weights)


def scale(quadratic: Tensor) -> float:
    """The largest entry of the diagonal of Q [T, T]: the unit of gaps."""
    return float(quadratic.diagonal().max())


def project(values: Tensor) -> Tensor:
    """The point of the simplex nearest to v [T]:  (v - theta)_+ with the theta that makes it sum to 1.

    >>> project(torch.tensor([0.9, 0.5, -3.0]))
    tensor([0.7000, 0.3000, 0.0000])
    """
    ordered = values.sort(descending=True).values
    ranks = torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    levels = (ordered.cumsum(0) - 1) / ranks
    found = (values - levels[(ordered > levels).sum() - 1]).clamp(min=0)
    return found / found.sum()  # corrects rounding


def accelerate(quadratic: Tensor, linear: Tensor, weights: Tensor, enough: float = 0.0, num_steps: int = 100) -> Tensor:
    """Projected gradient steps with momentum from pi [T]; a step that would raise F starts the momentum anew.

    Q [T, T] and r [T] as in `sweep`; O'Donoghue & Candes (2015), with their restart by function values.
    """
    length = 1 / quadratic.abs().sum(1).max().clamp(min=torch.finfo(linear.dtype).tiny)  # bounds eigenvalues
    product = quadratic @ weights
    ahead, product_ahead, momentum = weights, product, 1.0
    for _ in range(num_steps):
        moved = project(ahead - length * (product_ahead - linear))
        product_moved = quadratic @ moved
        rise = (moved - weights) @ ((product + product_moved) / 2 - linear)  # F(moved) - F(weights)
        if rise > 0 or not moved.isfinite().all():
            if momentum == 1.0:
                break  # rounding: a plain gradient step cannot raise F
            ahead, product_ahead, momentum = weights, product, 1.0
            continue
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        push = (momentum - 1) / following
        ahead, product_ahead = moved + push * (moved - weights), product_moved + push * (product_moved - product)
        weights, product, momentum = moved, product_moved, following
        if _gap(product - linear, weights) <= enough:
            break
    return weights


def pivot(quadratic: Tensor, linear: Tensor, weights: Tensor, enough: float = 0.0) -> Tensor:
    """Exact steps from pi [T] towards the optimum of the positive weights, which end where one becomes 0.

    If the optimum is reached, the weight of smallest g_j is added, until the gap is `enough`. Q [T, T] and r [T] are as
    in `sweep`.
    """
    inside = weights > 0
    for _ in range(3 * len(weights)):
        places = inside.nonzero().squeeze(1)
        target = _optimum(quadratic[places][:, places], linear[places])
        if target is None:
            break
        own = weights[places]
        falling = target <= 0
        if falling.any():
            ratios = torch.where(falling, own / (own - target).clamp(min=torch.finfo(own.dtype).tiny), torch.inf)
            step, first = ratios.min(0)
            moved = (own + step * (target - own)).clamp(min=0)
            moved[first] = 0.0
        else:
            moved = target
        candidate = torch.zeros_like(weights)
        candidate[places] = moved / moved.sum()
        gradient = quadratic @ candidate - linear
        rise = (candidate - weights) @ (gradient + quadratic @ weights - linear) / 2  # F(candidate) - F(weights)
        if not (rise <= 0 or _gap(gradient, candidate) < gap(quadratic, linear, weights)):  # progress is below rounding
            break
        weights = candidate
        if falling.any():
            inside[places[first]] = False
            continue
        entering = int(gradient.argmin())
        if _gap(gradient, weights) <= enough or inside[entering]:
            break
        inside[entering] = True
    return weights


def _optimum(quadratic: Tensor, linear: Tensor) -> Tensor | None:
    """The minimum [k] under sum_j pi_j = 1 alone, with any signs: Q pi = r - level; None if Q [k, k] gives none."""
    factor = safe_cholesky(quadratic, strict=False)
    both = torch.cholesky_solve(torch.stack([linear, torch.ones_like(linear)], 1), factor)
    free, ones = both.T
    found = free + (1 - free.sum()) / ones.sum() * ones
    return found if found.isfinite().all() else None


def _gap(gradient: Tensor, weights: Tensor) -> float:
    # differences from the minimum lose fewer digits
    return float(weights @ (gradient - gradient.min()))
