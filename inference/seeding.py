"""Rows that are far apart in the eyes of a family: where descents and chains start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..models.likelihoods.base import Likelihood, row_chunks

__all__ = ["far_apart"]


def far_apart(likelihood: Likelihood, X: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows [count], each drawn with weight prop. to what the rows before it explain worse than it would itself.

    With a spherical Gaussian this is the seeding of k-means++ (Arthur & Vassilvitskii 2007).
    """
    like: dict[str, Any] = {"generator": generator, "device": X.device}
    width = len(likelihood.prior())
    own = torch.cat([_self_predictive(likelihood, X[rows]) for rows in row_chunks(X, width)])
    chosen = torch.randint(len(X), (1,), **like)
    best = torch.full_like(own, -torch.inf)
    while True:
        chi = likelihood.prior() + likelihood.statistics(X[chosen[-1:]])
        best = torch.maximum(best, likelihood.log_predictive(X, chi).squeeze(1))
        if len(chosen) == count:
            return chosen
        deficit = (own - best).clamp(min=0).double().cumsum(0)
        level = torch.rand(1, dtype=torch.float64, **like) * deficit[-1]
        chosen = torch.cat([chosen, torch.searchsorted(deficit, level).clamp(max=len(X) - 1)])


def _self_predictive(likelihood: Likelihood, rows: Tensor) -> Tensor:
    """log p(x_n | a component that holds x_n alone) [n]."""
    statistics = likelihood.statistics(rows)
    one = likelihood.prior() + statistics
    gain = likelihood.log_partition(one + statistics) - likelihood.log_partition(one)
    return gain + likelihood.log_base_measure(rows)
