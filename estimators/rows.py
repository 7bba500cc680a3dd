"""Rows in an order of their own, so that a fit depends on how often each row occurs, not on where it stands.

Random draws belong to places: without an order, a data set with its rows shuffled, or with a row twice in place of a
weight of two, would be seen by other draws. Rows are sorted before the fit, and what it says of each is put back after.
The order is that of a hash, hence as if shuffled: a scan that visits neighbours one after another mixes slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray


@dataclass(frozen=True)
class SortedRows:
    """The M rows of a fit, from N rows of a user."""

    X: Any  # [M, D], an array or a sparse matrix
    y: NDArray[Any] | None  # [M]
    weights: NDArray[np.float64] | None  # [M]; None: all 1
    place: NDArray[np.int64]  # [N] where each row of the user is among them

    @property
    def num_different(self) -> int:
        """How many rows there are, of which two that are alike count once if there are no others."""
        number: int = self.X.shape[0]
        if number != 2 or scipy.sparse.issparse(self.X):
            return number
        alike = (self.X[0] == self.X[1]).all() and (self.y is None or np.all(self.y[0] == self.y[1]))
        return 1 if alike else 2


def sort_rows(X: Any, y: NDArray[Any] | None, weights: NDArray[np.float64] | None, *, merge: bool) -> SortedRows:
    """Rows of X [N, D], targets y [N] and weights [N], sorted by a hash of x, and of y if it is a label.

    With `merge` rows that are equal become one, with their weights added up; or two if all are, as a fit takes no
    single row. Sparse rows stay in their order.
    """
    if scipy.sparse.issparse(X):
        return SortedRows(X, y, weights, np.arange(X.shape[0]))
    order, differs = _sorted(X, y, weights)
    if merge:
        differs[1:2] |= not differs[1:].any()
        groups = np.cumsum(differs) - 1
        place = np.empty_like(order)
        place[order] = groups
        order = order[differs]
        weights = np.bincount(place, weights).astype(np.float64)
    else:
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        weights = None if weights is None else weights[order]
    if weights is not None and (weights == 1).all():
        weights = None
    return SortedRows(X[order], None if y is None else y[order], weights, place)


def deal(different: SortedRows, key: NDArray[Any], number: int) -> NDArray[np.int64]:
    """The fold [N] of each row of a user: different rows are dealt out in the order of a key [M], equal rows are in
    one fold."""
    fold = np.empty(len(key), dtype=np.int64)
    fold[np.argsort(key, kind="stable")] = np.arange(len(key)) % min(number, max(1, len(key)))
    found: NDArray[np.int64] = fold[different.place]
    return found


def deal_groups(groups: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64], number: int) -> NDArray[np.int64]:
    """The fold [N] of each row, whole groups [N] in one: in the order of their mean y [N], so many at a time, the
    heaviest to the lightest fold, so that folds are alike in y and in weight."""
    names, place = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"groups has one group, {names.tolist()[0]!r}; folds of whole groups need at least two.")
    number, sizes = min(number, len(names)), np.bincount(place, weights)
    means = np.bincount(place, weights * y) / sizes
    fold, loads = np.empty(len(names), dtype=np.int64), np.zeros(number)
    order = np.argsort(means.round(_DIGITS), kind="stable")
    for start in range(0, len(order), number):
        some = order[start : start + number]
        some = some[np.argsort(-sizes[some], kind="stable")]
        fold[some] = np.argsort(loads, kind="stable")[: len(some)]
        np.add.at(loads, fold[some], sizes[some])
    found: NDArray[np.int64] = fold[place]
    return found


def moments(y: NDArray[Any], weights: NDArray[np.float64] | None) -> tuple[float, float]:
    """Mean and standard deviation (1 if y is constant) of numbers y [N], each counted `weights` [N] times.

    They are sums over the values that y has, in order: the same, bit for bit, for rows in any order, repeated, or with
    others of weight 0.
    """
    values, place = np.unique(y.astype(np.float64), return_inverse=True)
    counts = np.bincount(place, weights, len(values))
    values, counts = values[counts > 0], counts[counts > 0]
    unit = float(np.abs(values).max()) or 1.0  # whatever the units of y, its squares are finite
    values, share = values / unit, counts / counts.sum()
    mean = float(share @ values)
    return in_units(mean, float(share @ (values - mean) ** 2) ** 0.5, unit)


def moments_of_tasks(y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means [M] and standard deviations [M] of the targets y [N, M] of tasks, NaN where a row has none.

    Those of tasks with few rows are drawn towards those of all tasks by as much as chance explains (`_towards_all`):
    log variances first, then means. A task without rows has what all have in common. One whose targets are all the
    same keeps its mean, and has 1.
    """
    y = np.sort(y, axis=0)  # sums do not depend on the order of the rows
    known = ~np.isnan(y)
    number, values = known.sum(0), np.where(known, y, 0.0)
    unit = float(np.abs(values).max()) or 1.0  # whatever the units of y, its squares are finite
    mean = (values / unit).sum(0) / np.maximum(number, 1)
    variance = (np.where(known, values / unit - mean, 0.0) ** 2).sum(0) / np.maximum(number - 1, 1)
    varies, seen = variance > (np.finfo(np.float64).eps * mean) ** 2, number > 0
    scale = np.full(len(mean), 1 / unit)
    if varies.any():
        logs, common = _towards_all(np.log(variance[varies]), 2 / (number[varies] - 1))
        scale[varies], scale[number < 2] = np.exp(logs / 2), np.exp(common / 2)
        drawn = varies | (number == 1)
        mean[drawn], mean[~seen] = _towards_all(mean[drawn], scale[drawn] ** 2 / number[drawn])
    elif seen.any():
        mean[~seen] = mean[seen].mean()
    return mean * unit, scale * unit


def _towards_all(values: NDArray[np.float64], variances: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Estimates x_m [M] of known variances s_m [M] drawn towards their common value v, and that value.

        x_m - min(1, (M - 1) / q) (x_m - v),    v = sum_m x_m / s_m / sum_m 1 / s_m,    q = sum_m (x_m - v)^2 / s_m

    but none by more than two standard errors (James & Stein 1961; limited as by Efron & Morris 1972). Variances may
    differ by any factor: how far an estimate moves depends on its own.
    """
    common = float(np.average(values, weights=1 / variances))
    gaps = values - common
    spread = float((gaps**2 / variances).sum())
    share = min(1.0, (len(values) - 1) / spread) if spread > 0 else 1.0
    most = np.minimum(2 * np.sqrt(variances), np.abs(gaps))
    return values - np.clip(share * gaps, -most, most), common


def in_units(mean: float, scale: float, unit: float) -> tuple[float, float]:
    """A mean and a standard deviation of numbers that were divided by a unit, for those before; 1 if it is rounding."""
    return mean * unit, scale * unit if scale > np.finfo(np.float64).eps * abs(mean) else 1.0


def _sorted(
    X: NDArray[Any], y: NDArray[Any] | None, weights: NDArray[np.float64] | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Places [N] of the rows by their hashes, of equal hashes by the bytes of X and then by y, and which differ from
    the one before. 0 and -0 are equal.

    Targets that are numbers are not hashed: their last bits hang on the units of y, and the order must not.
    """
    targets = [] if y is None else [*np.atleast_2d(y.T)]
    exact = all(map(_are_labels, targets))
    hashed = np.zeros(len(X), dtype=np.uint64)
    for column in [*X.T, *(targets if exact else [])]:
        hashed = _mixed(hashed, _bits(column))
    hashed = hashed.byteswap()
    order = np.argsort(hashed, kind="stable")
    differs = np.ones(len(X), dtype=bool)
    differs[1:] = hashed[order[1:]] != hashed[order[:-1]]
    tied = np.flatnonzero(~differs | np.append(~differs[1:], False))
    if not len(tied):
        return order, differs
    rows = order[tied]  # the same X several times, and hardly ever another one of the same hash
    words = [*(_bits(column[rows]) for column in X.T), *(_in_order(column[rows]) for column in targets)]
    bits = np.column_stack([hashed[rows].byteswap(), *words])
    keys = bits.view(np.dtype((np.void, bits.itemsize * bits.shape[1]))).ravel()
    again = np.argsort(keys, kind="stable")
    order[tied] = rows[again]
    differs[tied[1:]] = keys[again[1:]] != keys[again[:-1]]
    return (order, differs) if exact else _apart(order, differs, hashed, weights)


def _are_labels(column: NDArray[Any]) -> bool:
    """Whether targets [N] are the places of classes, or 0 and 1, NaN where one is missing."""
    return column.dtype.kind != "f" or bool((np.isin(column, (0, 1)) | np.isnan(column)).all())


def _apart(
    order: NDArray[np.int64],
    differs: NDArray[np.bool_],
    hashed: NDArray[np.uint64],
    weights: NDArray[np.float64] | None,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sorted rows with those moved apart that share X alone: the r-th of their targets, from 0, changes the hash by r.
    Targets without a weight do not count."""
    run = np.cumsum(differs) - 1  # of rows that are equal
    counted = np.bincount(run, None if weights is None else weights[order] > 0) > 0
    first = hashed[order[differs]]
    before: NDArray[np.int64] = np.cumsum(counted) - counted
    begins = np.append(True, first[1:] != first[:-1])
    rank = before - np.maximum.accumulate(np.where(begins, before, 0))
    words = rank.astype(np.uint64)
    own = np.where(rank, _mixed(_mixed(first, words), words).byteswap(), first)
    again = np.argsort(own[run], kind="stable")
    return order[again], differs[again]


def _mixed(hashed: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes [N] of what was hashed and a further word of each."""
    found = (hashed ^ words) * _FACTOR
    return found ^ (found >> np.uint64(32))


def _bits(column: NDArray[Any]) -> NDArray[np.uint64]:
    """The bytes [N] of numbers in double precision."""
    return (column.astype(np.float64) + 0.0).view(np.uint64)


def _in_order(column: NDArray[Any]) -> NDArray[np.uint64]:
    """Numbers [N] as bytes that are in their order."""
    bits, sign = _bits(column), np.uint64(1 << 63)
    return np.where(bits & sign, ~bits, bits | sign).byteswap()


_DIGITS = 10
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, 2^64 over the golden ratio
