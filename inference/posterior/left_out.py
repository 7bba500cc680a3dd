"""Leave-one-out scores of a mixture of classifiers whose posterior is a point, without fitting again."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.data import Data
from ...models.isvm import InfiniteSVM
from ..classifiers.ridge import ridges_of_owners
from ..classifiers.scored import own_scores


def left_out_scores(model: InfiniteSVM, data: Data, weights: Tensor, fitted: Tensor, found: Tensor) -> Tensor:
    """Scores [N, C] of rows in the components `found` [N], with classifiers to which the row itself did not contribute.

    The loss is replaced by its parabola at the present score f_n, of precision p_n and centre t_n, so that

        f_-n = f_n - h_n / (1 - h_n) (t_n - f_n),     h_n = p_n a_n^T A^-1 a_n

    with A the precision of the classifier's Gaussian. It is exact for a squared loss (Allen's PRESS, 1974). Only rows
    that were `fitted` [N] in the same component have contributed. Of a row of weight w, one part in w is left out.
    """
    scores = own_scores(data.features, weights, found)
    seen = model.loss.majorize(scores, data.targets)
    times = scores.new_ones(()) if data.weights is None else data.weights.to(scores).unsqueeze(1)
    precision, shift = (times * part.expand_as(scores) for part in seen)
    leverage = torch.zeros_like(scores)
    for k in range(len(weights)):
        members = torch.nonzero(fitted == k).squeeze(1)
        own = members[found[members] == k]
        for law in ridges_of_owners(data.features, precision, shift, [members], model.weight_scale):
            leverage[own] = seen.precision.expand_as(scores)[own] * law.score_variance(data.features[own]).squeeze(1)
    pull = seen.shift - seen.precision * scores  # p (t - f)
    return scores - (leverage / (1 - leverage).clamp(min=_LEAST)) * pull / seen.precision.clamp(min=_LEAST)


_LEAST = 1e-6
