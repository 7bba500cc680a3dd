"""What the compiled scans keep of each family: plain arrays, one column of numbers for each component.

`components` is [W, capacity + 1]. A slot without points holds the prior, and so does the last one, which stays empty.
Families of counts and bits see the entries above zero alone, in compressed rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from ...models.data import Data
from ...models.likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    Likelihood,
    MultinomialDirichlet,
    PoissonGamma,
    SphericalGaussian,
)
from ...models.sums import row_chunks


class Spherical(NamedTuple):
    """Rows (kap, mean [D])."""

    components: np.ndarray
    X: np.ndarray  # [N, D], centred
    variance: float


class Diagonal(NamedTuple):
    """Rows (kap, a, sum log b / 2, mean [D], 1 / (2 b) [D])."""

    components: np.ndarray
    X: np.ndarray  # [N, D], centred


class Full(NamedTuple):
    """Rows (kap, nu, log det Psi / 2, mean [D], L^-1 row by row), L L^T = Psi."""

    components: np.ndarray
    X: np.ndarray  # [N, D], centred


class Multinomial(NamedTuple):
    """Rows (sum a, a [D])."""

    components: np.ndarray
    starts: np.ndarray  # [N + 1]
    columns: np.ndarray  # [starts[N]]
    counts: np.ndarray  # [starts[N]]
    totals: np.ndarray  # [N]


class Poisson(NamedTuple):
    """Rows (sum a, b, a [D])."""

    components: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    counts: np.ndarray
    totals: np.ndarray


class Bernoulli(NamedTuple):
    """Rows (sum log(b / (a + b)), the same with one 0 less in each column that has any, number of points, ones [D])."""

    components: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    a: np.ndarray  # [D] of the prior
    b: np.ndarray  # [D]


class Family(NamedTuple):
    """What the compiled scans ask of a family."""

    rows: Callable[[Any, Data], Any]  # (family, data) -> its tuple, whose components are still empty
    table: Callable[..., np.ndarray]  # (family, that tuple, data, assignments [N], slots) -> components
    normalizer: Callable[[Any, Tensor], Tensor]  # (family, counts) -> what a log predictive owes to the count alone


def is_compiled(likelihood: Likelihood) -> bool:
    """Whether the compiled scans know this very family; a subclass may predict otherwise."""
    return type(likelihood) in _FAMILIES


def family_rows(likelihood: Likelihood, data: Data) -> Any:
    """The arrays of a family in double precision that stay the same during a scan; its components are still empty."""
    return _FAMILIES[type(likelihood)].rows(likelihood, data)


def component_table(likelihood: Likelihood, rows: Any, data: Data, assignments: Tensor, capacity: int) -> np.ndarray:
    """The components of so many slots, from `family_rows` and the assignments [N]."""
    return _FAMILIES[type(likelihood)].table(likelihood, rows, data, assignments, capacity + 1)


def log_normalizers(likelihood: Likelihood, num_data: int) -> Tensor:
    """What the log predictive of a component with n = 0..N-1 points owes to n alone, [N]; constants are left out."""
    counts = torch.arange(num_data, dtype=torch.float64)
    return _FAMILIES[type(likelihood)].normalizer(likelihood, counts)


# -- Gaussian families -------------------------------------------------------------------------------------------------


def _centred(family: Any, data: Data) -> np.ndarray:
    centred: np.ndarray = (data.X - family.loc).contiguous().numpy()
    return centred


def _shrinkage(family: Any, counts: Tensor, place: int) -> Tensor:
    """D / 2 log(kap / (kap + 1)), kap after so many points; it stands in this place of the prior."""
    kap = family.prior()[place] + counts
    return len(family.loc) / 2 * torch.log(kap / (kap + 1))


def _diagonal_normalizer(family: DiagonalGaussian, counts: Tensor) -> Tensor:
    """log Gamma(a + 1 / 2) / Gamma(a); a grows by 1 / 2 with each point."""
    a = family.shape + torch.arange(len(counts) + 1, dtype=torch.float64) / 2
    return _shrinkage(family, counts, -2) + len(family.loc) * torch.lgamma(a).diff()


def _full_normalizer(family: FullGaussian, counts: Tensor) -> Tensor:
    top = (family.degrees_of_freedom + 1 + counts) / 2
    return _shrinkage(family, counts, -2) + torch.lgamma(top) - torch.lgamma(top - len(family.loc) / 2)


def _chi(family: Any, data: Data, assignments: Tensor, slots: int) -> Tensor:
    """Hyperparameters [slots, S]: each row is added to its slot, where a product with one-hot rows visits all slots."""
    chi = family.prior().repeat(slots, 1).numpy()
    for rows in row_chunks(data.X, chi.shape[1]):
        statistics, labels = family.statistics(data.X[rows]).numpy(), assignments[rows].numpy()
        one_hot = np.ones(len(labels)), labels, np.arange(len(labels) + 1)
        chi += scipy.sparse.csc_array(one_hot, (slots, len(labels))) @ statistics
    return torch.from_numpy(chi)


def _spherical(family: Any, rows: Spherical, data: Data, assignments: Tensor, slots: int) -> np.ndarray:
    chi = _chi(family, data, assignments, slots)
    kap = chi[:, -1:]
    return _table(kap, chi[:, :-1] / kap)


def _diagonal(family: Any, rows: Diagonal, data: Data, assignments: Tensor, slots: int) -> np.ndarray:
    m, kap, a, b = family.common(_chi(family, data, assignments, slots))
    return _table(kap, a, b.log().sum(1, keepdim=True) / 2, m, 1 / (2 * b))


def _full(family: Any, rows: Full, data: Data, assignments: Tensor, slots: int) -> np.ndarray:
    m, kap, nu, factor = family.common(family.prior() + family.summed_statistics(data.X, assignments, slots))
    half_log = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    i, j = torch.tril_indices(len(family.loc), len(family.loc))
    identity = torch.eye(len(family.loc), dtype=data.X.dtype)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)[:, i, j]
    return _table(torch.stack([kap, nu, half_log], 1), m, inverse)


def _table(*parts: Tensor) -> np.ndarray:
    """Numbers [W, slots] from parts [slots, ...]."""
    return torch.cat(parts, 1).T.contiguous().numpy()


# -- counts and bits ---------------------------------------------------------------------------------------------------


def _compressed(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts [N + 1], columns [nnz] and counts [nnz] of the rows."""
    starts, columns, values = (np.ascontiguousarray(array.numpy()) for array in data.nonzeros)
    return starts, columns, values.astype(np.int64)


def _with_totals(data: Data) -> tuple[np.ndarray, ...]:
    starts, columns, counts = _compressed(data)
    return starts, columns, counts, np.diff(np.concatenate([[0], counts.cumsum()])[starts])


def _sums(rows: Any, counts: np.ndarray | None, assignments: Tensor, slots: int, lead: int, width: int) -> np.ndarray:
    """Sums of the rows of each slot in a table [lead + D, slots] whose first rows are still 0."""
    cells = rows.columns + lead
    cells *= slots
    cells += np.repeat(assignments.numpy(), np.diff(rows.starts))
    return np.bincount(cells, counts, (lead + width) * slots).astype(np.float64, copy=False).reshape(-1, slots)


def _multinomial(family: Any, rows: Multinomial, data: Data, assignments: Tensor, slots: int) -> np.ndarray:
    table = _sums(rows, rows.counts, assignments, slots, 1, len(family.concentration))
    table[1:] += family.concentration.numpy()[:, None]
    table[0] = table[1:].sum(0)
    return table


def _poisson(family: Any, rows: Poisson, data: Data, assignments: Tensor, slots: int) -> np.ndarray:
    table = _sums(rows, rows.counts, assignments, slots, 2, len(family.shape))
    table[2:] += family.shape.numpy()[:, None]
    table[0] = table[2:].sum(0)
    table[1] = float(family.rate) + np.bincount(assignments.numpy(), minlength=slots)
    return table


def _bernoulli(family: Any, rows: Bernoulli, data: Data, assignments: Tensor, slots: int) -> np.ndarray:
    table = _sums(rows, None, assignments, slots, 3, len(family.a))
    size = table[2] = np.bincount(assignments.numpy(), minlength=slots)
    step = max(1, 2**18 // slots)
    for first in range(0, len(family.a), step):
        a, b = rows.a[first : first + step, None], rows.b[first : first + step, None]
        zeros = size - table[3 + first : 3 + first + step]
        table[0] += np.log((b + zeros) / (a + b + size)).sum(0)
        before = np.divide(b + zeros - 1, a + b + size - 1, out=np.ones_like(zeros), where=zeros > 0)
        table[1] += np.log(before).sum(0)
    return table


def _nothing(family: Any, counts: Tensor) -> Tensor:
    return torch.zeros_like(counts)


_NONE = np.empty((0, 0))

_FAMILIES: dict[type, Family] = {
    SphericalGaussian: Family(
        lambda family, data: Spherical(_NONE, _centred(family, data), float(family.variance)),
        _spherical,
        lambda family, counts: _shrinkage(family, counts, -1),
    ),
    DiagonalGaussian: Family(
        lambda family, data: Diagonal(_NONE, _centred(family, data)), _diagonal, _diagonal_normalizer
    ),
    FullGaussian: Family(lambda family, data: Full(_NONE, _centred(family, data)), _full, _full_normalizer),
    MultinomialDirichlet: Family(lambda family, data: Multinomial(_NONE, *_with_totals(data)), _multinomial, _nothing),
    PoissonGamma: Family(lambda family, data: Poisson(_NONE, *_with_totals(data)), _poisson, _nothing),
    BernoulliBeta: Family(
        lambda family, data: Bernoulli(_NONE, *_compressed(data)[:2], family.a.numpy(), family.b.numpy()),
        _bernoulli,
        _nothing,
    ),
}
