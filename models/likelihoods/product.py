"""Blocks of columns, each with its own conjugate exponential family, independent given the component.

    p(x | theta) = prod_j p_j(x_j | theta_j),   p(theta) = prod_j p_j(theta_j)

Statistics, hyperparameters and coordinates of the blocks are concatenated; log normalizers, densities, divergences and
KL terms are added (docs/derivations/mixtures, "Likelihoods"). For latent features see `Blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Annotated, Any, ClassVar, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import pad
from torch.types import _size

from ..arrays import require_finite
from ..compiled import register_compiled
from ..config import resolved
from ..sparse import Rows, SparseRows
from ..sums import all_sums, among
from .base import Parameters, Sample
from .exponential_family import ExponentialFamily
from .parts import Parts, ending, require_width, with_ends


@dataclass(eq=False)
class Product(ExponentialFamily):
    """Columns 0..D_1 - 1 by the first family, the next D_2 by the second, and so on.

    Sparse rows stay sparse for families that take them, and become dense for the others. In the small-variance limit
    each block has one more coordinate e, its weight: 1 in a row of X, and in a pseudo-observation that of the family.
    So families with and without a pseudo-observation can be combined.

    Parameters
    ----------
    parts : pairs (family, number of its columns D_j); the numbers add up to the width of X

    Parameters of block j have `_j` after their names.

    Examples
    --------
    >>> from regbayes.models import BernoulliBeta, DiagonalGaussian, DPM
    >>> mixed = DPM(Product([(DiagonalGaussian(), 3), (BernoulliBeta(), 2)]))
    """

    parts: Annotated[Any, Parts(ExponentialFamily, "[(DiagonalGaussian(), 3), (BernoulliBeta(), 2)]")]

    accepts_sparse: ClassVar[bool] = True

    @property
    def takes_missing(self) -> bool:
        return any(part.takes_missing for part, _ in self.parts)

    @property
    def given_totals(self) -> bool:
        return any(part.given_totals for part, _ in self.parts)

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        require_width(self.parts, X.shape[1])
        return self.replace(parts=[(resolved(part, x, weights), x.shape[1]) for part, x in self.split(X)])

    def check(self, X: Rows) -> None:
        require_width(self.parts, X.shape[1])
        first = 0
        for part, x in self.split(X):
            try:
                require_finite(x, missing=part.takes_missing)
                part.admit(x)
            except ValueError as error:
                raise ValueError(f"{error} (Columns are those of the block that starts at {first}.)") from error
            first += x.shape[1]

    def split(self, X: Rows) -> Iterator[tuple[ExponentialFamily, Rows]]:
        """Iterate over pairs of a family and its columns [N, D_j] of the rows of X [N, D]."""
        start = 0
        for part, width in self.parts:
            columns = columns_of(X, start, start + width)
            yield part, columns.to_dense() if isinstance(columns, SparseRows) and not part.accepts_sparse else columns
            start += width

    def own(self, chi: Tensor) -> Iterator[tuple[ExponentialFamily, Tensor]]:
        """Iterate over pairs of a family and its hyperparameters [..., S_j], from those of all families [..., S]."""
        sizes = [len(part.prior()) for part, _ in self.parts]
        return zip((part for part, _ in self.parts), chi.split(sizes, -1), strict=True)

    def own_centers(self, means: Tensor) -> Iterator[tuple[ExponentialFamily, Tensor]]:
        """Iterate over pairs of a family and its part [K, D'_j] of centres [K, D'] in `coordinates`."""
        return ((part, u) for part, u, _ in self._places(means))

    # -- statistics and normalizers --------------------------------------------------------------------------------

    def prior(self) -> Tensor:
        return torch.cat([part.prior() for part, _ in self.parts])

    def statistics(self, X: Rows) -> Tensor:
        return torch.cat([part.statistics(x) for part, x in self.split(X)], -1)

    def weighted_statistics(self, X: Rows, responsibilities: Tensor) -> Tensor:
        with among(None):
            own = torch.cat([part.weighted_statistics(x, responsibilities) for part, x in self.split(X)], -1)
        return all_sums(own)[0]

    def summed_statistics(self, X: Rows, assignments: Tensor, num_components: int) -> Tensor:
        with among(None):
            own = torch.cat([part.summed_statistics(x, assignments, num_components) for part, x in self.split(X)], -1)
        return all_sums(own)[0]

    def log_base_measure(self, X: Rows) -> Tensor:
        return _total(part.log_base_measure(x) for part, x in self.split(X))

    def log_partition(self, chi: Tensor) -> Tensor:
        return _total(part.log_partition(own) for part, own in self.own(chi))

    def mean_parameters(self, chi: Tensor) -> Tensor:
        return torch.cat([part.mean_parameters(own) for part, own in self.own(chi)], -1)

    def kl(self, chi: Tensor) -> Tensor:
        return _total(part.kl(own) for part, own in self.own(chi))

    # -- densities -------------------------------------------------------------------------------------------------

    def linear_log_density(self, X: Rows, natural: Tensor) -> Tensor:
        return self._summed(X, natural, lambda part, x, own: part.linear_log_density(x, own))

    def expected_log_density(self, X: Rows, chi: Tensor) -> Tensor:
        return self._summed(X, chi, lambda part, x, own: part.expected_log_density(x, own))

    def log_predictive(self, X: Rows, chi: Tensor) -> Tensor:
        return self._summed(X, chi, lambda part, x, own: part.log_predictive(x, own))

    def log_repeat(self, X: Rows) -> Tensor:
        return _total(part.log_repeat(x) for part, x in self.split(X))

    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        return with_ends(
            part.parameters(own, partial(_sample_ending, sample, f"_{index}"))
            for index, (part, own) in enumerate(self.own(chi))
        )

    def distribution(self, parameters: Parameters) -> Distribution:
        laws = [part.distribution(ending(parameters, index)) for index, (part, _) in enumerate(self.parts)]
        return _Columns(laws, [width for _, width in self.parts])

    def draw_rows(self, parameters: Parameters, generator: torch.Generator, totals: Tensor | None = None) -> Tensor:
        """As `Likelihood.draw_rows`; every block with `given_totals` has the same totals [M]."""
        parts = enumerate(part for part, _ in self.parts)
        return torch.cat([part.draw_rows(ending(parameters, index), generator, totals) for index, part in parts], 1)

    def log_density(self, X: Rows, parameters: Parameters) -> Tensor:
        pairs = enumerate(self.split(X))
        return _total(part.log_density(x, ending(parameters, index)) for index, (part, x) in pairs)

    # -- the small-variance limit ----------------------------------------------------------------------------------

    def coordinates(self, X: Rows) -> Rows:
        """(u_1, 1, u_2, 1, ...) [N, D'] from the families' coordinates u_j."""
        blocks = [part.coordinates(x) for part, x in self.split(X)]
        ones = X.new_ones(len(X), 1)
        return join_columns([block for u in blocks for block in (u, ones)])

    def from_coordinates(self, means: Tensor) -> Tensor:
        return torch.cat([part.from_coordinates(u) for part, u, _ in self._places(means)], -1)

    def centers(self, sums: Tensor, counts: Tensor) -> Tensor:
        """The families' centres; the number of rows of family j is the sum of its column e_j."""
        own = [part.centers(u, e.squeeze(-1)) for part, u, e in self._places(sums)]
        return torch.cat([pad(u, (0, 1), value=1.0) for u in own], -1)

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """sum_j e_j D_j(u_j / e_j, mu_j), linear in (u, e): a family's offset is the slope of -e_j."""
        terms = [part.divergence_terms(u) for part, u, _ in self._places(means)]
        slopes = [torch.cat([slope, -offset.unsqueeze(-1)], -1) for slope, offset in terms]
        return torch.cat(slopes, -1), means.new_zeros(len(means))

    def divergence_base(self, X: Rows) -> Tensor:
        return _total(_base(part, u, e) for part, u, e in self._places(X))

    def divergence(self, X: Rows, means: Tensor) -> Tensor:
        slope, _ = self.divergence_terms(means)
        return (X @ slope.T).neg_().add_(self.divergence_base(X).unsqueeze(1))

    def founding_divergence(self, X: Rows) -> Tensor:
        return _total(part.founding_divergence(u) for part, u, _ in self._places(X))

    def pseudo_observation(self) -> tuple[Tensor | None, float]:
        """(w_1 row_1, w_1, w_2 row_2, w_2, ...) with weight 1, as the divergences are homogeneous in (u, e)."""
        found = [part.pseudo_observation() for part, _ in self.parts]
        if all(row is None for row, _ in found):
            return None, 0.0
        like = next(row for row, _ in found if row is not None)
        blocks = list[Tensor]()
        for (row, weight), size in zip(found, self._sizes(), strict=True):
            blocks += [like.new_zeros(size) if row is None else weight * row, like.new_tensor([weight])]
        return torch.cat(blocks), 1.0

    def _sizes(self) -> list[int]:
        """The number of coordinates of each family."""
        return [part.coordinates(part.prior().new_zeros(0, width)).shape[1] for part, width in self.parts]

    def _places(self, coordinates: Rows) -> Iterator[tuple[ExponentialFamily, Rows, Tensor]]:
        """Iterate over a family, its coordinates u_j [..., N, D'_j] and their weights e_j [N, 1]."""
        start = 0
        for (part, _), size in zip(self.parts, self._sizes(), strict=True):
            u = columns_of(coordinates, start, start + size)
            e = columns_of(coordinates, start + size, start + size + 1)
            dense = isinstance(u, SparseRows) and not part.accepts_sparse
            yield part, u.to_dense() if dense else u, e
            start += size + 1

    def _summed(self, X: Rows, values: Tensor, reading: Callable[[Any, Rows, Tensor], Tensor]) -> Tensor:
        """Sum `reading` of each family, its columns of X [N, D] and its part of `values` [K, S]."""
        pairs = zip(self.split(X), self.own(values), strict=True)
        return _total(reading(part, x, own) for (part, x), (_, own) in pairs)


class _Columns(dist.TorchDistribution):
    """Independent blocks of columns that form one row [D]."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector

    def __init__(self, laws: list[Any], widths: list[int]) -> None:
        self._laws, self._widths = laws, widths
        super().__init__(laws[0].batch_shape, torch.Size([sum(widths)]), validate_args=False)

    def expand(self, batch_shape: _size, _instance: Any = None) -> _Columns:
        return _Columns([law.expand(batch_shape) for law in self._laws], self._widths)

    def log_prob(self, value: Tensor) -> Tensor:
        columns = value.split(self._widths, -1)
        return _total(law.log_prob(own) for law, own in zip(self._laws, columns, strict=True))

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:
        return torch.cat([law.sample(sample_shape) for law in self._laws], -1)


def columns_of(X: Rows, first: int, last: int) -> Rows:
    """Columns first..last - 1 of the rows of X [N, D], dense or sparse."""
    return X[:, first:last] if isinstance(X, Tensor) else X.between(first, last)


def join_columns(blocks: list[Rows]) -> Rows:
    """The blocks [N, D_j] side by side, [N, D]; sparse if any block is."""
    if all(isinstance(block, Tensor) for block in blocks):
        return torch.cat(blocks, 1)
    rows = [SparseRows.of(block) for block in blocks]
    starts = torch.stack([own.starts for own in rows]).sum(0)
    before, width = starts[:-1].clone(), 0
    columns, values = starts.new_empty(int(starts[-1])), rows[0].values.new_empty(int(starts[-1]))
    for own in rows:
        places = torch.arange(len(own.columns), device=starts.device) + (before - own.starts[:-1])[own.row_index]
        columns[places], values[places] = own.columns + width, own.values
        before, width = before + own.starts.diff(), width + own.num_columns
    return SparseRows(starts, columns, values, width)


def _total(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _sample_ending(sample: Sample, end: str, name: str, law: Any) -> Tensor:
    return sample(f"{name}{end}", law)


def _base(part: ExponentialFamily, u: Rows, e: Rows) -> Tensor:
    """e D_base(u / e) [N]; for sparse rows, which are data, e is 1."""
    if isinstance(u, SparseRows) or isinstance(e, SparseRows):
        return part.divergence_base(u)
    weights = e.squeeze(1)
    base = weights * part.divergence_base(u / e.clamp(min=torch.finfo(e.dtype).tiny))
    return base.where(weights > 0, 0.0)  # without a pseudo-observation u is 0, perhaps outside of the support


register_compiled(Product, f"{__package__}._numba_product:Blocks")
