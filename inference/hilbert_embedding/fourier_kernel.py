"""Random features of the RBF kernel: means under the components of any family, and time linear in the rows.

Source: Rahimi & Recht (2007); docs/derivations/hilbert-embedding, "The quadratic program".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...models.domains import AnyNumbers, Count, PositiveNumbers, Seed
from ...models.feature_maps.base import require_matrix
from ...models.host import require_room
from ...models.likelihoods import Likelihood, Parameters
from ...models.sparse import Rows
from ...models.sums import row_chunks
from .closed_kernels import QuadraticKernel, RBFKernel
from .mean_families import (
    answers,
    characteristic,
    column_probabilities,
    count_moments,
    gaussian_moments,
)
from .mean_kernels import MeanKernel, dense, median_bandwidth, symmetric

__all__ = ["FourierKernel", "default_kernel"]


def default_kernel(family: Likelihood) -> MeanKernel:
    """The likelihood's kernel with means in closed form, otherwise random features."""
    if answers(gaussian_moments, family) or answers(column_probabilities, family):
        return RBFKernel()
    return QuadraticKernel() if answers(count_moments, family) else FourierKernel()


@dataclass(eq=False)
class FourierKernel(MeanKernel):
    """Random features of `RBFKernel`, for any family: time and memory grow with the number of rows, not its square.

    k(x, x') = sum_m cos(w_m . (x - x')) / M,  w_m ~ N(0, diag(1 / h^2)): a kernel of its own, within about M^(-1/2) of
    the RBF kernel. Means are characteristic functions; of a family without one, averages over drawn rows.

    Parameters
    ----------
    bandwidth : h, as in `RBFKernel`
    num_frequencies : M
    num_draws : rows drawn from each component of a family that has no characteristic function
    seed : of the frequencies and those rows
    frequencies : [D, M]; None: drawn from the seed
    """

    bandwidth: PositiveNumbers = None
    num_frequencies: Count = 500
    num_draws: Count = 1000
    seed: Seed = 0
    frequencies: AnyNumbers = None

    nonnegative: ClassVar[bool] = False

    def admit(self, family: Likelihood) -> None:
        if family.given_totals:
            raise NotImplementedError(
                f"FourierKernel needs totals of multinomial rows, which {type(family).__name__}() leaves open: take "
                "QuadraticKernel(), or PoissonGamma() for such columns."
            )

    def resolve(self, family: Likelihood, X: Rows, weights: Tensor | None = None) -> Self:
        bandwidth, frequencies = median_bandwidth(self.bandwidth, family, X, weights), self.frequencies
        if frequencies is None:  # drawn on the CPU, so that every device has the same features
            M, numbers = self.num_frequencies, X.shape[1] + 2 * X.shape[0]
            require_room("num_frequencies", M, 8 * numbers * M, X.device)
            stream, shape = torch.Generator().manual_seed(self.seed), (X.shape[1], self.num_frequencies)
            drawn = torch.randn(shape, generator=stream, dtype=torch.float64).to(X.device)
            frequencies = drawn / bandwidth.double().unsqueeze(1)
        frequencies = torch.as_tensor(frequencies, dtype=torch.float64, device=X.device)
        require_matrix("frequencies", frequencies, X.shape[1])
        return self.replace(bandwidth=bandwidth, frequencies=frequencies)

    def features(self, X: Rows) -> Tensor:
        """(cos w_m . x, sin w_m . x) / M^(1/2), [N, 2 M]."""
        angles = dense(X) @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(self.frequencies.shape[1])

    def means(self, family: Likelihood, parameters: Parameters) -> Tensor:
        """E features(x) [T, 2 M] under each component."""
        if answers(gaussian_moments, family) or answers(column_probabilities, family):
            found = characteristic(family, parameters, self.frequencies)
            return torch.cat([found.real, found.imag], 1) / math.sqrt(self.frequencies.shape[1])
        generator = torch.Generator(self.frequencies.device).manual_seed(self.seed)
        num_components = len(next(iter(parameters.values())))
        none = self.frequencies.new_zeros(self.num_draws)
        drawn = []
        for index in range(num_components):
            own = {name: value[index].expand(self.num_draws, *value.shape[1:]) for name, value in parameters.items()}
            drawn.append(self.features(family.draw_rows(own, generator, none)).mean(0))
        return torch.stack(drawn)

    def gram(self, X: Rows, others: Rows) -> Tensor:
        return self.features(X) @ self.features(others).T

    def diagonal(self, X: Rows) -> Tensor:
        return torch.ones(len(X), dtype=torch.float64, device=X.device)

    def inner(self, family: Likelihood, parameters: Parameters) -> Tensor:
        means = self.means(family, parameters)
        return symmetric(means @ means.T)

    def cross(self, family: Likelihood, parameters: Parameters, X: Rows) -> Tensor:
        means = self.means(family, parameters)
        return torch.cat([self.features(X[rows]) @ means.T for rows in row_chunks(X, means.shape[1])])

    def quadratic_form(self, X: Rows, columns: Tensor) -> Tensor:
        sums = columns.new_zeros(2 * self.frequencies.shape[1], columns.shape[1])
        for rows in row_chunks(X, len(sums)):
            sums += self.features(X[rows]).T @ columns[rows]
        return sums.square().sum(0)
