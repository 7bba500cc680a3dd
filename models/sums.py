"""Sums over the rows of the data: in chunks that fit a cache, and over the machines that hold the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor


class Sized(Protocol):
    """What holds rows: a tensor [N, ...] or sparse rows."""

    @property
    def is_cuda(self) -> bool: ...

    def __len__(self) -> int: ...


def all_sum(tensor: Tensor) -> Tensor:
    """The sum [...] over all machines of what each has summed over its own rows; here one machine has all rows.

    Every sum over rows ends here, data-dependent defaults included, so that many machines need this function alone.
    """
    return tensor


def row_chunks(X: Sized, width: int) -> Iterator[slice]:
    """Slices of the rows of X [N, ...], so that an array of `width` numbers for each row fits a cache, or a GPU."""
    step = max(1, (2**25 if X.is_cuda else 2**18) // max(1, width))
    # one empty chunk for no rows, so that results have their shape
    yield from (slice(start, start + step) for start in range(0, max(1, len(X)), step))
