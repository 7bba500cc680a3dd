"""The distance between a mixture and data: the maximum mean discrepancy (MMD), and a permutation test.

    MMD^2 = |mu_hat - sum_j pi_j mu_j|^2 = sum_nm r_n r_m k(x_n, x_m) - 2 R^T pi + pi^T S pi,     r_n = 1 / N

The first sum includes the pairs n = m, which make MMD^2 too large on average; without them it is unbiased and may be
negative. If there is no difference, E MMD^2 = (E k(x, x) - |mu|^2) / N, so that it shrinks as rows are added.

Source: Gretton, Borgwardt, Rasch, Schoelkopf & Smola (2012); docs/derivations/hilbert-embedding, "The quadratic
program".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...models.base import Model
from ...models.domains import SEED, Whole, read
from ...models.host import require_room
from ...models.likelihoods import Likelihood, Parameters
from ...models.sparse import Rows
from ..structures import Draw
from .atoms import Predictive
from .fourier_kernel import default_kernel
from .mean_kernels import MeanKernel, dense

__all__ = ["MMD", "goodness_of_fit", "permutation_p_value", "squared_mmd"]


class MMD(NamedTuple):
    """The distance of a posterior's predictive distribution from data, in the space of a kernel."""

    squared: float  # MMD^2, at least 0
    unbiased: float  # without the expected contribution of sampling the rows
    p_value: float  # for no difference


def squared_mmd(
    rkhs: MeanKernel, family: Likelihood, parameters: Parameters, weights: Tensor, X: Rows
) -> tuple[float, float]:
    """MMD^2 between a mixture and rows, including the pairs of a row with itself, and excluding them (unbiased).

    Parameters
    ----------
    rkhs : a resolved kernel
    family, parameters, weights : resolved family, parameters [T, ...] and weights [T] of the components
    X : rows [N, D], N >= 2
    """
    weights, N = weights.double(), len(X)
    model = weights @ rkhs.inner(family, parameters) @ weights
    both = rkhs.cross(family, parameters, X).mean(0) @ weights
    total = rkhs.quadratic_form(X, torch.ones(N, 1, dtype=torch.float64, device=X.device)).squeeze(0)
    without = (total - rkhs.diagonal(X).sum()) / (N * (N - 1))
    squared = float(total / N**2 - 2 * both + model)
    return max(squared, 0.0), float(without - 2 * both + model)


def permutation_p_value(
    rkhs: MeanKernel, X: Rows, others: Rows, num_permutations: int, generator: torch.Generator
) -> float:
    """Probability, if rows [N, D] and [M, D] come from one distribution, of an MMD^2 at least as large between them.

    It is (1 + number of permutations of the pooled rows that are as far apart) / (1 + `num_permutations`), which is
    never too small, P(p <= t) <= t for every t, if the kernel treats all pooled rows alike: one whose bandwidth is that
    of X alone finds differences in small samples where there are none.
    """
    pooled, N, M = torch.cat([dense(X), dense(others)]), len(X), len(others)
    signs = torch.cat([pooled.new_full((N,), 1 / N), pooled.new_full((M,), -1 / M)])
    keys = torch.rand(num_permutations, N + M, generator=generator, dtype=torch.float32, device=pooled.device)
    columns = torch.cat([signs.unsqueeze(0), signs[keys.argsort(1)]]).T
    found = rkhs.quadratic_form(pooled, columns)
    as_far = found[1:] >= found[0] - 1e-12 * found[0].abs()  # equality up to rounding counts
    return (1 + int(as_far.sum())) / (1 + num_permutations)


def goodness_of_fit(
    model: Model,
    samples: Draw,
    X: Rows,
    *,
    rkhs: MeanKernel | None = None,
    num_draws: int | None = None,
    num_permutations: int = 999,
    seed: int = 0,
) -> MMD:
    """MMD between the predictive distribution of a posterior's samples [S, ...] and rows X [N, D].

    The arguments are those of `PartitionPosterior.mmd`.
    """
    num_permutations = read("num_permutations", num_permutations, Whole(1))
    num_draws = read("num_draws", num_draws, Whole(2), optional=True) or min(len(X), _MOST_ROWS)
    require_room("num_draws", num_draws, 8 * num_draws * X.shape[1], X.device)
    generator = torch.Generator(X.device).manual_seed(read("seed", seed, SEED))
    if len(X) < 2:
        raise ValueError(f"X has {len(X)} row; expected at least 2, or there is no distance between rows.")
    num_pooled = num_draws + min(len(X), _MOST_ROWS)
    require_room("num_permutations", num_permutations, 16 * num_permutations * num_pooled, X.device)
    predictive = Predictive.of(model, samples)
    distance = resolved_kernel(rkhs, model.likelihood, X)
    parameters, weights = predictive.components(_MOST_COMPONENTS, generator)
    squared, unbiased = squared_mmd(distance, model.likelihood, parameters, weights, X)
    order = torch.randperm(len(X), generator=generator, device=X.device)
    tested = X[order[:_MOST_ROWS]]
    totals = tested.sum(-1)[torch.arange(num_draws, device=X.device) % len(tested)]
    drawn, _ = predictive.rows(num_draws, totals, generator)
    pooled = torch.cat([dense(tested), dense(drawn)]).to(drawn)
    order = torch.randperm(len(pooled), generator=generator, device=X.device)
    both = resolved_kernel(rkhs, model.likelihood, pooled[order])  # symmetric in X and the draws, as the test requires
    return MMD(squared, unbiased, permutation_p_value(both, tested, drawn, num_permutations, generator))


def resolved_kernel(rkhs: MeanKernel | None, family: Likelihood, X: Rows, weights: Tensor | None = None) -> MeanKernel:
    """The kernel with its defaults from X [N, D], each row counted `weights` [N] times; None: that of the family.

    Raises
    ------
    ValueError             if it is no kernel.
    NotImplementedError    if it has no means under components of the family.
    """
    rkhs = default_kernel(family) if rkhs is None else rkhs
    if not isinstance(rkhs, MeanKernel):
        raise ValueError(f"rkhs is {rkhs!r}; expected a kernel such as RBFKernel(), or None.")
    rkhs.admit(family)
    if (X if isinstance(X, Tensor) else X.values).isnan().any():
        raise ValueError(
            "X has missing entries, between which a kernel has no value. Drop or impute such rows; Gibbs(), SVI() and "
            "SmallVariance() fit them."
        )
    return rkhs.checked("rkhs__").resolve(family, X, weights)


_MOST_COMPONENTS = 1000
_MOST_ROWS = 2000
