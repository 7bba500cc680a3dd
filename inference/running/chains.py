"""What the chains of a fit have done so far, all that a checkpoint holds, and the labels of points in their draws."""

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
"""What a chain goes on from: a frozen dataclass of tensors and plain data, of the kernel's own class."""

OfRows = Annotated[Tensor, "N"]
"""The type of the fields [N, ...] of a state that have an entry for each row: of each rank those of its own."""

OfTokens = Annotated[Tensor, "M"]
"""The same of fields [M, ...] with an entry for each token of the documents."""

OfEntries = Annotated[Tensor, "nnz"]
"""The same of fields [nnz, ...] with an entry for each word of each document."""

SUM = "sum over ranks"
PartOfSum = Annotated[Tensor, SUM]
"""The type of the fields [...] of a state that are sums over the rows of each rank: their sum over all is what counts.
"""

News = dict[str, Any]
"""The fields of a chain, the state of its generator in place of the generator; of values, times, draws the latest."""


@dataclass
class Chain:
    """What one chain (or restart) has done so far."""

    state: State
    generator: torch.Generator
    step: int = 0
    seconds: float = 0.0
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    finished: bool = False

    def news(self, step: int, num_draws: int) -> News:
        """What another process must know of the chain that knows so many steps and draws of it."""
        # a view would take the storage of the whole along
        draws = [{name: value.clone() for name, value in draw.items()} for draw in self.draws[num_draws:]]
        latest = {"values": self.values[step:], "times": self.times[step:], "draws": draws}
        return {**vars(self), "generator": self.generator.get_state(), **latest}

    def add(self, news: News) -> None:
        """Take over what the chain has done in another process."""
        for name, value in news.items():
            known = getattr(self, name)
            if name == "generator":
                known.set_state(value)
            elif isinstance(known, list):
                known += value
            else:
                setattr(self, name, value)


def chain_of(news: News) -> Chain:
    """A new chain that has come as far as the news say."""
    chain = Chain(None, torch.Generator())
    chain.add(news)
    return chain


def shares_of(state: type[Any]) -> dict[str, str]:
    """What ranks have some of each, by the name of the field of a class of states: the axis that is split, or `SUM`."""
    try:
        hints = get_type_hints(state, include_extras=True)
    except NameError:  # a class of a user, with annotations that only a type checker can read
        return {}
    kinds = ((name, kind) for name, hint in hints.items() for kind in (hint, *get_args(hint)))
    return {name: kind.__metadata__[0] for name, kind in kinds if kind in _SHARED}


LABELS = "assignments"  # what they are called in a draw: [N], of the same points in every draw


class LabelRows:
    """Keeps draws, their labels in the rows of one array [S, N]; a wider type takes over once labels need it."""

    def __init__(self, num_draws: int) -> None:
        self._num_draws = num_draws
        self._array: Tensor | None = None
        self._kept: dict[int, Draw] = {}

    def keep(self, draw: Draw, row: int) -> Draw:
        """The same draw, with its labels [N], if it has any, in a row of the array."""
        labels, array = draw.get(LABELS), self._array
        if labels is None or labels.dtype not in _TYPES or labels.ndim != 1:  # another structure's
            return draw
        kind = _smallest_type([labels])
        if array is None or _largest(kind) > _largest(array.dtype):
            array = self._array = torch.empty(self._num_draws, len(labels), dtype=kind, device=labels.device)
            for place, other in self._kept.items():
                array[place] = other[LABELS]
                other[LABELS] = array[place]
        array[row] = labels
        if _trim and labels.nbytes >= _LARGE:
            # what is kept of draws lies between the arrays that sweeps have freed, so that hardly one is used again
            _trim(0)
        self._kept[row] = {**draw, LABELS: array[row]}
        return self._kept[row]


def stack_labels(draws: list[Tensor]) -> Tensor:
    """Labels [S, N] of draws [N]: the array whose rows they are, or a new one."""
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
    """The smallest signed type that holds all labels; on a GPU, where to look would take a wait, one that always does.

    As an index torch takes unsigned bytes for a mask.
    """
    if not host.on_cpu(draws[0]):
        return torch.int32
    most = max((int(labels.max()) for labels in draws if len(labels)), default=0)
    return next(kind for kind in _TYPES if most <= _largest(kind))


def _largest(kind: torch.dtype) -> int:
    return torch.iinfo(kind).max


_SHARED = (OfRows, OfTokens, OfEntries, PartOfSum)
_LARGE = 2**20
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc's
_TYPES = (torch.int8, torch.int16, torch.int32, torch.int64)
