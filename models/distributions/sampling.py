"""Draws from any torch distribution with an explicit generator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

__all__ = ["draw"]


def draw(distribution: Distribution, generator: torch.Generator) -> Tensor:
    """One draw of `distribution`, a function of the state of `generator` alone.

    `Distribution.sample` reads the global random stream of the device, so that stream is seeded from `generator` and
    restored: the user's own stream never moves.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    # not torch.manual_seed, which also formats a stack trace for devices that are not initialized
    stream = torch.default_generator
    if generator.device.type == "cuda":
        stream = torch.cuda.default_generators[generator.device.index or 0]
    kept = stream.get_state()
    try:
        stream.manual_seed(seed)
        return distribution.sample()
    finally:
        stream.set_state(kept)
