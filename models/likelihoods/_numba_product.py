"""The compiled form of `Product`: those of its families, whose components are rows of one table."""

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numba.extending import overload
from torch import Tensor

from ..compiled import compiled_form, placed
from ..compiled.scalars import UNWRAPPED, unwrapped
from ..data import Data
from .product import Product


class Blocks(NamedTuple):
    """Rows: one that is not used, so that `scratch` has a row for the sum, then those of each family."""

    components: np.ndarray
    parts: tuple[Any, ...]  # the families' forms; their components are views of rows of `components`

    @classmethod
    def of(cls, family: Product, data: Data) -> Self:
        blocks = [(own, Data(x, data.features, data.targets)) for own, x in family.split(data.X)]
        parts = tuple(compiled_form(own).of(own, rows) for own, rows in blocks)
        table = np.concatenate([np.zeros((1, 1)), *(own.components for own in parts)])
        return cls(table, parts).placed(table)

    def placed(self, table: np.ndarray) -> Self:
        """The same form with other components [W, slots]."""
        ends = 1 + np.cumsum([0, *(len(own.components) for own in self.parts)])
        places = zip(self.parts, ends[:-1], ends[1:], strict=True)
        return type(self)(table, tuple(placed(own, table[first:last]) for own, first, last in places))

    @staticmethod
    def log_normalizers(family: Product, counts: Tensor) -> Tensor:
        total = torch.zeros_like(counts)
        for own, _ in family.parts:
            if hasattr(form := compiled_form(own), "log_normalizers"):
                total = total + form.log_normalizers(own, counts)
        return total

    def log_predictives(self, n, own, out, scratch):
        total = scratch[0]
        for k in range(len(out)):
            total[k] = 0.0
        _add_each(self.parts, n, own, out, total, scratch[1:])
        for k in range(len(out)):
            out[k] = total[k]

    def shift(self, n, k, sign):
        return _shift_each(self.parts, n, k, sign)


def _add_each(parts, n, own, out, total, scratch):
    """Add the log predictives of all parts to `total`."""


def _shift_each(parts, n, k, sign):
    """Add a row to all parts, or remove it; return whether too much cancelled in one."""


@overload(_add_each, jit_options=UNWRAPPED, strict=False)
def _add_first(parts, n, own, out, total, scratch):  # numba takes one type at a time, so the others follow in a call
    if not len(parts):
        return lambda parts, n, own, out, total, scratch: None
    log_predictives = unwrapped(parts[0].instance_class.log_predictives)

    def add(parts, n, own, out, total, scratch):
        log_predictives(parts[0], n, own, out, scratch)
        for k in range(len(out)):
            total[k] += out[k]
        _add_each(parts[1:], n, own, out, total, scratch)

    return add


@overload(_shift_each, jit_options=UNWRAPPED, strict=False)
def _shift_first(parts, n, k, sign):
    if not len(parts):
        return lambda parts, n, k, sign: False
    shift = unwrapped(parts[0].instance_class.shift)

    def move(parts, n, k, sign):
        stale = shift(parts[0], n, k, sign)
        return _shift_each(parts[1:], n, k, sign) or stale

    return move
