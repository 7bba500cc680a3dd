"""Sums over the rows of the data: in chunks that fit a cache, and over the ranks that hold the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from . import host

if TYPE_CHECKING:
    from .ranks import Ranks

_CURRENT: ContextVar[Ranks | None] = ContextVar("ranks", default=None)
_WAITING: ContextVar[list[Later]] = ContextVar("waiting")  # sums that the next exchange includes


class Sized(Protocol):
    """An object with rows: a tensor [N, ...] or sparse rows."""

    @property
    def device(self) -> torch.device: ...

    def __len__(self) -> int: ...


def all_sum(tensor: Tensor) -> Tensor:
    """The sum [...] over all ranks of each rank's own sum; the tensor itself if one process has all rows.

    Every sum over rows ends here, data-dependent defaults included; all ranks must call it in the same order.
    """
    those = ranks()
    if those is None:
        return tensor
    return all_sums(tensor)[0] if _WAITING.get() else those.sum(tensor)


def all_sums(*tensors: Tensor) -> list[Tensor]:
    """`all_sum` of several tensors [...], exchanged as one in double precision."""
    if (those := ranks()) is None:
        return list(tensors)
    waiting = _WAITING.get()
    every = [*tensors, *(each.own for each in waiting)]
    total = those.sum(torch.cat([part.detach().to(every[0].device, torch.float64).flatten() for part in every]))
    parts = zip(total.split([part.numel() for part in every]), every, strict=True)
    sums = [part.view(own.shape).to(own) for part, own in parts]
    for each, found in zip(waiting, sums[len(tensors) :], strict=True):
        each.total = found
    waiting.clear()
    return sums[: len(tensors)]


class Later:
    """A deferred `all_sum` of a tensor [...], which the next sum over all ranks includes.

    All ranks must create the same ones in the same order.
    """

    def __init__(self, own: Tensor) -> None:
        self.own, self.total = own, own if ranks() is None else None
        if self.total is None:
            _WAITING.get().append(self)

    def __call__(self) -> Tensor:
        """The sum [...]; starts an exchange if none has included it yet."""
        if self.total is None:
            told()
        assert self.total is not None
        return self.total


def told() -> None:
    """Exchange all deferred sums."""
    if ranks() is not None and _WAITING.get():
        all_sums()


def largest_later(tensor: Tensor) -> Callable[[], Tensor]:
    """A function that returns `all_largest` of a tensor [...]; it joins the next exchange."""
    found = Later(apart(tensor))
    return lambda: found().amax(0)


def largest_of(values: Tensor) -> Tensor:
    """The largest [] of the numbers [n] on this rank; -inf if there are none."""
    return values.amax() if values.numel() else values.new_full((), -torch.inf)


def all_count(number: int) -> int:
    """The number of rows of all ranks, from the number on this rank."""
    return number if ranks() is None else int(all_sum(torch.tensor(number, device="cpu")))


def all_any(flags: Tensor) -> bool:
    """Whether any flag [...] is true on any rank."""
    found = flags.any()
    return bool(found) if ranks() is None else bool(all_sum(found.long()) > 0)


def all_largest(tensor: Tensor) -> Tensor:
    """The elementwise maximum [...] of the tensors of all ranks."""
    those = ranks()
    return tensor if those is None else those.largest(tensor)


def all_rows(table: Tensor, at: tuple[int, int] | None = None) -> Tensor:
    """The rows [N, ...] of all ranks in order, from this rank's rows [n, ...] and their `span`, if known."""
    if ranks() is None:
        return table
    start, total = span(len(table)) if at is None else at
    rows = table.new_zeros(total, *table.shape[1:])
    rows[start : start + len(table)] = table
    return all_sum(rows)


def all_values(values: Tensor) -> Tensor:
    """The distinct values [L] of all ranks, in increasing order, from this rank's values [n]."""
    return torch.unique(all_rows(torch.unique(values)))


def all_named(labels: Tensor, number: int | None = None) -> tuple[Tensor, Tensor]:
    """The distinct labels [K] of all ranks in increasing order, and the index [n] of each of this rank's labels.

    If labels are known to be 0..number-1, pass `number`: one exchange is then enough.
    """
    if ranks() is None:
        return torch.unique(labels, return_inverse=True)
    if number is None:
        values = all_values(labels)
    else:
        values = torch.nonzero(all_sum(labels.new_zeros(number).index_fill(0, labels, 1))).flatten()
    return values, torch.searchsorted(values, labels)


def span(number: int) -> tuple[int, int]:
    """The index of this rank's first row among all ranks' rows, and the number of all rows, from this rank's number."""
    if ranks() is None:
        return 0, number
    sizes, own = each_rank(torch.tensor(number, device="cpu"))
    return int(sizes[:own].sum()), int(sizes.sum())


def each_rank(value: Tensor) -> tuple[Tensor, int]:
    """The values [R] of all ranks, from this rank's `value` [], and the index of this rank."""
    those = ranks()
    return all_sum(apart(value)), 0 if those is None else those.number


def apart(value: Tensor) -> Tensor:
    """A tensor [R, ...] with this rank's `value` [...] at its index and zeros for the other ranks."""
    if (those := ranks()) is None:
        return value.unsqueeze(0)
    found = value.new_zeros(those.size, *value.shape)
    found[those.number] = value
    return found


def row_chunks(X: Sized, width: int) -> Iterator[slice]:
    """Slices of the rows of X [N, ...], such that an array with `width` numbers per row fits a cache, or a GPU."""
    step = max(1, (2**18 if host.on_cpu(X) else 2**25) // max(1, width))
    # without rows there is one empty chunk, so that results have their shape
    yield from (slice(start, start + step) for start in range(0, max(1, len(X)), step))


def ranks() -> Ranks | None:
    """The ranks of the fit that runs here; None if this process has all rows."""
    return _CURRENT.get()


@contextmanager
def among(those: Ranks | None) -> Iterator[None]:
    """A context in which `ranks()` returns these; with None each process works alone."""
    before, waiting = _CURRENT.set(those), _WAITING.set([])
    try:
        yield
    finally:
        _CURRENT.reset(before)
        _WAITING.reset(waiting)
