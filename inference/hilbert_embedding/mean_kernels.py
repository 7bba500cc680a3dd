"""The interface of a positive definite kernel with means under the components of a likelihood.

    mu_j = E k(x, .),  x ~ f_j      inner: S_ij = <mu_i, mu_j>      cross: mu_j(x_n) = E k(x_n, x)

Kernel mean embeddings of a mixture, and distances between a mixture and data, follow from these two
(docs/derivations/hilbert-embedding, "The quadratic program"; Song, Zhang, Smola, Gretton & Schoelkopf 2008).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...models.config import Config
from ...models.likelihoods import Likelihood, Parameters
from ...models.likelihoods.base import column_variances, hyperparameter, or_one
from ...models.sparse import Rows
from ...models.sums import all_sum, row_chunks
from .mean_families import answers, column_probabilities, count_moments

__all__ = ["MeanKernel", "dense", "mean_over", "median_bandwidth", "symmetric"]


class MeanKernel(Config, ABC):
    """A kernel k whose means under components can be had; what a new kernel must define is abstract here.

    Results are in double precision, whatever the rows X [N, D] and the parameters [T, ...] are in.

    Attributes
    ----------
    nonnegative : whether k(x, x') >= 0 everywhere, which halves the bound of the truncation error
    """

    nonnegative: ClassVar[bool] = True

    def admit(self, family: Likelihood) -> None:
        """Raise NotImplementedError if the kernel has no means under components of the family."""

    def resolve(self, family: Likelihood, X: Rows, weights: Tensor | None = None) -> Self:
        """A copy in which every argument left as None is set from X [N, D], each row counted `weights` [N] times."""
        return self

    @abstractmethod
    def gram(self, X: Rows, others: Rows) -> Tensor:
        """k(x_n, x_m) [N, M]."""

    @abstractmethod
    def diagonal(self, X: Rows) -> Tensor:
        """k(x_n, x_n) [N]."""

    @abstractmethod
    def inner(self, family: Likelihood, parameters: Parameters) -> Tensor:
        """S_ij = E k(x, x') [T, T], x ~ f_i and x' ~ f_j independent."""

    @abstractmethod
    def cross(self, family: Likelihood, parameters: Parameters, X: Rows) -> Tensor:
        """E k(x_n, x) [N, T], x ~ f_j."""

    def quadratic_form(self, X: Rows, columns: Tensor) -> Tensor:
        """a^T G a [B] of the Gram matrix G of X [N, D] and each column a of [N, B]."""
        total = columns.new_zeros(columns.shape[1])
        for rows in row_chunks(X, len(X) + columns.shape[1]):
            total += ((self.gram(X[rows], X) @ columns) * columns[rows]).sum(0)
        return total


def dense(X: Rows) -> Tensor:
    """Rows [N, D] as a tensor in double precision."""
    return X.to_dense().double()


def mean_over(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean [...] over rows of values [N, ...], each counted `weights` [N] times; None: once."""
    if weights is None:
        weights = torch.ones(len(values), dtype=values.dtype, device=values.device)
    weights = weights.to(values)
    return all_sum(torch.tensordot(weights, values, 1)) / all_sum(weights.sum())


def median_bandwidth(value: Any, family: Likelihood, X: Rows, weights: Tensor | None) -> Tensor:
    """h [D] as given, or by the rule that `RBFKernel` states, from X [N, D], each row counted `weights` [N] times."""
    if value is None:
        in_own_units = answers(column_probabilities, family) or answers(count_moments, family)
        spread = torch.ones(X.shape[1], dtype=torch.float64, device=X.device)
        if not in_own_units:
            spread = or_one(column_variances(dense(X), weights)).sqrt()
        chosen = torch.linspace(0, len(X) - 1, min(len(X), _MOST_PAIRED), device=X.device).long()
        each = torch.ones_like(chosen) if weights is None else weights[chosen]
        value = spread * _median_distance(dense(X[chosen]) / spread, each.double())
    return hyperparameter("bandwidth", value, None, X, X.shape[1])


def _median_distance(X: Tensor, weights: Tensor) -> Tensor | float:
    """The median of |x_n - x_m| > 0 over pairs of rows [N, D], each counted w_n w_m times; 1 if there is none."""
    distances, order = torch.nn.functional.pdist(X).sort()
    first, second = torch.triu_indices(len(X), len(X), 1, device=X.device)[:, order]
    counted = (weights[first] * weights[second] * (distances > 0)).cumsum(0)
    if not len(counted) or counted[-1] == 0:
        return 1.0
    return distances[torch.searchsorted(counted, counted[-1:] / 2)]


def symmetric(matrix: Tensor) -> Tensor:
    """(A + A^T) / 2 [T, T], which removes the asymmetry of A [T, T] by rounding."""
    return (matrix + matrix.T) / 2


_MOST_PAIRED = 1000
