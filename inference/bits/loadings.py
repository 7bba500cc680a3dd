"""The loadings of latent features, for every backend: a Gaussian regression of the columns of X on the features.

    w_.d ~ N(A_d^-1 B_d, A_d^-1),   A_d = p_d I + sum_n a_nd E[z_n z_n^T],   B_d = sum_n b_nd E z_n

with the pseudo-observations (a, b) of the likelihood. Columns with the same precisions share one matrix: the
linear-Gaussian likelihood without missing entries needs a single one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Gamma

from ...models.distributions.sampling import normals
from ...models.latent_features import FeatureData
from ...models.likelihoods import LinearLikelihood
from ...models.linalg import safe_cholesky
from ...models.losses import PseudoObservation
from ...models.priors import Hyper
from ..distributed.collectives import all_sums


@dataclass(frozen=True)
class Loadings:
    """Gaussians of the loadings [K, D], independent between columns."""

    mean: Tensor  # [K, D]
    precision_tril: Tensor  # [U, K, K], Cholesky factors of the U different A_d
    which: Tensor  # [D], index of each column's factor

    def draw(self, generator: torch.Generator) -> Tensor:
        """One draw [K, D]: mean + L^-T e."""
        noise = normals(tuple(self.mean.shape), generator, self.mean)
        return self.mean + _by_column(_solve_transposed, noise, self.precision_tril, self.which)

    def covariance(self) -> Tensor:
        """A_u^-1 [U, K, K]."""
        return torch.cholesky_inverse(self.precision_tril)

    def squares(self) -> Tensor:
        """E sum_k w_kd^2 [D]."""
        trace = self.covariance().diagonal(dim1=-2, dim2=-1).sum(-1)
        return self.mean.square().sum(0) + trace[self.which]


class Sums(NamedTuple):
    """The sums over rows, of features and entries, that the loadings depend on."""

    linear: Tensor  # [K, D], sum_n b_nd E z_n
    gram: Tensor  # [K, K], sum_n r_n E[z_n z_n^T]; or [D, K, K], sum_n a_nd E[z_n z_n^T]
    counts: Tensor  # [K] float64, sum_n r_n E z_n
    precision: Tensor | None = None  # [D], a_d of columns that share the gram; None: each has its own
    squares: Tensor | None = None  # [D] float64, sum_n r_n (b_nd / a_d)^2 where they share it

    def only(self, columns: Tensor) -> Sums:
        """The sums of some features, from their indices [K']."""
        gram = self.gram[..., columns, :][..., columns]
        return self._replace(linear=self.linear[columns], gram=gram, counts=self.counts[columns])


def sum_rows(
    features: Tensor, data: FeatureData, observed: PseudoObservation, scale: float = 1.0, *, each: bool = False
) -> Sums:
    """The sums, times `scale`, for (expected) features [N, K] and pseudo-observations of the entries.

    `each` says that rows have precisions of their own, which a single row does not show.
    """
    once = data.weights is None and data.observed is None
    shift = observed.shift if once else data.counted * observed.shift
    own = features.T @ shift, count_members(features, data)
    if not each and len(observed.precision) == 1 and data.observed is None:
        counted = features if once else data.row_weights * features
        gram = features.T @ counted
        gram.diagonal().copy_(counted.sum(0))  # z^2 = z
        pairs = zip(shift.split(_ROWS), observed.shift.split(_ROWS), strict=True)
        squares = torch.stack([(one * two).sum(0, dtype=torch.float64) for one, two in pairs]).sum(0)
        linear, counts, gram, squares = all_sums(*own, gram, squares)
        squares = squares / observed.precision[0].double().square()
        return Sums(linear * scale, gram * scale, counts * scale, observed.precision[0], squares * scale)
    weight, spread = data.counted * observed.precision.expand_as(data.X), features * (1 - features)
    # [D, K, K] column by column: arrays of N x K numbers stay in the cache
    matrices = torch.stack([features.T @ (column.unsqueeze(1) * features) for column in weight.T])
    matrices.diagonal(dim1=-2, dim2=-1).add_(weight.T @ spread)
    linear, counts, matrices = all_sums(*own, matrices)
    return Sums(linear * scale, matrices * scale, counts * scale)


def count_members(features: Tensor, data: FeatureData) -> Tensor:
    """Expected numbers [K] float64 of the rows of this rank with each feature, from features [N, K]."""
    counted = features if data.weights is None else data.row_weights * features
    return counted.sum(0, dtype=torch.float64)


def regress(
    features: Tensor, data: FeatureData, observed: PseudoObservation, prior_precision: Tensor, scale: float = 1.0
) -> Loadings:
    """The loadings given the (expected) features.

    Parameters
    ----------
    features : [N, K], bits, or probabilities of independent bits
    observed : precision [1, D] or [N, D] and shift [N, D] of the entries
    prior_precision : p [D]
    scale : rows in all for each row here, in a stochastic step
    """
    return solve_loadings(sum_rows(features, data, observed, scale), prior_precision)


def precision_posterior(
    likelihood: LinearLikelihood, seen: dict[str, tuple[Tensor, Tensor]], like: Tensor
) -> dict[str, Gamma]:
    """The gamma posterior of each hyperparameter [] with a gamma prior; `seen` is added to shape and rate."""
    laws = likelihood.hyperpriors(like.new_zeros((), dtype=torch.float64)).items()
    return {
        name: Gamma(law.concentration + seen[name][0], law.rate + seen[name][1], validate_args=False)
        for name, law in laws
        if law is not None
    }


def draw_precisions(laws: dict[str, Gamma], generator: torch.Generator) -> Hyper:
    """One draw [] of each hyperparameter."""
    return {
        name: torch._standard_gamma(law.concentration, generator=generator) / law.rate for name, law in laws.items()
    }


def log_bits(counts: Tensor, number: int, probabilities: Tensor) -> Tensor:
    """log p [] of bits in `number` rows, `counts` [K] of which have each feature, given their probabilities [K]."""
    counts = counts.to(probabilities)
    return (torch.xlogy(counts, probabilities) + (number - counts) * torch.log1p(-probabilities)).sum()


def solve_loadings(sums: Sums, prior_precision: Tensor) -> Loadings:
    """The loadings of these sums, with prior precisions p [D]."""
    prior = prior_precision.to(sums.linear)
    if sums.precision is not None:
        pairs, which = torch.unique(torch.stack([prior, sums.precision]), dim=1, return_inverse=True)
        matrices = pairs[1].view(-1, 1, 1) * sums.gram
    else:
        pairs, which = prior.unsqueeze(0), torch.arange(len(prior), device=prior.device)
        matrices = sums.gram.clone()
    matrices.diagonal(dim1=-2, dim2=-1).add_(pairs[0].unsqueeze(1))
    tril = safe_cholesky(matrices)
    return Loadings(solve_columns(tril, which, sums.linear), tril, which)


def solve_columns(tril: Tensor, which: Tensor, linear: Tensor) -> Tensor:
    """A_d^-1 B_d [K, D] for linear terms B [K, D]; A_d has the Cholesky factor number `which` [D] in tril [U, K, K]."""
    return _by_column(torch.cholesky_solve, linear, tril, which)


def _solve_transposed(values: Tensor, tril: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(tril.mT, values, upper=True)


def _by_column(solve: Callable[[Tensor, Tensor], Tensor], values: Tensor, tril: Tensor, which: Tensor) -> Tensor:
    """solve(values, factor) [K, D] for each column of values [K, D], with its factor in tril [U, K, K]."""
    if len(tril) == 1:
        return solve(values, tril[0])
    if len(tril) == values.shape[1]:  # each column has its own
        return solve(values.T.unsqueeze(-1), tril[which]).squeeze(-1).T.contiguous()
    solved = torch.empty_like(values)
    for index, factor in enumerate(tril):
        own = which == index
        solved[:, own] = solve(values[:, own], factor)
    return solved


_ROWS = 256  # whose products stay in a cache
