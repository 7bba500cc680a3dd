"""One univariate slice step: what moves a number whose density has no sampler of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..distributions.sampling import uniforms


def slice_step(log_density: Callable[[Tensor], Tensor], value: Tensor, generator: torch.Generator) -> Tensor:
    """A step from `value` [] that leaves exp(log_density) on the real line invariant (Neal 2003): stepping out by 1,
    then shrinking towards the value."""
    height, place = uniforms((2,), generator)
    level = log_density(value) + torch.log1p(-height)
    low = value - place
    high = low + 1
    for _ in range(_MOST_STEPS):
        if log_density(low) <= level:
            break
        low = low - 1
    for _ in range(_MOST_STEPS):
        if log_density(high) <= level:
            break
        high = high + 1
    while True:
        proposal = low + (high - low) * uniforms((), generator)
        if log_density(proposal) > level or high - low < _NARROW:
            return proposal if high - low >= _NARROW else value
        low, high = (proposal, high) if proposal < value else (low, proposal)


_MOST_STEPS = 100
_NARROW = 1e-12
