"""Leave-one-out scores of a mixture of classifiers whose posterior is a point, without fitting again."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.data import Data
from ...models.isvm import InfiniteSVM
from ..classifiers.duals import solve
from ..classifiers.ridge import ridges_of_owners
from ..classifiers.scored import own_scores


def left_out_scores(model: InfiniteSVM, data: Data, weights: Tensor, fitted: Tensor) -> Tensor:
    """Scores [N, C] of rows in the components `fitted` [N], by classifiers to which the row itself did not contribute.

    Of a row of weight w, one part in w is left out. A loss that is straight between kinks, such as
    `EpsilonInsensitive`, is fitted again without each row at a kink; see `_with_kinks`. Any other loss is replaced by
    its parabola at the present score f_n, of precision p_n and centre t_n, so that

        f_-n = f_n - h_n / (1 - h_n) (t_n - f_n),     h_n = p_n a_n^T A^-1 a_n

    with A the precision of the classifier's Gaussian. It is exact for a squared loss (Allen's PRESS, 1974).
    """
    scores, box = own_scores(data.features, weights, fitted), model.loss.box(data.targets)
    if box is not None and not box.curvature:
        return _with_kinks(model, data, scores, fitted)
    seen = model.loss.majorize(scores, data.targets)
    times = scores.new_ones(()) if data.weights is None else data.weights.to(scores).unsqueeze(1)
    precision, shift = (times * part.expand_as(scores) for part in seen)
    leverage = torch.zeros_like(scores)
    for k in range(len(weights)):
        own = torch.nonzero(fitted == k).squeeze(1)
        for law in ridges_of_owners(data.features, precision, shift, [own], model.weight_scale):
            leverage[own] = seen.precision.expand_as(scores)[own] * law.score_variance(data.features[own]).squeeze(1)
    pull = seen.shift - seen.precision * scores  # p (t - f)
    return scores - (leverage / (1 - leverage).clamp(min=_LEAST)) * pull / seen.precision.clamp(min=_LEAST)


def _with_kinks(model: InfiniteSVM, data: Data, scores: Tensor, fitted: Tensor) -> Tensor:
    """`left_out_scores` for a loss with kinks, from the tilts of its dual and fits without a row.

    Without a row that has no tilt the classifier is the same. Rows whose tilts are inside their intervals hold it at
    kinks. If these fits would take more than 200,000 rows in all, only rows at kinks are left out; if these do too,
    none is: the classifier of so many rows hardly depends on one.
    """
    found, times = scores.clone(), torch.ones_like(scores[:, 0]) if data.weights is None else data.weights.to(scores)
    for k in fitted.unique():
        own = torch.nonzero(fitted == k).squeeze(1)
        features, targets, size = data.features[own], data.targets[own], times[own]
        tilt = solve(features, targets, model.loss, model.weight_scale, row_weights=size, tolerance=_GAP).tilt
        box, share = model.loss.box(targets), tilt / size.unsqueeze(1)
        assert box is not None
        room = torch.minimum(share - box.lower, box.upper - share) / (box.upper - box.lower)
        supports, inside = (tilt != 0).any(1), ((tilt != 0) & (room > _ROOM)).any(1)
        left_out = [torch.nonzero(chosen).flatten() for chosen in (supports, inside, torch.zeros_like(inside))]
        for n in next(chosen for chosen in left_out if len(chosen) * len(own) <= _MOST).tolist():
            less = size.clone()
            less[n] -= 1
            kept = less > 0
            rows = features[kept], targets[kept], model.loss, model.weight_scale
            without = solve(*rows, row_weights=less[kept], start=tilt[kept], tolerance=_GAP)
            found[own[n]] = features[n] @ without.weights
    return found


_GAP, _ROOM, _MOST = 1e-6, 1e-3, 200_000
_LEAST = 1e-6
