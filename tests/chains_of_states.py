"""Log weights of Markov chains of hidden states, of several kinds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

LENGTHS = [4, 1, 3, 2]
TABLES = pytest.mark.parametrize("kind", ["dense", "banned", "dead end", "sub-normalized", "huge"])


def chain(kind: str = "dense", K: int = 3, lengths: list[int] = LENGTHS, seed: int = 0) -> tuple[Tensor, ...]:
    """log start [K], log transition [K, K] and log emission [N, K]."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (K,), (K, K), (sum(lengths), K)
    start, transition, emission = (2 * torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    if kind == "banned":
        start[1] = transition[0, 0] = transition[1, 2] = transition[2, 1] = emission[2, 0] = -math.inf
    elif kind == "dead end":  # no step leaves the last state, and a sequence of one row is in it
        transition[2] = emission[4, :2] = -math.inf
    elif kind == "sub-normalized":
        start, transition = start.log_softmax(0) - 3, transition.log_softmax(1) - 5
    elif kind == "huge":  # their exponentials overflow
        start, transition, emission = start + 800, transition + 900, emission - 1e5
    return start, transition, emission
