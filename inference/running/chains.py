"""The chains of a fit, the parts of their states that ranks share, and the storage of assignments in draws."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_type_hints

import torch
from torch import Tensor

from ...models import host
from ..structures import Draw

State = Any
"""The state of a chain: a frozen dataclass of tensors and plain data, of the kernel's own class."""

OfRows = Annotated[Tensor, "N"]
"""The type of a state's fields [N, ...] with an entry for each row; each rank has those of its own rows."""

OfTokens = Annotated[Tensor, "M"]
"""The type of fields [M, ...] with an entry for each token of the documents."""

OfEntries = Annotated[Tensor, "nnz"]
"""The type of fields [nnz, ...] with an entry for each word of each document."""

SUM = "sum over ranks"
PartOfSum = Annotated[Tensor, SUM]
"""The type of fields [...] that are sums over the rows of a rank; only their sum over all ranks has a meaning."""

News = dict[str, Any]
"""The fields of a chain, with the state of its generator; of values, times and draws those since the last news."""


@dataclass
class Chain:
    """The progress of one chain (or restart)."""

    state: State
    generator: torch.Generator
    step: int = 0
    seconds: float = 0.0
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    finished: bool = False

    def news(self, step: int, num_draws: int) -> News:
        """The news for another process that has the chain up to `step` and `num_draws`."""
        # clone: a view would be sent with the storage of the whole
        draws = [{name: value.clone() for name, value in draw.items()} for draw in self.draws[num_draws:]]
        latest = {"values": self.values[step:], "times": self.times[step:], "draws": draws}
        return {**vars(self), "generator": self.generator.get_state(), **latest}

    def add(self, news: News) -> None:
        """Add the news of this chain from another process."""
        for name, value in news.items():
            known = getattr(self, name)
            if name == "generator":
                known.set_state(value)
            elif isinstance(known, list):
                known += value
            else:
                setattr(self, name, value)


def chain_of(news: News) -> Chain:
    """A new chain with the content of these news."""
    chain = Chain(None, torch.Generator())
    chain.add(news)
    return chain


def shares_of(state: type[Any]) -> dict[str, str]:
    """The fields of a class of states that are split among ranks, with the axis that is split, or `SUM`."""
    try:
        hints = get_type_hints(state, include_extras=True)
    except NameError:  # a user's class, with annotations that only a type checker can read
        return {}
    kinds = ((name, kind) for name, hint in hints.items() for kind in (hint, *get_args(hint)))
    return {name: kind.__metadata__[0] for name, kind in kinds if kind in _SHARED}


LABELS = "assignments"  # the name of the assignments [N] in a draw, of the same points in every draw


class LabelRows:
    """Stores the assignments of draws as rows of one array [S, N], of the smallest integer type that holds them."""

    def __init__(self, num_draws: int) -> None:
        self._num_draws = num_draws
        self._array: Tensor | None = None
        self._kept: dict[int, Draw] = {}

    def keep(self, draw: Draw, row: int) -> Draw:
        """The draw with its assignments [N], if any, moved to a row of the array."""
        labels, array = draw.get(LABELS), self._array
        if labels is None or labels.dtype not in _TYPES or labels.ndim != 1:  # of another structure
            return draw
        kind = _smallest_type([labels])
        if array is None or _largest(kind) > _largest(array.dtype):
            array = self._array = torch.empty(self._num_draws, len(labels), dtype=kind, device=labels.device)
            for place, other in self._kept.items():
                array[place] = other[LABELS]
                other[LABELS] = array[place]
        array[row] = labels
        if _trim and labels.nbytes >= _LARGE:
            # draws kept between arrays that sweeps have freed would prevent the reuse of that memory
            _trim(0)
        self._kept[row] = {**draw, LABELS: array[row]}
        return self._kept[row]


def stack_labels(draws: list[Tensor]) -> Tensor:
    """Assignments [S, N] of draws [N]: the array that holds them as rows, if there is one, otherwise a new one."""
    first, size = draws[0], len(draws[0])
    if first.dtype != torch.int64 and [_place(draw) for draw in draws] == [
        (*_place(first)[:2], _place(first)[2] + index * size) for index in range(len(draws))
    ]:
        return first.as_strided((len(draws), size), (size, 1))
    stacked = torch.empty(len(draws), size, dtype=_smallest_type(draws), device=first.device)
    for row, draw in zip(stacked, draws, strict=True):
        row.copy_(draw)
    return stacked


def _place(labels: Tensor) -> tuple[torch.dtype, int, int]:
    return labels.dtype, labels.untyped_storage().data_ptr(), int(labels.storage_offset())


def _smallest_type(draws: list[Tensor]) -> torch.dtype:
    """The smallest signed type that holds all assignments; on a GPU int32, without a wait for the largest one.

    Not unsigned: torch reads unsigned bytes as a mask when they index.
    """
    if not host.on_cpu(draws[0]):
        return torch.int32
    most = max((int(labels.max()) for labels in draws if len(labels)), default=0)
    return next(kind for kind in _TYPES if most <= _largest(kind))


def _largest(kind: torch.dtype) -> int:
    return torch.iinfo(kind).max


_SHARED = (OfRows, OfTokens, OfEntries, PartOfSum)
_LARGE = 2**20
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # of glibc
_TYPES = (torch.int8, torch.int16, torch.int32, torch.int64)
