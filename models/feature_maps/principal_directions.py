"""Leading principal directions, as features of the hyperplanes when x has many columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from ..domains import AnyNumbers, Count, NonNegative, Number
from ..likelihoods.base import column_sums, column_variances, hyperparameter, or_one
from ..sparse import SparseRows
from ..sums import all_count, all_sum, largest_later, largest_of, ranks
from .base import FeatureMap, Rows, require_matrix


@dataclass(eq=False)
class PrincipalDirections(FeatureMap):
    """(x - loc) axes: x in the leading principal directions, scaled so that the mean square length of a row is 1.

    If X has no more columns than `num_directions`, it is only centred and scaled, not rotated. The scale makes the
    prior deviation of a score about `weight_scale` (docs/derivations/repelling, "Features of the hyperplanes").
    Sparse rows stay sparse: their directions come from a few rounds of subspace iteration, and are near the leading
    ones.

    Parameters
    ----------
    num_directions : largest number of directions; there are never more than rows
    proportions : use x / sum(x) in place of x, for counts
    scaling : before the directions are computed, columns are divided by their standard deviations to this power: 0
        leaves them, 1 standardizes, 1/2 (Pareto scaling) is between the two: rare words count more than with 0, and
        noise counts less than with 1
    intercept : value of the constant feature; 0 for hyperplanes through the mean of the data
    loc, axes : [D] and [D, P]; None: from the data
    """

    num_directions: Count = 50
    proportions: bool = False
    intercept: NonNegative = 1.0
    loc: AnyNumbers = None
    axes: AnyNumbers = None
    scaling: Annotated[float, Number(least=0.0, most=1.0)] = 0.0

    def checked(self, name: str = "") -> Self:
        if (self.loc is None) != (self.axes is None):
            raise ValueError(f"{name}loc and {name}axes belong together: give both or neither.")
        return super().checked(name)

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        if self.loc is not None:
            axes = torch.as_tensor(self.axes, dtype=X.dtype, device=X.device)
            require_matrix("axes", axes, X.shape[1])
            return self.replace(loc=hyperparameter("loc", self.loc, None, X, X.shape[1]), axes=axes)
        rows = self._inputs(X).double()
        scale = _deviations(rows, weights) ** self.scaling if self.scaling else rows.new_ones(X.shape[1])
        scaled = rows.scale_columns(1 / scale) if isinstance(rows, SparseRows) else rows / scale
        loc, axes = _directions(scaled, self.num_directions, weights)
        return self.replace(loc=(loc * scale).to(X.dtype), axes=(axes / scale.unsqueeze(1)).to(X.dtype))

    def project(self, X: Rows) -> Tensor:
        loc, axes, rows = self.require(self.loc), self.require(self.axes), self._inputs(X)
        return rows @ axes - loc @ axes if isinstance(rows, SparseRows) else (rows - loc) @ axes

    def _inputs(self, X: Rows) -> Rows:
        if not self.proportions:
            return X
        share = 1 / X.sum(1).clamp(min=torch.finfo(X.dtype).tiny)
        return X.scale_rows(share) if isinstance(X, SparseRows) else X * share.unsqueeze(1)


def _directions(X: Rows, most: int, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean [D] of X [N, D] in double precision, and scaled axes [D, P]; with weights [N] if given."""
    total: Any = all_count(len(X)) if weights is None else all_sum(weights.sum(dtype=torch.float64))
    loc = all_sum(_counted(X, weights).sum(0)) / total
    if isinstance(X, SparseRows):
        axes = _near_leading(X, loc, most, weights)
        projected = X @ axes - loc @ axes
    else:
        centred = X - loc
        axes = _leading(centred, most, weights)
        projected = centred @ axes
    entries = X.values if isinstance(X, SparseRows) else X
    # the sign of an axis is arbitrary; it is fixed, so that a fit can be repeated
    sign = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    size = (all_sum(_counted(projected.square(), weights).sum()) / total).sqrt()
    largest = largest_later(largest_of(entries.abs().flatten()))().clamp(min=0.0)  # -inf without entries
    tiny = torch.finfo(X.dtype).eps * largest
    return loc, axes * sign / (size if size > tiny else torch.ones_like(size))


def _deviations(X: Rows, weights: Tensor | None) -> Tensor:
    """Standard deviations [D] of the columns of X [N, D] in double precision; 1 where a column is constant."""
    if not isinstance(X, SparseRows):
        return or_one(column_variances(X, weights)).sqrt()
    mean, square = (total / number for total, number in (column_sums(power, weights) for power in (X, X.square())))
    variances = square - mean.square()
    rounding = 8 * torch.finfo(X.dtype).eps * square  # the difference that rounding may leave for a constant column
    return or_one(torch.where(variances > rounding, variances, 0.0)).sqrt()


def _leading(centred: Tensor, most: int, weights: Tensor | None) -> Tensor:
    """Orthonormal axes [D, P] of the leading principal directions of centred rows; the identity if P = D.

    With fewer rows than columns the axes are right singular vectors, without a matrix over the columns.
    """
    num_columns = centred.shape[1]
    if num_columns <= most:
        return torch.eye(num_columns, dtype=torch.float64, device=centred.device)
    most = min(most, all_count(len(centred)))
    if len(centred) < num_columns and ranks() is None:
        root = None if weights is None else weights.sqrt()
        return torch.linalg.svd(_counted(centred, root), full_matrices=False).Vh[:most].T
    return torch.linalg.eigh(all_sum(centred.T @ _counted(centred, weights))).eigenvectors.flip(1)[:, :most]


def _near_leading(X: SparseRows, loc: Tensor, most: int, weights: Tensor | None) -> Tensor:
    """Orthonormal axes [D, P] near the leading directions of the centred rows, by subspace iteration; the identity if
    P = D."""
    num_columns = X.shape[1]
    if num_columns <= most:
        return torch.eye(num_columns, dtype=torch.float64, device=X.device)
    most, generator = min(most, all_count(len(X))), torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(num_columns, most, generator=generator, dtype=torch.float64).to(loc)).Q
    for _ in range(_NUM_ROUNDS):
        projected = _counted(X @ axes - loc @ axes, weights)
        axes = torch.linalg.qr(all_sum(X.transposed_product(projected))).Q  # projected sums to 0: loc drops out
    return axes


def _counted(X: Any, weights: Tensor | None) -> Any:
    """Rows [N, D], dense or sparse, times their weights [N]."""
    if weights is None:
        return X
    return X.scale_rows(weights.to(X.dtype)) if isinstance(X, SparseRows) else X * weights.to(X).unsqueeze(1)


_NUM_ROUNDS = 8
