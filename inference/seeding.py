"""Distant rows, as measured by a likelihood: seeds of descents and chains."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.likelihoods import ExponentialFamily
from ..models.sparse import Rows
from .distributed.collectives import all_count
from .distributed.picked import draw_rows, own_of, sampled_rows, taken


def far_apart(
    likelihood: ExponentialFamily,
    X: Rows,
    count: int,
    generator: torch.Generator,
    weights: Tensor | None = None,
) -> Tensor:
    """Distant rows [count, D] of X [N, D], each drawn in proportion to what a component of its own would gain.

    A row counts `weights` [N] times, None: once. With a spherical Gaussian this is the seeding of k-means++ (Arthur &
    Vassilvitskii 2007). If there are more than `MOST_ROWS` rows, a random sample of that size is used.
    """
    if all_count(len(X)) > MOST_ROWS:
        some = own_of(sampled_rows(len(X), MOST_ROWS, generator), len(X))
        X, weights = X[some], None if weights is None else weights[some]
    own = likelihood.log_repeat(X)
    if weights is None:
        chosen = torch.randint(all_count(len(X)), (1,), generator=generator, device=X.device)
    else:
        chosen = draw_rows(weights, 1, generator)
    best = torch.full_like(own, -torch.inf)
    while True:
        chi = likelihood.prior() + likelihood.statistics(taken(X, chosen[-1:]))
        best = torch.maximum(best, likelihood.log_predictive(X, chi).squeeze(1))
        if len(chosen) == count:
            return taken(X, chosen)
        deficit = (own - best).clamp(min=0).double()
        deficit = deficit if weights is None else deficit * weights
        chosen = torch.cat([chosen, draw_rows(deficit, 1, generator)])


def nearest(likelihood: ExponentialFamily, X: Rows, count: int, generator: torch.Generator) -> Tensor:
    """For each row of X [N, D], which of `count` distant rows explains it best: [N], 0..count-1."""
    seeds = likelihood.statistics(far_apart(likelihood, X, count, generator))
    return likelihood.log_predictive(X, likelihood.prior() + seeds).argmax(1)


MOST_ROWS = 100_000
