"""Elliptical slice sampling of vectors with a Gaussian prior and an arbitrary likelihood.

Source: Murray, Adams & MacKay (2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ...models import host
from ...models.distributions.sampling import normals, uniforms
from ...models.sums import ranks

LogLikelihood = Callable[[Tensor, Tensor], Tensor]


def elliptical_slice(
    values: Tensor, scale: float, log_likelihood: LogLikelihood, generator: torch.Generator, *, num_steps: int = 1
) -> Tensor:
    """Take steps for B independent vectors [B, ...] that keep the density N(0, scale^2 I) exp(log_likelihood).

    Parameters
    ----------
    log_likelihood : function (values [R, M, ...], which [M]) -> [R, M] float64 of R values of each of the M vectors
        `which`
    """
    for _ in range(num_steps if values.numel() else 0):
        values = _step(values, scale, log_likelihood, generator)
    return values


def _step(values: Tensor, scale: float, log_likelihood: LogLikelihood, generator: torch.Generator) -> Tensor:
    """Propose points on the ellipse through each value and a prior draw; the bracket shrinks until acceptance.

    The likelihood decides at which proposal to stop, but not which angles are proposed. So where each evaluation has to
    wait, for a GPU or for other ranks, several proposals are evaluated at once and the first acceptable one is taken.
    """
    tries = 1 if host.on_cpu(values) and ranks() is None else _TRIES
    waiting = torch.arange(len(values), device=values.device)
    other = scale * normals(tuple(values.shape), generator, values)
    height, turn = uniforms((2, len(values)), generator)
    log_height, moved, angle = torch.log1p(-height), values.clone(), 2 * math.pi * turn
    arc, level = _Arc(angle - 2 * math.pi, angle, angle), None
    for _ in range(MOST_SHRINKS // tries):
        arcs = list(accumulate(range(tries - 1), lambda last, _: last.shrunk(generator), initial=arc))
        at = torch.stack([each.angle for each in arcs]).to(values).view(tries, -1, *[1] * (values.ndim - 1))
        proposals = values[waiting] * at.cos() + other[waiting] * at.sin()  # [R, M, ...]
        if level is None:
            found = log_likelihood(torch.cat([values.unsqueeze(0), proposals]), waiting)
            level, found = found[0] + log_height, found[1:]
        else:
            found = log_likelihood(proposals, waiting)
        accepted = found >= level[waiting]
        taken = proposals[accepted.long().argmax(0), torch.arange(len(waiting), device=values.device)]
        is_open = ~accepted.any(0)
        moved[waiting] = torch.where(is_open.view(at.shape[1:]), moved[waiting], taken)
        left = torch.nonzero(is_open).squeeze(1)
        if not len(left):
            break
        waiting, arc = waiting[left], _Arc(*(part[left] for part in arcs[-1])).shrunk(generator)
    return moved


class _Arc(NamedTuple):
    """The bracket of each of M angles, and the angle drawn from it."""

    low: Tensor
    high: Tensor
    angle: Tensor

    def shrunk(self, generator: torch.Generator) -> _Arc:
        """The bracket after `angle` was rejected, with a new draw."""
        below = self.angle < 0
        low, high = torch.where(below, self.angle, self.low), torch.where(below, self.high, self.angle)
        return _Arc(low, high, low + (high - low) * uniforms((len(low),), generator))


MOST_SHRINKS = 100  # after which the bracket has no width left
_TRIES = 4
