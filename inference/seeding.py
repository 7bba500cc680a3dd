"""Rows that are far apart in the eyes of a family: where descents and chains start."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.distributions.sampling import uniforms
from ..models.likelihoods import ExponentialFamily


def far_apart(
    likelihood: ExponentialFamily,
    X: Tensor,
    count: int,
    generator: torch.Generator,
    weights: Tensor | None = None,
) -> Tensor:
    """Rows [count] of X [N, D], each drawn with weight prop. to what the rows before it explain worse than it would.

    A row counts `weights` [N] times, None: once. With a spherical Gaussian this is the seeding of k-means++ (Arthur &
    Vassilvitskii 2007).
    """
    own = likelihood.log_repeat(X)
    if weights is None:
        chosen = torch.randint(len(X), (1,), generator=generator, device=X.device)
    else:
        chosen = draw_rows(weights, 1, generator)
    best = torch.full_like(own, -torch.inf)
    while True:
        row = X[chosen[-1:]]
        chi = likelihood.prior() + likelihood.summed_statistics(row, torch.zeros_like(chosen[:1]), 1)
        best = torch.maximum(best, likelihood.log_predictive(X, chi).squeeze(1))
        if len(chosen) == count:
            return chosen
        deficit = (own - best).clamp(min=0).double()
        deficit = (deficit if weights is None else deficit * weights).cumsum(0)
        level = uniforms((1,), generator) * deficit[-1]
        chosen = torch.cat([chosen, torch.searchsorted(deficit, level).clamp(max=len(X) - 1)])


def draw_rows(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Indices [count] of rows, each drawn on its own with weight prop. to `weights` [N]."""
    ends = weights.double().cumsum(0)
    levels = uniforms((count,), generator).to(ends) * ends[-1]
    return torch.searchsorted(ends, levels).clamp(max=len(weights) - 1)
