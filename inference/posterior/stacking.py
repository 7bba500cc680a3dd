"""Stacking of draws with different numbers of components into one tensor per name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..running.chains import LABELS, stack_labels
from ..structures import Draw
from .draws import FIRST, axes_of, fills_of
from .shapes import known_name


def stacks(record: type[Any]) -> Callable[[list[Draw]], Draw]:
    """The function of a `Structure` that stacks draws of a record."""
    return partial(stack_draws, record=record)


def stack_draws(draws: list[Draw], record: type[Any]) -> Draw:
    """One tensor [S, ...] for each entry of S draws of a record, padded to the largest number of components.

    Axes K are padded at their end, axes K+1 before the last entry, which belongs to new components.
    """
    axes, fills = axes_of(record), fills_of(record)
    found = {}
    for name in draws[0]:
        values, known = [draw[name] for draw in draws], known_name(name, axes)
        if name == LABELS:
            found[name] = stack_labels(values)
        elif known is None or len({value.shape for value in values}) == 1:
            found[name] = torch.stack(values)
        else:
            found[name] = _stack_padded(values, axes[known].rpartition(":")[2].split(), fills[known])
    return found


def _stack_padded(values: list[Tensor], axes: list[str], fills: tuple[Any, ...]) -> Tensor:
    """Padded values of one entry with these axes, [S, ...]."""
    filled = [dim for dim, axis in enumerate(axes) if axis in {"K", "K+1"}]
    most = {dim: max(value.shape[dim] for value in values) for dim in filled}
    shape = [most.get(dim, size) for dim, size in enumerate(values[0].shape)]
    stacked = values[0].new_empty(len(values), *shape)
    for place, value in zip(stacked, values, strict=True):
        for index, dim in enumerate(filled):
            fill = fills[index] if index < len(fills) else 0.0
            value = _padded(value, dim, most[dim] - value.shape[dim], fill, before_last=axes[dim] == "K+1")
        place.copy_(value)
    return stacked


def _padded(value: Tensor, dim: int, missing: int, fill: Any, *, before_last: bool) -> Tensor:
    number = value.shape[dim] - before_last
    shape = [missing if axis == dim else size for axis, size in enumerate(value.shape)]
    more = value.narrow(dim, 0, 1).expand(shape) if fill == FIRST else value.new_full(shape, fill)
    return torch.cat([value.narrow(dim, 0, number), more, value.narrow(dim, number, int(before_last))], dim)
