"""The common part of families of counts and bits: statistics linear in x, so that the rows may be sparse."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from ..sparse import Rows, SparseRows, entries_sum, first_entry, group_sums, weighted_sums
from ..sums import all_sums, row_chunks
from .exponential_family import ExponentialFamily

Faults = tuple[tuple[str, Callable[[Tensor], Tensor]], ...]


class CountFamily(ExponentialFamily):
    """An exponential family whose statistics [S] of n rows follow from their sum [D] and n; X may be `SparseRows`."""

    accepts_sparse = True
    faults: ClassVar[Faults] = (("negative", lambda x: x < 0), ("not a whole number", lambda x: x.round() != x))
    accepted = "counts 0, 1, 2, ...; use a Gaussian family for other data"

    def check(self, X: Rows) -> None:
        for fault, is_wrong in self.faults:
            if found := first_entry(X, is_wrong):
                value, row, column = found
                raise ValueError(
                    f"X has a value that is {fault}: {value} in row {row}, column {column}. "
                    f"{type(self).__name__} accepts {self.accepted}."
                )

    # -- methods that a family defines ---------------------------------------------------------------------------------

    @abstractmethod
    def spread(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Statistics [..., S] of n rows, from the sums [..., D] of the rows and the numbers n [...]."""

    @abstractmethod
    def linear(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """slope [K, D] and offset [K] with <statistics(x), t_k> = <x, slope_k> + offset_k, for t [K, S]."""

    @abstractmethod
    def potential(self, x: Tensor) -> Tensor:
        """The convex function [...] of entries x [...] that generates the divergence, 0 at 0."""

    def total_potential(self, total: Tensor) -> Tensor:
        """A further term of the convex function, of the total [...] of a row."""
        return torch.zeros_like(total)

    # -- methods with defaults -----------------------------------------------------------------------------------------

    def statistics(self, X: Rows) -> Tensor:
        """Statistics [N, S], dense: only for a few rows at a time."""
        return self.spread(X.to_dense(), X.new_ones(len(X)))

    def weighted_statistics(self, X: Rows, responsibilities: Tensor) -> Tensor:
        """sum_n r_nk statistics(x_n), [K, S], from responsibilities [N, K]."""
        counts = responsibilities.sum(0, dtype=torch.float64)
        return self.spread(*all_sums(weighted_sums(X, responsibilities), counts)).to(X.dtype)

    def summed_statistics(self, X: Rows, assignments: Tensor, num_components: int) -> Tensor:
        """Sums [K, S] of the statistics over the rows of each component, from assignments [N] in 0..K-1."""
        counts = torch.bincount(assignments, minlength=num_components).double()
        return self.spread(*all_sums(group_sums(X, assignments, num_components), counts)).to(X.dtype)

    def linear_log_density(self, X: Rows, natural: Tensor) -> Tensor:
        slope, offset = self.linear(natural)
        return (X @ slope.T).add_(offset).add_(self.log_base_measure(X).unsqueeze(1))

    def divergence(self, X: Rows, means: Tensor) -> Tensor:
        slope, offset = self.divergence_terms(means)
        return (X @ slope.T).neg_().add_(offset).add_(self.divergence_base(X).unsqueeze(1))

    def divergence_base(self, X: Rows) -> Tensor:
        return entries_sum(X, self.potential) + self.total_potential(X.sum(-1))

    def founding_divergence(self, X: Rows) -> Tensor:
        """base(x) + w base(row) - (1 + w) base(m) [N], m = (x + w row) / (1 + w)."""
        row, weight = self.pseudo_observation()
        if row is None:
            return X.new_zeros(len(X))
        rows, row, share = X.double(), row.double(), 1 / (1 + weight)  # large sums cancel, hence double precision
        rest = weight * share * row
        gains = entries_sum(rows, lambda x, r: self.potential(r + share * x) - self.potential(r), rest)
        center = gains + self.potential(rest).sum() + self.total_potential(rest.sum() + share * rows.sum(-1))
        cost = self.divergence_base(rows) + weight * self.divergence_base(row.unsqueeze(0)) - center / share
        return cost.to(X.dtype)


def log_rising(X: Rows, shapes: Tensor) -> Tensor:
    """sum_d log Gamma(a_kd + x_nd) - log Gamma(a_kd), [N, K] in double precision, for shapes a [K, D].

    Counts are mostly small: the sum is sum_j sum_d [x_nd > j] log(a_kd + j) over j < 4, products with sparse rows, plus
    log Gamma(a + x) - log Gamma(a + 4) for the entries above 4.
    """
    columns, rows = shapes.double().T.contiguous(), SparseRows.of(X).double()
    *levels, large = rows.once("levels", lambda: list(_levels(rows)))
    found = rows.values.new_zeros(len(rows), len(shapes))
    for j, level in enumerate(levels):
        if len(level.values):
            found += level @ (columns + j).log()
    if len(large.values):
        for some in row_chunks(large, len(shapes) * (1 + len(large.values) // len(large))):
            a, x = columns[large[some].columns], large[some].values.unsqueeze(1)
            found[some] += large[some].entry_sums(torch.lgamma(a + x) - torch.lgamma(a + _SMALL))
    return found


def _levels(rows: SparseRows) -> Iterator[SparseRows]:
    """The indicators [x > j] of rows x [N, D] for j < 4, then the entries above 4."""
    for j in range(_SMALL):
        yield replace(rows, values=torch.ones_like(rows.values))
        rows = rows.where(rows.values > j + 1)
    yield rows


def finite_log(values: Tensor) -> Tensor:
    """log [...] of values [...] >= 0, finite at 0, so that 0 log 0 = 0."""
    return values.clamp(min=torch.finfo(values.dtype).tiny).log()


_SMALL = 4
