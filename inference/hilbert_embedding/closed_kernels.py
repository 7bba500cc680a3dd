"""Kernels with means in closed form: RBF for Gaussians and columns of counts, quadratic for counts.

Sources: docs/derivations/hilbert-embedding, "The quadratic program"; Song, Zhang, Smola, Gretton & Schoelkopf (2008).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ...models.domains import AnyNumbers, NonNegative, PositiveNumbers, shown
from ...models.likelihoods import Likelihood, Parameters
from ...models.sparse import Rows
from ...models.sums import row_chunks
from .mean_families import answers, column_probabilities, count_moments, gaussian_moments
from .mean_kernels import MeanKernel, dense, mean_over, median_bandwidth, symmetric

__all__ = ["QuadraticKernel", "RBFKernel"]


@dataclass(eq=False)
class RBFKernel(MeanKernel):
    r"""k(x, x') = exp(-sum_d (x_d - x'_d)^2 / (2 h_d^2)), with Gaussian components or independent columns of counts.

    With H = diag(h^2), S_ij = |H|^(1/2) / |H + C_i + C_j|^(1/2) exp(-(m_i - m_j)^T (H + C_i + C_j)^-1 (m_i - m_j) / 2)
    for Gaussians, prod_d p_id^T K_d p_jd for counts with probabilities p_jd [V] and K_d [V, V] the kernel of a column.

    Parameters
    ----------
    bandwidth : h, a number or [D]; None: the median distance of two rows (of at most 1,000, evenly spaced) that
        differ, with columns in units of their standard deviations; counts stay in their own units
    """

    bandwidth: PositiveNumbers = None

    def admit(self, family: Likelihood) -> None:
        if not (answers(gaussian_moments, family) or answers(column_probabilities, family)):
            raise NotImplementedError(
                f"RBFKernel has no closed form for {type(family).__name__}: take QuadraticKernel() or FourierKernel()."
            )

    def resolve(self, family: Likelihood, X: Rows, weights: Tensor | None = None) -> Self:
        return self.replace(bandwidth=median_bandwidth(self.bandwidth, family, X, weights))

    def gram(self, X: Rows, others: Rows) -> Tensor:
        width = self.bandwidth.double()
        return _near(dense(X) / width, dense(others) / width)

    def diagonal(self, X: Rows) -> Tensor:
        return torch.ones(len(X), dtype=torch.float64, device=X.device)

    def inner(self, family: Likelihood, parameters: Parameters) -> Tensor:
        if not answers(gaussian_moments, family):
            return self._inner_of_counts(column_probabilities(family, parameters))
        loc, covariance = gaussian_moments(family, parameters)
        parts = [
            self._overlap((loc[rows].unsqueeze(1) - loc).unsqueeze(-2), covariance[rows].unsqueeze(1) + covariance)
            for rows in row_chunks(loc, covariance.numel())
        ]
        return symmetric(torch.cat(parts).squeeze(-1))

    def cross(self, family: Likelihood, parameters: Parameters, X: Rows) -> Tensor:
        if not answers(gaussian_moments, family):
            return self._cross_of_counts(column_probabilities(family, parameters), X)
        loc, covariance = gaussian_moments(family, parameters)
        parts = [self._overlap(dense(X[rows]) - loc.unsqueeze(1), covariance) for rows in row_chunks(X, loc.numel())]
        return torch.cat(parts, 1).T

    def _overlap(self, differences: Tensor, covariance: Tensor) -> Tensor:
        """(2 pi)^(D/2) |H|^(1/2) N(difference; 0, H + covariance) [..., n] of differences [..., n, D].

        The covariance is [..., D], a diagonal, or [..., D, D].
        """
        square = self.bandwidth.double().square()
        if covariance.ndim < differences.ndim:
            total = square + covariance
            log_det = total.log().sum(-1, keepdim=True)
            distances = (differences.square() / total.unsqueeze(-2)).sum(-1)
        else:
            factor = torch.linalg.cholesky(torch.diag(square) + covariance)
            log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
            distances = torch.linalg.solve_triangular(factor, differences.mT, upper=False).square().sum(-2)
        return torch.exp((square.log().sum() - log_det - distances) / 2)

    def _column_kernels(self, width: int, others: int) -> Iterator[Tensor]:
        """The kernel [width, others] between values 0, 1, ... of each column."""
        largest = max(width, others)
        if largest > _MOST_VALUES:
            raise ValueError(
                f"X or a component has counts of up to {largest - 1}; RBFKernel takes {_MOST_VALUES} at most. "
                "Take FourierKernel(), or scale the counts down."
            )
        values = torch.arange(largest, dtype=torch.float64, device=self.bandwidth.device)
        squares = (values[:width].unsqueeze(1) - values[:others]).square()
        for bandwidth in self.bandwidth.double():
            yield torch.exp(-squares / (2 * bandwidth.square()))

    def _inner_of_counts(self, probabilities: Tensor) -> Tensor:
        """prod_d p_id^T K_d p_jd [T, T] from [D, T, V]."""
        logs = probabilities.new_zeros(probabilities.shape[1], probabilities.shape[1])
        width = probabilities.shape[2]
        for column, kernel in zip(probabilities, self._column_kernels(width, width), strict=True):
            logs += (column @ kernel @ column.T).log()
        return symmetric(logs.exp())

    def _cross_of_counts(self, probabilities: Tensor, X: Rows) -> Tensor:
        """prod_d (K_d p_jd)_{x_nd} [N, T] from [D, T, V] and rows [N, D] of counts."""
        counts = dense(X).long()
        kernels = self._column_kernels(int(counts.max()) + 1, probabilities.shape[2])
        logs = probabilities.new_zeros(len(counts), probabilities.shape[1])
        for column, kernel, own in zip(probabilities, kernels, counts.T, strict=True):
            logs += (kernel @ column.T).log()[own]
        return logs.exp()


@dataclass(eq=False)
class QuadraticKernel(MeanKernel):
    """k(x, x') = (x . x' + offset)^2 of counts; rows of a multinomial family are taken as frequencies x / sum x.

    Its means tell components apart by their means and second moments alone. Frequencies of a multinomial component
    depend on the totals of rows, which the family does not model: they are those of the data.

    Parameters
    ----------
    offset : weight of the means beside second moments; None: |mean of the rows|^2, so that both weigh alike
    totals : share of the rows that have any count and the mean of 1 / total [2]; None: those of the data
    """

    offset: NonNegative | None = None
    totals: AnyNumbers = None

    def admit(self, family: Likelihood) -> None:
        if not answers(count_moments, family):
            raise NotImplementedError(
                f"QuadraticKernel has no means for {type(family).__name__}: take RBFKernel() or FourierKernel()."
            )

    def resolve(self, family: Likelihood, X: Rows, weights: Tensor | None = None) -> Self:
        if family.given_totals:
            sums = X.sum(-1).double()
            shares = torch.stack([(sums > 0).double(), (1 / sums).where(sums > 0, 0.0)], 1)
            totals = mean_over(shares, weights)
        else:
            totals = torch.zeros(0, dtype=torch.float64, device=X.device)
        totals = totals if self.totals is None else torch.as_tensor(self.totals, dtype=torch.float64, device=X.device)
        if totals.ndim != 1 or len(totals) not in {0, 2}:
            raise ValueError(f"totals is {shown(self.totals)}; expected two numbers [2], or None.")
        found = self.replace(totals=totals)
        mean = mean_over(found.rows(X), weights)
        return found if self.offset is not None else found.replace(offset=float(mean @ mean) or 1.0)

    def rows(self, X: Rows) -> Tensor:
        """The rows [N, D] in the form that the kernel uses: counts, or their frequencies."""
        values = dense(X)
        return values / values.sum(1, keepdim=True).clamp(min=1.0) if len(self.totals) else values

    def gram(self, X: Rows, others: Rows) -> Tensor:
        return (self.rows(X) @ self.rows(others).T + self._offset).square()

    def diagonal(self, X: Rows) -> Tensor:
        return (self.rows(X).square().sum(1) + self._offset).square()

    def inner(self, family: Likelihood, parameters: Parameters) -> Tensor:
        m, a, c = count_moments(family, parameters, self.totals)
        products, mixed = m @ m.T, c * a @ m.square().T
        return symmetric(a @ a.T + mixed + mixed.T + (c * products).square() + self._affine(products))

    def cross(self, family: Likelihood, parameters: Parameters, X: Rows) -> Tensor:
        m, a, c = count_moments(family, parameters, self.totals)
        rows = self.rows(X)
        products = rows @ m.T
        return rows.square() @ a.T + c * products.square() + self._affine(products)

    @property
    def _offset(self) -> float:
        return float(self.offset or 0.0)

    def _affine(self, products: Tensor) -> Tensor:
        return 2 * self._offset * products + self._offset**2


def _near(X: Tensor, others: Tensor) -> Tensor:
    """exp(-|x_n - x_m|^2 / 2) [N, M]; from differences of entries, since expanded squares may cancel."""
    distances = torch.cdist(X, others, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-distances.square() / 2)


_MOST_VALUES = 5000
