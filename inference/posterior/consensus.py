"""One partition for many: the minimizer of the posterior expected loss, by greedy search over partitions (SALSO).

With n_ij the numbers of rows in block i of a candidate A and block j of a draw B,

    loss(A, B) = sum_i F(A_i) + sum_j F(B_j) - 2 sum_ij F(n_ij),   F(m) = m log m / N (VI, in nats), m^2 / N^2 (Binder),

so that its mean over S draws costs O(N S) from the S tables, never N x N. A row that is in no block joins block b of a
candidate at the cost g(A_b) - (2/S) sum_s g(n^s_{b, z_sn}) with g(m) = F(m + 1) - F(m): rows move to their cheapest
block until none does, then whole blocks are destroyed and their rows placed anew.

References
----------
Dahl, Johnson & Mueller (2022), Search algorithms and loss functions for Bayesian clustering; Wade & Ghahramani (2018).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models.domains import SEED, OneOf, Whole, read
from .partition_losses import LOSSES

__all__ = ["consensus", "expected_losses"]


def consensus(
    assignments: Tensor, loss: str = "vi", *, num_draws: int = 200, num_runs: int = 8, seed: int = 0
) -> Tensor:
    """The partition [N] int64 of least expected loss found, given draws [S, N] of labels; blocks 0, 1, ... by size.

    It has at most two blocks more than a draw. Its expected loss over the draws that count is never above that of any
    of them: one run starts from the best.

    Parameters
    ----------
    loss : "vi" (variation of information) or "binder" (pairs put together or apart wrongly)
    num_draws : at most so many draws count, evenly spaced; fewer where they have many hundreds of blocks
    num_runs : further runs, each of which places the rows one after another in an order of its own
    seed : of these orders
    """
    num_draws, num_runs = read("num_draws", num_draws, Whole(1)), read("num_runs", num_runs, Whole(0))
    rng, draws = np.random.default_rng(read("seed", seed, SEED)), _spaced(assignments, num_draws)
    values = _values(read("loss", loss, OneOf(*LOSSES)), draws.shape[1])
    best = draws[_losses(draws, draws, values).argmin()]
    if len(draws) > 1 and best.size:
        best = _searched(rng, draws, best, values, num_runs)
    return torch.as_tensor(_by_size(best), device=assignments.device)


def expected_losses(candidates: Tensor, assignments: Tensor, loss: str = "vi") -> Tensor:
    """Means [C] over draws [S, N] of the loss of choosing each of the partitions [C, N]; float64."""
    values = _values(read("loss", loss, OneOf(*LOSSES)), assignments.shape[1])
    found = _losses(_compact(candidates), _compact(assignments), values)
    return torch.as_tensor(found, device=assignments.device)


def _searched(
    rng: np.random.Generator, draws: NDArray[Any], best: NDArray[Any], values: NDArray[Any], num_runs: int
) -> NDArray[Any]:
    """The best result of a run from the best draw and of `num_runs` other runs."""
    from ._numba_consensus import search  # compiles or loads machine code: only where it is needed

    labels, num_labels = np.ascontiguousarray(draws.T), int(draws.max()) + 1
    sizes = labels, num_labels, num_labels + 2
    runs = []
    for start in [best.astype(np.int64), *[np.full(len(best), -1)] * num_runs]:
        stream = rng.integers(1, 2**64, 1, dtype=np.uint64)
        runs.append(search(stream, start, *sizes, values, np.diff(values), _MOST_PASSES, _MOST_DESTROYED))
    found: NDArray[Any] = min(runs, key=lambda run: run[1])[0]  # among equals the first, from the best draw
    return found


def _losses(candidates: NDArray[Any], draws: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    from ._numba_consensus import shared_values

    shared = np.zeros(len(candidates))
    shared_values(candidates, draws, int(candidates.max()) + 1, int(draws.max()) + 1, values, shared)
    one, other = (np.array([values[np.bincount(row)].sum() for row in rows]) for rows in (candidates, draws))
    losses: NDArray[Any] = (one + other.mean() - 2 * shared).clip(min=0.0)
    return losses


def _values(loss: str, num_data: int) -> NDArray[Any]:
    """F [N + 2] for 0, 1, ... rows."""
    sizes = np.arange(num_data + 2.0)
    if loss == "binder":
        return sizes**2 / max(1, num_data) ** 2
    return sizes * np.log(sizes.clip(min=1.0)) / max(1, num_data)


def _spaced(assignments: Tensor, most: int) -> NDArray[Any]:
    """At most `most` of the draws [S, N], evenly spaced, and few enough for the tables of a search."""
    num_blocks = int(assignments.max()) + 1 if assignments.numel() else 1
    room = max(_FEWEST_DRAWS, _ROOM // (num_blocks * (num_blocks + 2)))
    number = min(len(assignments), most, room)
    chosen = torch.linspace(0, len(assignments) - 1, number, device="cpu").round().long()
    return _compact(assignments[chosen.to(assignments.device)])


def _compact(assignments: Tensor) -> NDArray[Any]:
    """The partitions [S, N] as int32, blocks numbered 0, 1, ... without gaps."""
    rows = assignments.cpu().numpy()
    return np.stack([np.unique(row, return_inverse=True)[1].reshape(-1) for row in rows]).astype(np.int32)


def _by_size(blocks: NDArray[Any]) -> NDArray[Any]:
    """The partition [N] with its blocks in decreasing order of size; on ties the earliest row comes first."""
    _, first, labels, sizes = np.unique(blocks, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(sizes), np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(sizes))
    found: NDArray[Any] = rank[labels.reshape(-1)]
    return found


_FEWEST_DRAWS, _ROOM = 10, 2**24  # the largest table of a search
_MOST_PASSES, _MOST_DESTROYED = 100, 10
