"""Draws from any torch distribution with an explicit generator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

__all__ = ["draw"]


def draw(distribution: Distribution, generator: torch.Generator) -> Tensor:
    """One draw of `distribution`, a function of the state of `generator` alone.

    `Distribution.sample` reads the global random stream, so that stream is forked, seeded from `generator`, and
    restored: the user's own stream never moves.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    devices = [generator.device] if generator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        return distribution.sample()
