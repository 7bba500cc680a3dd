"""What the compiled scans keep of each family: plain arrays, one column of numbers for each component.

`components` is [W, capacity + 1]. A slot without points holds the prior, and so does the last one, which stays empty.
Rows are put into them one by one, or by `summed` where that is faster.
Families of counts and bits see the entries above zero alone, in compressed rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ....models.data import Data
from ....models.likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    Likelihood,
    LinearRegression,
    MultinomialDirichlet,
    PoissonGamma,
    SphericalGaussian,
)
from ....models.linalg import inverse_transpose


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
    """Rows (kap, nu, log det Psi / 2, mean [D], L^-1 row by row, scratch [2 D]), L L^T = Psi."""

    components: np.ndarray
    X: np.ndarray  # [N, D], centred


class Regression(NamedTuple):
    """Rows (nu, log det Psi / 2, L^-1 row by row, scratch [2 (Q + R)]), L L^T = [[K, C], [C^T, V]]."""

    components: np.ndarray
    X: np.ndarray  # [N, Q + R], the pairs (a, v)
    given: int  # Q


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

    rows: Callable[[Any, Data], Any]  # (family, data) -> its tuple, whose components [W, 1] are the prior
    normalizer: Callable[[Any, Tensor], Tensor]  # (family, counts) -> what a log predictive owes to the count alone
    # (family, that tuple, data, assignments [N], slots) -> components, where that is faster than row by row:
    summed: Callable[..., np.ndarray] | None = None
    wide: int = 0  # from so many columns on


def is_compiled(likelihood: Likelihood) -> bool:
    """Whether the compiled scans know this very family; a subclass may predict otherwise."""
    return type(likelihood) in _FAMILIES


def family_rows(likelihood: Likelihood, data: Data) -> Any:
    """The arrays of a family in double precision that stay the same during a scan; components [W, 1] of the prior."""
    return _FAMILIES[type(likelihood)].rows(likelihood, data)


def goes_row_by_row(likelihood: Likelihood, num_columns: int) -> bool:
    """Whether it is fast to put rows into a component one by one."""
    family = _FAMILIES[type(likelihood)]
    return family.summed is None or num_columns < family.wide


def component_table(likelihood: Likelihood, rows: Any, data: Data, assignments: Tensor, capacity: int) -> np.ndarray:
    """The components of so many slots, from `family_rows` and the assignments [N]; without points if these go into them
    row by row."""
    summed = _FAMILIES[type(likelihood)].summed
    if summed is None or goes_row_by_row(likelihood, data.X.shape[1]):
        return np.repeat(rows.components, capacity + 1, 1)
    return summed(likelihood, rows, data, assignments, capacity + 1)


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
    return _shrinkage(family, counts, -2) + _regression_normalizer(family, counts)


def _regression_normalizer(family: FullGaussian | LinearRegression, counts: Tensor) -> Tensor:
    """log Gamma((nu + 1) / 2) / Gamma((nu + 1 - R) / 2); nu grows by 1 with each point."""
    top = (family.degrees_of_freedom + 1 + counts) / 2
    return torch.lgamma(top) - torch.lgamma(top - len(family.scale) / 2)


def _spherical(family: SphericalGaussian, data: Data) -> Spherical:
    chi = family.prior().unsqueeze(0)
    kap = chi[:, -1:]
    return Spherical(_table(kap, chi[:, :-1] / kap), _centred(family, data), float(family.variance))


def _diagonal(family: DiagonalGaussian, data: Data) -> Diagonal:
    m, kap, a, b = family.common(family.prior().unsqueeze(0))
    return Diagonal(_table(kap, a, b.log().sum(1, keepdim=True) / 2, m, 1 / (2 * b)), _centred(family, data))


def _full(family: FullGaussian, chi: Tensor) -> np.ndarray:
    """Components from hyperparameters [slots, S]."""
    m, kap, nu, factor = family.common(chi)
    half_log = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    entries = _entries(inverse_transpose(factor).mT)
    return _table(torch.stack([kap, nu, half_log], 1), m, entries, m.new_empty(len(m), 2 * m.shape[1]))


def _summed_full(family: FullGaussian, rows: Full, data: Data, assignments: Tensor, slots: int) -> np.ndarray:
    return _full(family, family.prior() + family.summed_statistics(data.X, assignments, slots))


def _regression(family: LinearRegression, chi: Tensor) -> np.ndarray:
    """Components from hyperparameters [slots, S]: rows 1..Q of L^-1 are the inverse factor of K; those below take
    (a, v) to v - M a, whitened by Psi."""
    coefficients, left, nu, factor = family.common(chi)
    half_log = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    inverse, whitening = (inverse_transpose(tril).mT for tril in (left, factor))
    above, below = pad(inverse, (0, len(family.scale))), torch.cat([-whitening @ coefficients, whitening], 2)
    rows = torch.cat([above, below], 1)
    return _table(torch.stack([nu, half_log], 1), _entries(rows), rows.new_empty(len(rows), 2 * rows.shape[1]))


def _regression_rows(family: LinearRegression, data: Data) -> Regression:
    a, v = family.pairs(data.X)
    components = _regression(family, family.prior().unsqueeze(0))
    return Regression(components, torch.cat([a, v], 1).contiguous().numpy(), a.shape[1])


def _summed_regression(
    family: LinearRegression, rows: Regression, data: Data, assignments: Tensor, slots: int
) -> np.ndarray:
    return _regression(family, family.prior() + family.summed_statistics(data.X, assignments, slots))


def _entries(tril: Tensor) -> Tensor:
    """Rows one after another, [slots, D (D + 1) / 2], of lower triangles [slots, D, D]."""
    i, j = torch.tril_indices(*tril.shape[1:])
    return tril[:, i, j]


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


def _multinomial(family: MultinomialDirichlet, data: Data) -> Multinomial:
    a = family.concentration.unsqueeze(0)
    return Multinomial(_table(a.sum(1, keepdim=True), a), *_with_totals(data))


def _poisson(family: PoissonGamma, data: Data) -> Poisson:
    a = family.shape.unsqueeze(0)
    return Poisson(_table(a.sum(1, keepdim=True), family.rate.reshape(1, 1), a), *_with_totals(data))


def _bernoulli(family: BernoulliBeta, data: Data) -> Bernoulli:
    (starts, columns, _), a, b = _compressed(data), family.a.numpy(), family.b.numpy()
    prior = np.zeros((3 + len(a), 1))
    prior[0] = np.log(b / (a + b)).sum()
    return Bernoulli(prior, starts, columns, a, b)


def _summed_bernoulli(family: Any, rows: Bernoulli, data: Data, assignments: Tensor, slots: int) -> np.ndarray:
    """Row by row each would change all columns of its component."""
    cells = rows.columns + 3
    cells *= slots
    cells += np.repeat(assignments.numpy(), np.diff(rows.starts))
    table = np.bincount(cells, minlength=(3 + len(rows.a)) * slots).astype(np.float64).reshape(-1, slots)
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


_FAMILIES: dict[type, Family] = {
    SphericalGaussian: Family(_spherical, lambda family, counts: _shrinkage(family, counts, -1)),
    DiagonalGaussian: Family(_diagonal, _diagonal_normalizer),
    FullGaussian: Family(
        lambda family, data: Full(_full(family, family.prior().unsqueeze(0)), _centred(family, data)),
        _full_normalizer,
        _summed_full,
        wide=24,
    ),
    LinearRegression: Family(_regression_rows, _regression_normalizer, _summed_regression, wide=24),
    MultinomialDirichlet: Family(_multinomial, _nothing),
    PoissonGamma: Family(_poisson, _nothing),
    BernoulliBeta: Family(_bernoulli, _nothing, _summed_bernoulli, wide=64),
}
