"""Elliptical slice steps: what moves a vector with a Gaussian prior where its likelihood has no other structure.

Source: Murray, Adams & MacKay (2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...models import host
from ...models.distributions.sampling import normals, uniforms

LogLikelihood = Callable[[Tensor, Tensor], Tensor]


def elliptical_slice(
    values: Tensor, scale: float, log_likelihood: LogLikelihood, generator: torch.Generator, *, num_steps: int = 1
) -> Tensor:
    """Steps for each of B independent vectors [B, ...] of density N(0, scale^2 I) exp(log_likelihood), which it keeps.

    Parameters
    ----------
    log_likelihood : of some of the vectors: (values [M, ...], which they are [M]) -> [M] float64
    """
    for _ in range(num_steps if values.numel() else 0):
        values = _step(values, scale, log_likelihood, generator)
    return values


def _step(values: Tensor, scale: float, log_likelihood: LogLikelihood, generator: torch.Generator) -> Tensor:
    """A proposal on an ellipse through each value and a draw of the prior; its angle shrinks until it is accepted.

    Those that are accepted are left out at once, or on a GPU in every fourth round: the host waits to know them.
    """
    waiting = torch.arange(len(values), device=values.device)
    other = scale * normals(tuple(values.shape), generator, values)
    height, turn = uniforms((2, len(values)), generator)
    level = log_likelihood(values, waiting) + torch.log1p(-height)
    angle = 2 * math.pi * turn
    low, high, moved = angle - 2 * math.pi, angle.clone(), values.clone()
    is_open = torch.ones_like(waiting, dtype=torch.bool)
    for step in range(MOST_SHRINKS):
        at = angle[waiting].to(values).view(-1, *[1] * (values.ndim - 1))
        proposal = values[waiting] * at.cos() + other[waiting] * at.sin()
        accepted = is_open & (log_likelihood(proposal, waiting) >= level[waiting])
        moved[waiting] = torch.where(accepted.view(at.shape), proposal, moved[waiting])
        is_open = is_open & ~accepted
        if host.looks(values, step):
            left = torch.nonzero(is_open).squeeze(1)
            if not len(left):
                break
            waiting, is_open = waiting[left], is_open[left]
        below = angle[waiting] < 0
        low[waiting] = torch.where(below, angle[waiting], low[waiting])
        high[waiting] = torch.where(below, high[waiting], angle[waiting])
        angle[waiting] = low[waiting] + (high[waiting] - low[waiting]) * uniforms((len(waiting),), generator)
    return moved


MOST_SHRINKS = 100  # the bracket then has no width left
