"""SVM duals that more than one backend solves: here that of Crammer and Singer, all classes of one component at once.

    maximize  l sum_nm A_nm - |eta|^2 / (2 nu^2)    over  A_nm >= 0 for m != y_n,  sum_m A_nm <= 2 c r_n
    eta_m = nu^2 sum_n x_n (1[m = y_n] sum_j A_nj - 1[m != y_n] A_nm)                (math/dp-mixtures, section 7)

with r_n the weight of a point (1 without), by accelerated projected gradient steps. Feasibility of a row of A does not
depend on the component that holds the point, so the variables of one pass start the next.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from ..models.losses import CrammerSinger, Loss, Masked
from .collectives import all_sum


@singledispatch
def joint_hinge(loss: Loss) -> CrammerSinger | None:
    """The hinge of all classes together that a loss is, or masks; None for another loss."""
    return None


joint_hinge.register(CrammerSinger, lambda loss: loss)
joint_hinge.register(Masked, lambda loss: joint_hinge(loss.loss))


def ascend(
    features: Tensor,
    targets: Tensor,
    dual: Tensor,
    loss: CrammerSinger,
    weight_scale: float,
    *,
    row_weights: Tensor | None = None,
    num_steps: int = 25,
    tolerance: float = 1e-3,
) -> tuple[Tensor, Tensor]:
    """Classifiers [P, L] and dual variables [n, L] after at most `num_steps` steps from `dual`, `row_weights` [n].

    Stops as soon as the duality gap is at most `tolerance` times the primal objective. Without points weights are 0.
    """
    correct = targets > 0
    box = 2 * loss.strength * (1.0 if row_weights is None else row_weights.to(dual).unsqueeze(1))
    step = 1 / (weight_scale**2 * targets.shape[1] * _largest_eigenvalue(features)).clamp(min=1e-30)
    ahead, momentum = dual, 1.0
    for index in range(num_steps):
        if index % _CHECK_EVERY == 0 and _gap(features, correct, dual, loss, weight_scale, row_weights) <= tolerance:
            break
        scores = features @ primal(features, correct, ahead, weight_scale)
        gradient = loss.margin + scores - scores[correct].unsqueeze(1)
        moved = _project(ahead + step * gradient, correct, box)
        # momentum that points downhill is dropped (O'Donoghue & Candes 2015)
        uphill = float(all_sum((gradient * (moved - dual)).sum())) >= 0
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2 if uphill else 1.0
        ahead = moved + (momentum - 1) / following * (moved - dual) if uphill else moved
        dual, momentum = moved, following
    return primal(features, correct, dual, weight_scale), dual


def _gap(
    features: Tensor,
    correct: Tensor,
    dual: Tensor,
    loss: CrammerSinger,
    weight_scale: float,
    row_weights: Tensor | None,
) -> float:
    """The duality gap, as a fraction of the primal objective."""
    weights = primal(features, correct, dual, weight_scale)
    scores = features @ weights
    worst = scores.masked_fill(correct, -torch.inf).amax(1)
    ridge = weights.square().sum() / (2 * weight_scale**2)
    slack = (loss.margin + worst - scores[correct]).relu()
    slack = slack if row_weights is None else slack * row_weights.to(slack)
    upper = ridge + all_sum(2 * loss.strength * slack.sum())
    lower = all_sum(loss.margin * dual.sum()) - ridge
    return float((upper - lower) / upper)


def primal(features: Tensor, correct: Tensor, dual: Tensor, weight_scale: float) -> Tensor:
    """Classifiers [P, L] from features [n, P] and dual variables [n, L], which are 0 at the correct classes [n, L]."""
    return weight_scale**2 * all_sum(features.T @ torch.where(correct, dual.sum(1, keepdim=True), -dual))


def _project(values: Tensor, correct: Tensor, total: Tensor | float) -> Tensor:
    """The nearest rows [n, L] with entries >= 0, 0 at the correct class, and a sum of at most `total` [n, 1]."""
    positive = values.masked_fill(correct, 0.0).relu()
    descending = positive.sort(1, descending=True).values
    excess = (descending.cumsum(1) - total) / torch.arange(1, values.shape[1] + 1).to(values)
    threshold = excess.amax(1, keepdim=True).clamp(min=0)
    return (positive - threshold).relu()


def _largest_eigenvalue(features: Tensor) -> Tensor:
    """Of the Gram matrix, []; on many machines the sum of each one's, which is not less."""
    if not len(features):
        return all_sum(features.new_zeros(()))
    wide = features.shape[0] < features.shape[1]
    gram = features @ features.T if wide else features.T @ features
    return all_sum(torch.linalg.eigvalsh(gram)[-1])


_CHECK_EVERY = 5
