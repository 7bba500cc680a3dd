"""Costs of points under components, chunk by chunk, so that scores, costs and their minimum never leave the cache.

Q_n(k) = scale D(x_n, mu_k) - log phi(y_n | eta_k . a_n)                         (math/dp-mixtures, section 7)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from ...models.sparse import SparseRows, group_sums
from ..collectives import all_sum
from .problem import Problem


def nearest_components(problem: Problem, centers: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The cheapest component [N] of every point, and what it costs there [N]."""
    N = problem.num_data
    assignments = torch.empty(N, dtype=torch.int64, device=centers.device)
    cost = centers.new_empty(N)
    for rows, costs in _cost_chunks(problem, centers, weights):
        best = _argmin(costs)
        assignments[rows] = best
        torch.gather(costs, 1, best.unsqueeze(1), out=cost[rows].unsqueeze(1))
    return assignments, cost.add_(problem.base)


def all_costs(problem: Problem, centers: Tensor, weights: Tensor) -> Tensor:
    """Q_n(k) [K, N]: one contiguous row for each component."""
    result = centers.new_empty(len(centers), problem.num_data)
    for rows, costs in _cost_chunks(problem, centers, weights):
        torch.add(costs.T, problem.base[rows], out=result[:, rows])
    return result


def component_sums(
    X: Tensor | SparseRows, assignments: Tensor, num_components: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums [K, D] of the rows of every component, and numbers of rows [K], in double precision.

    A row counts `weights` [N] times; None: once.
    """
    counts = torch.bincount(assignments, weights, num_components).double()
    sums = X.new_zeros(num_components, X.shape[1], dtype=torch.float64)
    step = _chunk_rows(X, num_components) if X.is_cuda else _SUM_ROWS
    for start in range(0, len(X), step):
        chunk = slice(start, start + step)
        sums += _sums(_counted(X[chunk].double(), weights, chunk), assignments[chunk], num_components)
    return all_sum(sums), all_sum(counts)


def _counted(X: Any, weights: Tensor | None, rows: slice) -> Any:
    """Some rows, dense or sparse, times their weights."""
    if weights is None:
        return X
    return X.scale_rows(weights[rows]) if isinstance(X, SparseRows) else X * weights[rows].unsqueeze(1)


def _sums(X: Tensor | SparseRows, assignments: Tensor, num_components: int) -> Tensor:
    """A product of the [K, n] matrix of memberships with the rows; sparse on a CPU, where it is one pass over X."""
    if isinstance(X, SparseRows):
        return group_sums(X, assignments, num_components)
    if X.is_cuda:
        return torch.nn.functional.one_hot(assignments, num_components).to(X.dtype).T @ X
    if X.shape[1] == 1:  # building the sparse matrix would cost more
        return torch.bincount(assignments, weights=X.squeeze(1), minlength=num_components).unsqueeze(1)
    members = scipy.sparse.csc_array(
        (np.ones(len(X)), assignments.numpy(), np.arange(len(X) + 1)), shape=(num_components, len(X))
    )
    return torch.from_numpy(members @ X.numpy())


def _cost_chunks(problem: Problem, centers: Tensor, weights: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the rows, and their costs [n, K] without the base of the divergence. The next chunk overwrites them."""
    X, features, targets = problem.X, problem.data.features, problem.data.targets
    (K, P, C), N = weights.shape, len(X)
    slope, offset = problem.likelihood.divergence_terms(centers)
    slope, offset = (problem.scale * slope).T.contiguous(), problem.scale * offset
    stacked = weights.transpose(0, 1).reshape(P, K * C)
    step = _chunk_rows(X, K * (1 + C))
    buffer, scores = X.new_zeros(step, K), X.new_zeros(step, K * C)
    for start in range(0, N, step):
        rows = slice(start, min(N, start + step))
        costs, points = buffer[: rows.stop - start], X[rows]
        if isinstance(points, SparseRows):
            torch.sub(offset, points @ slope, out=costs)
        else:
            torch.addmm(offset, points, slope, alpha=-1, out=costs)
        if C:
            score = torch.mm(features[rows], stacked, out=scores[: rows.stop - start])
            costs -= problem.log_margin(score.view(-1, K, C), targets[rows].unsqueeze(1))
        yield rows, costs


def _argmin(costs: Tensor) -> Tensor:
    """Index [n] of the least entry of each row; numpy's argmin is vectorized on a CPU, torch's is not."""
    return costs.argmin(1) if costs.is_cuda else torch.from_numpy(costs.numpy().argmin(1))


def _chunk_rows(X: Tensor | SparseRows, width: int) -> int:
    """Rows for which `width` numbers each fit a core's cache, or fill a GPU."""
    return max(1, min(len(X), (_GPU_NUMBERS if X.is_cuda else _CACHE_NUMBERS) // max(1, width)))


_CACHE_NUMBERS = 2**17
_GPU_NUMBERS = 2**25
_SUM_ROWS = 2**14
