"""Costs of points under components, computed in chunks so that scores, costs and their minimum stay in the cache.

Q_n(k) = scale D(x_n, mu_k) - log phi(y_n | eta_k . a_n)                         (docs/derivations/mixtures, "M2DPM")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...models import host
from ...models.sparse import Rows, group_sums
from ..classifiers.scored import own_scores
from ..compiled.trusted import require_shape
from ..distributed.collectives import Later
from .problem import Problem


class Nearest(NamedTuple):
    """The cheapest component of every point, its cost, and the scores under it."""

    assignments: Tensor  # [N]
    cost: Tensor  # [N], cost of each point in its component
    scores: Tensor | None = None  # [N, C], scores in that component; None if they were not needed


class Savings(NamedTuple):
    """What each component would save the points, for points with a saving only."""

    points: Tensor  # [M], their numbers
    saved: Tensor  # [M, K]


def nearest_components(problem: Problem, centers: Tensor, weights: Tensor) -> Nearest:
    """The cheapest component of every point and its cost, from centres and classifiers [K, P, C] of the components.

    Losses are never negative. So if the nearest centre of a point is nearer than all others by more than the loss
    there, no other component is cheaper. On a CPU this settles nearly all points, from divergences in single precision
    and a bound of their rounding error. For the remaining points all costs are computed.
    """
    X = problem.X
    if not host.on_cpu(X) or X.is_sparse:
        return Nearest(*_cheapest(problem, centers, weights))
    assignments, lead, cost = _leaders(problem, X, centers)
    cost += problem.base
    decided, scores = lead > 0, None
    if weights.numel():
        scores = own_scores(problem.data.features, weights, assignments)
        loss = -problem.model.log_margin(scores, problem.data.targets)
        decided = lead > loss
        cost += loss
    others = torch.nonzero(~decided).squeeze(1)
    if len(others):
        part = problem.rows(others)
        best, cost[others] = _cheapest(part, centers, weights)
        assignments[others] = best
        if scores is not None:
            scores[others] = own_scores(part.data.features, weights, best)
    return Nearest(assignments, cost, scores)


def all_costs(problem: Problem, centers: Tensor, weights: Tensor) -> Tensor:
    """Q_n(k) [N, K]."""
    result = centers.new_empty(problem.num_data, len(centers))
    for rows, costs in _cost_chunks(problem, centers, weights):
        torch.add(costs, problem.base[rows].unsqueeze(1), out=result[rows])
    return result


def all_savings(problem: Problem, centers: Tensor, weights: Tensor, cost: Tensor) -> Savings:
    """r_n [q_n - Q_n(k)]_+: what each component would save the points, whose present costs are q [N].

    The next call for the same problem overwrites the result.
    """
    room, excess, saving = problem.room(len(centers)), (cost - problem.base).unsqueeze(1), list[Tensor]()
    first = 0
    for rows, costs in _cost_chunks(problem, centers, weights):
        saved = torch.sub(excess[rows], costs, out=costs).relu_()
        some = torch.nonzero(saved.amax(1)).squeeze(1)  # few rows: most points are nearest to their own centre
        own = torch.index_select(saved, 0, some, out=room[first : first + len(some)])
        if problem.data.weights is not None:
            own *= problem.data.weights[rows][some].to(own).unsqueeze(1)
        saving.append(some + rows.start)
        first += len(some)
    return Savings(torch.cat(saving), room[:first])


def component_sums(
    X: Rows, assignments: Tensor, num_components: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums [K, D] of the rows of every component, and numbers of rows [K], in double precision.

    A row counts `weights` [N] times; None: once.
    """
    return sums_later(X, assignments, num_components, weights)()


def sums_later(
    X: Rows, assignments: Tensor, num_components: int, weights: Tensor | None = None
) -> Callable[[], tuple[Tensor, Tensor]]:
    """A function that returns `component_sums`, [K, D] and [K]; among ranks it joins the next exchange."""
    sums = X.new_zeros(num_components, X.shape[1], dtype=torch.float64)
    counts = sums.new_zeros(num_components)
    if not host.on_cpu(X) or X.is_sparse:
        step = _SUM_ROWS if host.on_cpu(X) else _chunk_rows(X, num_components)
        for start in range(0, len(X), step):
            rows = slice(start, start + step)
            own = None if weights is None else weights[rows]
            more, members = _sums(X[rows].double(), assignments[rows], num_components, own)
            sums, counts = sums + more, counts + members
    else:
        from . import _numba_assignment

        require_shape("assignments", assignments, (len(X),))
        times = sums.new_ones(1) if weights is None else weights.double()
        arrays = X.contiguous(), times, assignments, sums, counts
        _numba_assignment.add_rows(*(array.numpy() for array in arrays))
    total, number = Later(sums), Later(counts)
    return lambda: (total(), number())


def _sums(X: Rows, assignments: Tensor, num_components: int, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums and numbers of rows, of sparse or dense rows; the dense ones without a wait of the host."""
    if X.is_sparse:
        X = X if weights is None else X.scale_rows(weights)
        return group_sums(X, assignments, num_components), torch.bincount(assignments, weights, num_components)
    members = (assignments.unsqueeze(1) == torch.arange(num_components, device=X.device)).to(X.dtype)
    members = members if weights is None else members * weights.unsqueeze(1)
    return members.T @ X, members.sum(0)


def _leaders(problem: Problem, X: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest centre [N] of every row, a lower bound [N] of its lead over other centres, and its divergence [N].

    The divergence is without its base. In single precision the error of o - x . s is at most (D + 8) u (|x| |s| + |o|),
    with u the rounding error of one addition. Underflow adds a little to that; after an overflow the lead is not
    positive.
    """
    from . import _numba_assignment

    (N, D), K = X.shape, len(centers)
    exact = _terms(problem, centers)
    slope, offset = (terms.float() for terms in exact)
    single = torch.float32
    nearest, lead, own = torch.empty(N, dtype=torch.int64), torch.empty(N, dtype=single), centers.new_empty(N)
    step = _chunk_rows(X, max(K, D) // 2)  # single precision needs half the memory
    buffer = torch.empty(K * step, dtype=single)
    for start in range(0, N, step):
        rows = slice(start, min(N, start + step))
        products = buffer[: K * (rows.stop - start)].view(K, -1)
        torch.mm(slope, X[rows].float().T, out=products)
        arrays = products, offset, nearest[rows], lead[rows]
        _numba_assignment.leaders(*(array.numpy() for array in arrays))
        scores = own_scores(X[rows], exact[0].unsqueeze(2), nearest[rows])
        torch.sub(exact[1][nearest[rows]], scores.squeeze(1), out=own[rows])
    limits, most = torch.finfo(torch.float32), slope.norm(dim=1).max()
    unit, least = (D + 8) * limits.eps, 2 * (D + 8) * limits.tiny
    rounding = problem.sizes * (unit * most + least) + (unit * offset.abs().max() + least * (1 + most))
    return nearest, lead - rounding, own


def _terms(problem: Problem, centers: Tensor) -> tuple[Tensor, Tensor]:
    """slope [K, D] and offset [K]: scale D(x, mu_k) without its base is offset - x . slope."""
    slope, offset = problem.likelihood.divergence_terms(centers)
    return problem.scale * slope, problem.scale * offset


def _cheapest(problem: Problem, centers: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """As `nearest_components`, from all costs of all points."""
    N = problem.num_data
    assignments = torch.empty(N, dtype=torch.int64, device=centers.device)
    cost = centers.new_empty(N)
    for rows, costs in _cost_chunks(problem, centers, weights):
        best = _argmin(costs)
        assignments[rows] = best
        torch.gather(costs, 1, best.unsqueeze(1), out=cost[rows].unsqueeze(1))
    return assignments, cost.add_(problem.base)


def _cost_chunks(problem: Problem, centers: Tensor, weights: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the rows with their costs [n, K], without the divergence's base; each overwrites the last."""
    X, features, targets = problem.X, problem.data.features, problem.data.targets
    (K, P, C), N = weights.shape, len(X)
    slope, offset = _terms(problem, centers)
    slope = slope.T.contiguous()
    stacked = weights.transpose(0, 1).reshape(P, K * C)
    step = _chunk_rows(X, K * (1 + C))
    buffer, scores = X.new_zeros(step, K), X.new_zeros(step, K * C)
    for start in range(0, N, step):
        rows = slice(start, min(N, start + step))
        costs, points = buffer[: rows.stop - start], X[rows]
        if points.is_sparse:
            torch.sub(offset, points @ slope, out=costs)
        else:
            torch.addmm(offset, points, slope, alpha=-1, out=costs)
        if C:
            score = torch.mm(features[rows], stacked, out=scores[: rows.stop - start])
            costs -= problem.model.log_margin(score.view(-1, K, C), targets[rows].unsqueeze(1))
        yield rows, costs


def _argmin(costs: Tensor) -> Tensor:
    """Index [n] of the least entry of each row; on a CPU by numpy, whose argmin is vectorized, unlike torch's."""
    return torch.from_numpy(costs.numpy().argmin(1)) if host.on_cpu(costs) else costs.argmin(1)


def _chunk_rows(X: Rows, width: int) -> int:
    """The number of rows for which arrays of `width` numbers per row fit a core's cache, or occupy a GPU."""
    return max(1, min(len(X), (_CACHE_NUMBERS if host.on_cpu(X) else _GPU_NUMBERS) // max(1, width)))


_CACHE_NUMBERS = 2**17
_GPU_NUMBERS = 2**25
_SUM_ROWS = 2**14
