"""Linear scores of rows under the classifiers of components, as one matrix product for all backends."""

from __future__ import annotations

import torch
from torch import Tensor

from . import host


def scores(features: Tensor, weights: Tensor) -> Tensor:
    """f_nkc = sum_p a_np eta_kpc [N, K, C] of features [N, P] and weights [K, P, C], as one matrix product."""
    K, P, C = weights.shape
    return (features @ weights.transpose(0, 1).reshape(P, K * C)).view(len(features), K, C)


def own_scores(features: Tensor, weights: Tensor, assignments: Tensor) -> Tensor:
    """Scores [N, C] of rows [N, P] under the classifiers [K, P, C] of their own components [N]."""
    found = features.new_empty(len(features), weights.shape[2])
    rows_of_weights = weights.mT.contiguous()
    # chunks of rows that fit a core's cache, or fill a GPU
    step = max(1, (2**17 if host.on_cpu(features) else 2**25) // max(1, weights[0].numel()))
    for start in range(0, len(features), step):
        rows = slice(start, start + step)
        own = rows_of_weights.index_select(0, assignments[rows])
        torch.sum(own.mul_(features[rows].unsqueeze(1)), 2, out=found[rows])
    return found
