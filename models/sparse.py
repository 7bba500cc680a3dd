"""Rows of counts that are mostly zero, in compressed form, and sums over dense or sparse rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn.functional import pad

from . import host
from .sums import row_chunks

_WIDE = 8  # columns from which torch's product is faster than that of scipy


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A matrix [N, D] without its zeros (CSR), with the methods of a tensor that families, kernels and checks use.

    Row n has values[starts[n] : starts[n + 1]] in the columns at the same positions, in any order and without
    duplicates.
    """

    starts: Tensor  # [N + 1] int64, from 0 to nnz
    columns: Tensor  # [nnz] int64 in 0..D-1
    values: Tensor  # [nnz] not zero
    num_columns: int  # D

    ndim = 2
    is_sparse = True
    # taken from the values
    dtype, device, is_cuda, new_zeros, new_ones = (
        property(attrgetter(f"values.{name}")) for name in ("dtype", "device", "is_cuda", "new_zeros", "new_ones")
    )

    @classmethod
    def of(cls, X: Any) -> SparseRows:
        """Convert a tensor [N, D], dense, CSR or COO, or any scipy matrix; sparse rows are returned unchanged."""
        if isinstance(X, cls):
            return X
        if isinstance(X, Tensor) and X.layout == torch.strided:
            row, columns = X.nonzero(as_tuple=True)
            starts = torch.searchsorted(row, torch.arange(len(X) + 1, device=row.device))
            return cls(starts, columns, X[row, columns], X.shape[1])
        if isinstance(X, Tensor):
            X = X.detach().to_sparse_csr()  # this also sums duplicates
            starts, columns, values = X.crow_indices().long(), X.col_indices().long(), X.values()
        else:
            X = X.tocsr()
            if not X.has_canonical_format:  # the user's matrix is left unchanged
                X = X.copy()
                X.sum_duplicates()
            starts, columns = (torch.from_numpy(index.astype(np.int64)) for index in (X.indptr, X.indices))
            values = torch.from_numpy(np.require(X.data, requirements=("C", "W")))
        kept = values != 0
        if not kept.all():
            starts = pad(kept.cumsum(0), (1, 0))[starts]
            columns, values = columns[kept], values[kept]
        return cls(starts, columns, values, X.shape[1])

    # -- methods of a tensor -------------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """(N, D)."""
        return torch.Size((len(self), self.num_columns))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def to(self, target: torch.dtype | torch.device | str | Tensor) -> SparseRows:
        """The rows [N, D] in another dtype, on another device, or in the dtype and on the device of a tensor."""
        values = self.values.to(target)
        if values is self.values:
            return self
        starts, columns = (index.to(values.device) for index in (self.starts, self.columns))
        return SparseRows(starts, columns, values, self.num_columns)

    def double(self) -> SparseRows:
        """The rows [N, D] in double precision."""
        return self.to(torch.float64)

    def contiguous(self) -> SparseRows:
        """The rows [N, D] themselves."""
        return self

    def scale_rows(self, factors: Tensor) -> SparseRows:
        """The rows [N, D] times factors [N], none of them 0."""
        return replace(self, values=self.values * factors[self.row_index])

    def scale_columns(self, factors: Tensor) -> SparseRows:
        """The rows [N, D] with each column times one of factors [D], none of them 0."""
        return replace(self, values=self.values * factors[self.columns])

    def square(self) -> SparseRows:
        """The squares of all entries [N, D]."""
        return replace(self, values=self.values.square())

    def __getitem__(self, index: Tensor | slice) -> SparseRows:
        """Some rows, from a slice, indices [M] or a mask [N]."""
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if (first, last, step) == (0, len(self), 1):
                return self
            if step == 1:
                bounds = self.starts[first : max(first, last) + 1]
                entries = slice(*torch.stack([bounds[0], bounds[-1]]).tolist())
                return SparseRows(bounds - bounds[0], self.columns[entries], self.values[entries], self.num_columns)
            index = torch.arange(len(self), device=self.device)[index]
        if index.dtype == torch.bool:
            index = index.nonzero().squeeze(1)
        sizes = self.starts.diff()[index]
        ends = sizes.cumsum(0)
        shift = torch.repeat_interleave(self.starts[index] - (ends - sizes), sizes)
        places = torch.arange(len(shift), device=self.device) + shift
        return SparseRows(pad(ends, (1, 0)), self.columns[places], self.values[places], self.num_columns)

    def __matmul__(self, other: Tensor) -> Tensor:
        """The product [N, K] with a dense matrix [D, K]."""
        if host.on_cpu(self) and other.shape[1] < _WIDE:
            return torch.from_numpy(self._scipy @ other.numpy())
        return self._compressed @ other

    def transposed_product(self, other: Tensor) -> Tensor:
        """The product X^T other [D, K] with a dense matrix [N, K]."""
        if not host.on_cpu(self):
            return self._compressed.t() @ other
        return torch.from_numpy(self._scipy.T @ other.numpy())  # several times as fast as torch's on a CPU

    def sum(self, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        """Sums [D] over the rows (dim 0), or [N] over the columns (dim 1 or -1)."""
        kind = dtype or self.dtype
        rows = self.double()  # in which counts add up exactly, in any order
        if dim == 0:
            return torch.bincount(rows.columns, rows.values, minlength=rows.num_columns).to(kind)
        ones = rows.new_ones(rows.num_columns, 1)
        return rows.once("row sums", lambda: (rows @ ones).squeeze(1)).to(kind, copy=True)

    def entry_sums(self, terms: Tensor) -> Tensor:
        """Sums [N, K] over the entries of each row, from terms [nnz, K] of the entries."""
        count = len(self.columns)
        places = torch.arange(count, device=self.device)
        return SparseRows(self.starts, places, terms.new_ones(count), count) @ terms

    def between(self, first: int, last: int) -> SparseRows:
        """Columns first..last - 1 of the rows [N, D]."""

        def find() -> SparseRows:
            found = self.where((self.columns >= first) & (self.columns < last))
            return SparseRows(found.starts, found.columns - first, found.values, last - first)

        part: SparseRows = self.once((first, last), find)
        return part

    def where(self, kept: Tensor) -> SparseRows:
        """The rows with only those entries that `kept` [nnz] marks; the others become 0."""
        starts = pad(kept.cumsum(0), (1, 0))[self.starts]
        return SparseRows(starts, self.columns[kept], self.values[kept], self.num_columns)

    def once(self, name: Any, find: Callable[[], Any]) -> Any:
        """The result of `find`, computed once for each `name`: these rows never change."""
        if name not in self._found:
            self._found[name] = find()
        return self._found[name]

    @cached_property
    def _found(self) -> dict[Any, Any]:
        return {}

    def to_dense(self) -> Tensor:
        """The dense tensor [N, D]."""
        X = self.values.new_zeros(self.shape)
        X[self.row_index, self.columns] = self.values
        return X

    @cached_property
    def row_index(self) -> Tensor:
        """The row [nnz] of each entry."""
        return torch.repeat_interleave(torch.arange(len(self), device=self.device), self.starts.diff())

    @cached_property
    def _scipy(self) -> scipy.sparse.csr_array:
        parts = self.values.numpy(), self.columns.numpy(), self.starts.numpy()
        return scipy.sparse.csr_array(parts, shape=tuple(self.shape))

    @cached_property
    def _compressed(self) -> Tensor:
        return torch.sparse_csr_tensor(self.starts, self.columns, self.values, size=self.shape)


if TYPE_CHECKING:
    Rows = Any  # dense families narrow it to Tensor, as their `accepts_sparse` says at run time
else:
    Rows = Tensor | SparseRows
"""The rows of X [N, D], dense or sparse."""

Function = Callable[[Tensor], Tensor]


# -- sums over entries and rows --------------------------------------------------------------------------------------


def entries_sum(X: Rows, function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
    """Sums [N] of function(x, *v_d) over the columns of X [N, D], for v [D] each; function(0, ...) must be 0."""
    if isinstance(X, Tensor):
        return torch.cat([function(X[rows], *columns).sum(-1) for rows in row_chunks(X, X.shape[1])])
    return replace(X, values=function(X.values, *(column[X.columns] for column in columns))).sum(-1)


def first_entry(X: Rows, is_wrong: Callable[[Tensor], Tensor]) -> tuple[float, int, int] | None:
    """(value, row, column) of the first entry of X [N, D] for which `is_wrong`, which is false at 0; or None."""
    if isinstance(X, Tensor):
        for rows in row_chunks(X, X.shape[1]):
            if (wrong := is_wrong(X[rows])).any():
                row, column = torch.nonzero(wrong)[0].tolist()
                return X[rows][row, column].item(), rows.start + row, column
        return None
    wrong = is_wrong(X.values)
    if not wrong.any():
        return None
    place = torch.nonzero(wrong)[0]
    return X.values[place].item(), int(X.row_index[place]), int(X.columns[place])


def weighted_sums(X: Rows, weights: Tensor, function: Function | None = None) -> Tensor:
    """sum_n w_nk f(x_n) [K, S] in double precision from weights [N, K]; f is the identity or a `function` of rows."""
    if isinstance(X, SparseRows):
        return X.double().transposed_product(weights.double()).T
    chunks = _chunks(X, weights, weights.shape[1], function)
    return reduce(Tensor.add_, ((own.T @ values).double() for values, own in chunks))


def group_sums(X: Rows, assignments: Tensor, num_groups: int, function: Function | None = None) -> Tensor:
    """Sums [K, S] of f(x_n) over the rows of each group in double precision, from assignments [N] in 0..K-1.

    A product with one-hot rows is the same in every run, unlike `index_add_` on a GPU. On a CPU both are, and rows are
    added one by one if there are many groups.
    """
    if isinstance(X, SparseRows):
        cells = assignments[X.row_index] * X.num_columns + X.columns
        sums = torch.bincount(cells, X.values.double(), minlength=num_groups * X.num_columns)
        return sums.view(num_groups, X.num_columns)
    by_rows = host.on_cpu(X) and num_groups > _MANY
    labels = torch.arange(num_groups, device=X.device).unsqueeze(1)

    def summed(values: Tensor, own: Tensor) -> Tensor:
        if not by_rows:
            return ((own == labels).to(values) @ values).double()
        zeros = values.new_zeros(num_groups, values.shape[1], dtype=torch.float64)
        return zeros.index_add_(0, own, values.double())

    return reduce(Tensor.add_, starmap(summed, _chunks(X, assignments, 0 if by_rows else num_groups, function)))


def _chunks(X: Tensor, given: Tensor, width: int, function: Function | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of f(x), with those of `given` [N, ...], sized for `width` numbers per row beside those of f."""
    function = function or (lambda rows: rows)
    if X.numel() <= _FEW:  # so the width is not needed
        yield function(X), given
        return
    for rows in row_chunks(X, function(X[:1]).shape[1] + width):
        yield function(X[rows]), given[rows]


def _hear_once() -> None:
    """Let torch say unheard what it says once in a process: that CSR is in beta and is not checked."""
    with warnings.catch_warnings():  # which concerns all threads, so not in a fit
        warnings.simplefilter("ignore", UserWarning)
        torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), device="cpu")


_hear_once()
_FEW = 2**10
_MANY = 8  # with so many groups a product takes as long as additions
