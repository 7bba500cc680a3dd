"""What the compiled scan keeps of each family: plain arrays, one column of numbers for each component.

`components` is [W, capacity + 1]. A slot without points holds the prior, and so does the last one, which stays empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...models.likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    Likelihood,
    MultinomialDirichlet,
    PoissonGamma,
    SphericalGaussian,
)
from ...models.mixture import Data

__all__ = [
    "Bernoulli",
    "Diagonal",
    "Full",
    "Multinomial",
    "Poisson",
    "Spherical",
    "component_state",
    "is_compiled",
    "log_normalizers",
]


class Spherical(NamedTuple):
    """Rows (kap, mean [D])."""

    X: np.ndarray  # [N, D], centred
    components: np.ndarray
    variance: float


class Diagonal(NamedTuple):
    """Rows (kap, a, sum log b / 2, mean [D], 1 / (2 b) [D])."""

    X: np.ndarray  # [N, D], centred
    components: np.ndarray


class Full(NamedTuple):
    """Rows (kap, nu, log det Psi / 2, mean [D], L^-1 row by row), L L^T = Psi."""

    X: np.ndarray  # [N, D], centred
    components: np.ndarray


class Multinomial(NamedTuple):
    """Rows (sum a, a [D]); the counts above zero of each row of X in compressed form."""

    starts: np.ndarray  # [N + 1]
    columns: np.ndarray  # [starts[N]]
    counts: np.ndarray  # [starts[N]]
    totals: np.ndarray  # [N]
    components: np.ndarray


class Poisson(NamedTuple):
    """Rows (sum a, b, a [D]); counts as in `Multinomial`."""

    starts: np.ndarray
    columns: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    components: np.ndarray


class Bernoulli(NamedTuple):
    """Rows (sum log(b / (a + b)), a [D], b [D], log(a / b) [D])."""

    X: np.ndarray  # [N, D]
    components: np.ndarray


def is_compiled(likelihood: Likelihood) -> bool:
    """Whether the compiled scan knows this very family; a subclass may predict otherwise."""
    return type(likelihood) in _STATES


def component_state(likelihood: Likelihood, data: Data, assignments: Tensor, capacity: int) -> Any:
    """The arrays of a family in double precision for `capacity` slots, from the points and assignments [N]."""
    return _STATES[type(likelihood)](likelihood, data, assignments, capacity + 1)


def log_normalizers(likelihood: Likelihood, num_data: int) -> Tensor:
    """What the log predictive of a component with n = 0..N-1 points owes to n alone, [N]; constants are left out."""
    counts = torch.arange(num_data, dtype=torch.float64)
    if isinstance(likelihood, SphericalGaussian | DiagonalGaussian | FullGaussian):
        kap = likelihood.prior()[len(likelihood.loc) if isinstance(likelihood, SphericalGaussian) else -2] + counts
        shrink = len(likelihood.loc) / 2 * torch.log(kap / (kap + 1))
    match likelihood:
        case SphericalGaussian():
            return shrink
        case DiagonalGaussian():
            a = likelihood.shape + counts / 2
            return shrink + len(likelihood.loc) * (torch.lgamma(a + 0.5) - torch.lgamma(a))
        case FullGaussian():
            top = (likelihood.degrees_of_freedom + 1 + counts) / 2
            return shrink + torch.lgamma(top) - torch.lgamma(top - len(likelihood.loc) / 2)
    return torch.zeros_like(counts)


def _spherical(family: SphericalGaussian, data: Data, assignments: Tensor, slots: int) -> Spherical:
    chi = family.prior() + family.summed_statistics(data.X, assignments, slots)
    kap = chi[:, -1:]
    return Spherical((data.X - family.loc).numpy(), _rows(kap, chi[:, :-1] / kap), float(family.variance))


def _diagonal(family: DiagonalGaussian, data: Data, assignments: Tensor, slots: int) -> Diagonal:
    m, kap, a, b = family._common(family.prior() + family.summed_statistics(data.X, assignments, slots))
    half_log = b.log().sum(1, keepdim=True) / 2
    return Diagonal((data.X - family.loc).numpy(), _rows(kap, a, half_log, m, 1 / (2 * b)))


def _full(family: FullGaussian, data: Data, assignments: Tensor, slots: int) -> Full:
    m, kap, nu, factor = family._common(family.prior() + family.summed_statistics(data.X, assignments, slots))
    half_log = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    i, j = torch.tril_indices(len(family.loc), len(family.loc))
    identity = torch.eye(len(family.loc), dtype=data.X.dtype)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)[:, i, j]
    return Full((data.X - family.loc).numpy(), _rows(torch.stack([kap, nu, half_log], 1), m, inverse))


def _multinomial(family: MultinomialDirichlet, data: Data, assignments: Tensor, slots: int) -> Multinomial:
    counts, sums = _counts(data, assignments, slots)
    a = family.concentration + sums
    return Multinomial(*counts, _rows(a.sum(1, keepdim=True), a))


def _poisson(family: PoissonGamma, data: Data, assignments: Tensor, slots: int) -> Poisson:
    counts, sums = _counts(data, assignments, slots)
    a = family.shape + sums
    b = family.rate + torch.bincount(assignments, minlength=slots).unsqueeze(1)
    return Poisson(*counts, _rows(a.sum(1, keepdim=True), b, a))


def _bernoulli(family: BernoulliBeta, data: Data, assignments: Tensor, slots: int) -> Bernoulli:
    chi = family.prior() + family.summed_statistics(data.X, assignments, slots)
    a, b = chi.chunk(2, 1)
    return Bernoulli(data.X.contiguous().numpy(), _rows(-torch.log1p(a / b).sum(1, keepdim=True), chi, (a / b).log()))


_STATES: dict[type, Callable[..., Any]] = {
    SphericalGaussian: _spherical,
    DiagonalGaussian: _diagonal,
    FullGaussian: _full,
    MultinomialDirichlet: _multinomial,
    PoissonGamma: _poisson,
    BernoulliBeta: _bernoulli,
}


def _rows(*parts: Tensor) -> np.ndarray:
    """Numbers [W, slots] from parts [slots, ...]."""
    return torch.cat(parts, 1).T.contiguous().numpy()


def _counts(
    data: Data, assignments: Tensor, slots: int
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Tensor]:
    """Compressed rows (starts, columns, counts, totals) and the sums [slots, D] of the rows of each slot."""
    starts, columns, values = (array.numpy() for array in data.nonzeros)
    num_features = data.X.shape[1]
    cells = columns + np.repeat(assignments.numpy() * num_features, np.diff(starts))
    sums = np.bincount(cells, weights=values, minlength=slots * num_features).reshape(slots, num_features)
    counts = values.astype(np.int64)
    totals = np.diff(np.concatenate([[0], counts.cumsum()])[starts])
    return (starts, columns, counts, totals), torch.from_numpy(sums)
