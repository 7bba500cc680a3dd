"""Statistics of pairs of points, which do not depend on numbering and distinguish partitions and features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..structures import Draw


def same_label(assignments: Tensor) -> Tensor:
    """Whether pairs of points share a component in each of the draws [S, N]; [S, P] bool."""
    one, other = some_pairs(assignments.shape[1], assignments.device)
    return assignments[:, one] == assignments[:, other]


def shared_features(features: Tensor) -> Tensor:
    """The number of features that pairs of rows share in each of the draws [S, N, K] of bits; [S, P]."""
    one, other = some_pairs(features.shape[1], features.device)
    return torch.stack([(draw[one] & draw[other]).sum(1) for draw in features])


def numbers_of(samples: Draw) -> Draw:
    """The entries that are one number in each draw, [S] each."""
    return {name: value for name, value in samples.items() if value.ndim == 1}


def weight_norms(samples: Draw) -> Tensor:
    """The length [S] float64 of the weights [S, K, C] of each draw."""
    return samples["weights"].double().square().sum((1, 2)).sqrt()


def some_pairs(number: int, device: torch.device) -> Tensor:
    """Pairs [2, P] of the numbers 0..number-1, the same in each call: all of them, or a thousand at random."""
    if number * (number - 1) // 2 <= _NUM_PAIRS:
        return torch.combinations(torch.arange(number, device=device)).T
    generator = torch.Generator(device).manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "device": device}
    one, step = torch.randint(number, (_NUM_PAIRS,), **options), torch.randint(1, number, (_NUM_PAIRS,), **options)
    return torch.stack([one, (one + step) % number])


_NUM_PAIRS = 1000
