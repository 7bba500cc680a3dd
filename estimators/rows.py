"""A canonical order of rows, so that a fit depends on how often each row occurs, not on where it stands.

Random draws belong to positions. Without a canonical order, shuffling the rows, or a row twice in place of a weight of
two, would change the draws that a row gets. Rows are sorted before the fit, and results are put back afterwards. The
order is that of a hash, so that rows look shuffled: a scan that visits similar rows one after another mixes slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray


@dataclass(frozen=True)
class SortedRows:
    """The M rows of a fit, from N rows of a user."""

    X: Any  # [M, D], an array or a sparse matrix
    y: Any  # [M], or label sets [M, L], an array or a sparse matrix; None: no targets
    weights: NDArray[np.float64] | None  # [M]; None: all 1
    place: NDArray[np.int64]  # [N] the index of each row of the user among the M rows

    @property
    def num_different(self) -> int:
        """The number of rows, or 1 if there are only two and these are equal."""
        number: int = self.X.shape[0]
        if number != 2:
            return number
        tables = [_words_of_rows(table) for table in (self.X, self.y) if table is not None]
        return 1 if all(np.all(words[0] == words[1]) for words in tables) else 2


def sort_rows(X: Any, y: Any, weights: NDArray[np.float64] | None, *, merge: bool) -> SortedRows:
    """Sort rows X [N, D], targets y [N] and weights [N] by a hash of x, and of y if it is a label.

    With `merge` equal rows become one, whose weight is their sum. If all rows are equal they become two, as a fit needs
    at least two rows. The order of sparse rows is not that of the same rows as an array.
    """
    sets = y is not None and y.ndim == 2 and scipy.sparse.issparse(X)  # of labels, which may be sparse too
    targets = _words_of_rows(scipy.sparse.csr_array(y)).astype(np.int64) if sets else y
    order, differs = _sorted(_words_of_rows(X), targets, weights)
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


class Part(NamedTuple):
    """Some rows of a user, by their places [M], and how much each counts [M]."""

    place: NDArray[np.int64]
    weights: NDArray[np.float64]


def copies_of(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """As how many rows each row [N] is dealt out: its weight [N] if all weights are whole, else 1, or 0 if it has none.

    So a whole weight of r is r equal rows. A row with another weight is not split: a fold that holds it out must not
    learn from it.
    """
    whole = bool((weights == np.floor(weights)).all())
    found: NDArray[np.int64] = (weights if whole else weights > 0).astype(np.int64)
    return found


def deal(
    rows: SortedRows, key: NDArray[Any], number: int, copies: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """How many copies of each row of the user, of `copies` [N] (None: one of each), each fold holds out, [N, F].

    Rows, sorted and not merged, are dealt out one after another in the order of a key [N] of the sorted rows, copy by
    copy. Equal rows follow one another, so each fold gets its share of them. If one fold had all rows with some x and
    one label, the others would teach the opposite label for this x.
    """
    counts = np.ones(len(key), dtype=np.int64)
    if copies is not None:
        counts[rows.place] = copies
    order = np.argsort(key, kind="stable")
    ends = counts[order].cumsum()
    number = min(number, max(1, int(ends[-1])))
    dealt = np.empty((len(key), number), dtype=np.int64)
    dealt[order] = _dealt_before(ends, number) - _dealt_before(ends - counts[order], number)
    found: NDArray[np.int64] = dealt[rows.place]
    return found


def _dealt_before(places: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """How many of the places before each of these [N] are in each fold [N, F]; place p is in fold p modulo F."""
    return (places[:, None] + number - 1 - np.arange(number)) // number


def splits_of(
    dealt: NDArray[np.int64], copies: NDArray[np.int64], weights: NDArray[np.float64]
) -> list[tuple[Part, Part]]:
    """For each fold the rows to learn from and those held out, `dealt` [N, F] of the copies [N] of each row.

    The copies of a row have its weight [N] together.
    """
    unit = weights / np.maximum(copies, 1)

    def part(number: NDArray[np.int64]) -> Part:
        place = np.flatnonzero(number)
        return Part(place, number[place] * unit[place])

    return [(part(copies - held), part(held)) for held in dealt.T]


def deal_groups(groups: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64], number: int) -> NDArray[np.int64]:
    """The fold [N] of each row, such that no group [N] is split and folds are alike in y [N] and in weight.

    Groups are dealt out in the order of their mean y, one to each fold in turn; of each such set of groups the heaviest
    goes to the lightest fold.
    """
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

    They are sums over the sorted distinct values of y. So they are the same, bit for bit, if rows are reordered or
    repeated in place of weights, or if rows of weight 0 are added.
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

    Moments of tasks with few rows are shrunk towards those of all tasks by as much as chance explains (`_towards_all`):
    log variances first, then means. A task without rows gets the common moments. A task whose targets are all equal
    keeps its mean and gets a standard deviation of 1.
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
    """Shrink estimates x_m [M] with known variances s_m [M] towards their common value v; also returns v.

        x_m - min(1, (M - 1) / q) (x_m - v),    v = sum_m x_m / s_m / sum_m 1 / s_m,    q = sum_m (x_m - v)^2 / s_m

    No estimate moves by more than two of its standard errors (James & Stein 1961; limited as by Efron & Morris 1972),
    so variances may differ by any factor.
    """
    common = float(np.average(values, weights=1 / variances))
    gaps = values - common
    spread = float((gaps**2 / variances).sum())
    share = min(1.0, (len(values) - 1) / spread) if spread > 0 else 1.0
    most = np.minimum(2 * np.sqrt(variances), np.abs(gaps))
    return values - np.clip(share * gaps, -most, most), common


def in_units(mean: float, scale: float, unit: float) -> tuple[float, float]:
    """Convert moments of numbers that were divided by a unit; a deviation that is only rounding becomes 1."""
    return mean * unit, scale * unit if scale > np.finfo(np.float64).eps * abs(mean) else 1.0


def _words_of_rows(X: Any) -> NDArray[Any]:
    """Numbers [N, W] that are equal for equal rows X [N, D] alone: an array itself; of sparse rows a hash of 64 bits.

    The hash adds up those of the entries that are not 0, so that it takes no time for the others. It is given as two
    numbers below 2^32, which double precision holds.
    """
    if not scipy.sparse.issparse(X):
        return X
    entries = X.tocsr(copy=not X.has_canonical_format)
    entries.sum_duplicates()
    number = entries.data != 0
    columns, bits = entries.indices[number].astype(np.uint64), _bits(entries.data[number])
    hashes = _mixed(_mixed(_mixed(np.full(len(bits), _FACTOR), columns), bits), columns)
    found = np.zeros(X.shape[0], dtype=np.uint64)
    np.add.at(found, np.repeat(np.arange(X.shape[0]), np.diff(entries.indptr))[number], hashes)
    return np.column_stack([found >> np.uint64(32), found & np.uint64(0xFFFFFFFF)]).astype(np.float64)


def _sorted(
    X: NDArray[Any], y: NDArray[Any] | None, weights: NDArray[np.float64] | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The order [N] of the rows, and whether each sorted row differs from the one before [N].

    Rows are sorted by their hashes; rows of one hash are sorted by the bytes of X and then by y. 0 and -0 are equal.
    Real targets are not hashed: their last bits depend on the units of y, and the order must not.
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
    rows = order[tied]  # almost always rows with the same X
    words = [*(_bits(column[rows]) for column in X.T), *(_in_order(column[rows]) for column in targets)]
    bits = np.column_stack([hashed[rows].byteswap(), *words])
    keys = bits.view(np.dtype((np.void, bits.itemsize * bits.shape[1]))).ravel()
    again = np.argsort(keys, kind="stable")
    order[tied] = rows[again]
    differs[tied[1:]] = keys[again[1:]] != keys[again[:-1]]
    return (order, differs) if exact else _apart(order, differs, hashed, weights)


def _are_labels(column: NDArray[Any]) -> bool:
    """Whether targets [N] are class indices, or 0 and 1 with NaN where one is missing."""
    return column.dtype.kind != "f" or bool((np.isin(column, (0, 1)) | np.isnan(column)).all())


def _apart(
    order: NDArray[np.int64],
    differs: NDArray[np.bool_],
    hashed: NDArray[np.uint64],
    weights: NDArray[np.float64] | None,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sort again such that rows that share X but not y are apart: their hash is mixed with the rank r = 0, 1, ... of y.

    Rows of weight 0 do not count in the ranks.
    """
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
    """Hashes [N] with one more word [N] mixed into each."""
    found = (hashed ^ words) * _FACTOR
    return found ^ (found >> np.uint64(32))


def _bits(column: NDArray[Any]) -> NDArray[np.uint64]:
    """The bytes [N] of numbers in double precision."""
    return (column.astype(np.float64) + 0.0).view(np.uint64)


def _in_order(column: NDArray[Any]) -> NDArray[np.uint64]:
    """Numbers [N] as words whose bytes sort in the order of the numbers."""
    bits, sign = _bits(column), np.uint64(1 << 63)
    return np.where(bits & sign, ~bits, bits | sign).byteswap()


_DIGITS = 10
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, 2^64 over the golden ratio
