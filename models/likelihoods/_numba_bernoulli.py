"""The compiled forms of `BernoulliBeta` and `MaskedBernoulli`: of a row they read the ones and the missing bits."""

import math
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from ..compiled.scalars import inner, prefetch, take_logs
from ..data import Data
from .bernoulli import BernoulliBeta
from .masked_bernoulli import MaskedBernoulli


class Bernoulli(NamedTuple):
    """Rows: sum log(b / (a + b)), the same with one 0 fewer in each column that has a 0, number of points, ones [D]."""

    components: np.ndarray
    starts: np.ndarray  # [N + 1]
    columns: np.ndarray  # [starts[N]]
    a: np.ndarray  # [D] of the prior
    b: np.ndarray  # [D]

    @classmethod
    def of(cls, family: BernoulliBeta, data: Data) -> Self:
        return cls(*_arrays(family, data, 3 + len(family.a)))

    @staticmethod
    def wide() -> int:
        return 64

    def summed(self, family: BernoulliBeta, data: Data, labels: Tensor, slots: int) -> np.ndarray:
        return _summed(self, labels.numpy(), slots)

    def fetch(self, n):
        prefetch(self.columns, self.starts[n])

    def log_predictives(self, n, own, out, scratch):
        """The sum over all columns as if all were 0, plus log(a / b) for each 1 of x_n."""
        rows = self.components
        one, zero = scratch[0], scratch[1]
        without, size, last = rows[1, own], rows[2, own], self.starts[n + 1]
        for k in range(len(out)):
            out[k] = rows[0, k]
            one[k], zero[k] = 1.0, 1.0
        for first in range(self.starts[n], last, 16):  # one logarithm for the product over sixteen columns
            own_one, own_zero = 1.0, 1.0
            for index in range(first, min(first + 16, last)):
                d = self.columns[index]
                a, b = self.a[d], self.b[d]
                for k in range(len(out)):
                    one[k] *= a + rows[3 + d, k]
                    zero[k] *= b + rows[2, k] - rows[3 + d, k]
                ones = rows[3 + d, own]
                own_one *= a + ones - 1.0
                own_zero *= b + size - ones - 1.0 if ones < size else a + b + size - 1.0
            without += math.log(own_one / own_zero)
            for k in range(len(out)):
                one[k] /= zero[k]
                zero[k] = 1.0
            take_logs(one, out)
        out[own] = without

    def shift(self, n, k, sign):
        return _shift(self, n, k, sign)


class MaskedBits(NamedTuple):
    """Rows: as those of `Bernoulli`, then missing bits [D]."""

    components: np.ndarray
    starts: np.ndarray  # [N + 1]
    columns: np.ndarray  # [starts[N]] d for a 1 in column d, D + d for a missing bit
    a: np.ndarray  # [D] of the prior
    b: np.ndarray  # [D]

    @classmethod
    def of(cls, family: MaskedBernoulli, data: Data) -> Self:
        entries = Data(family.coordinates(data.X), data.features, data.targets)
        return cls(*_arrays(family, entries, 3 + 2 * len(family.a)))

    @staticmethod
    def wide() -> int:
        return 64

    def summed(self, family: MaskedBernoulli, data: Data, labels: Tensor, slots: int) -> np.ndarray:
        return _summed(self, labels.numpy(), slots)

    def fetch(self, n):
        prefetch(self.columns, self.starts[n])

    def log_predictives(self, n, own, out, scratch):
        """The sum over all columns as if all were 0, plus log(a / b) for each 1, less the terms of missing bits."""
        rows, size, last = self.components, len(self.a), self.starts[n + 1]
        over, under, without = scratch[0], scratch[1], rows[1, own]
        for k in range(len(out)):
            out[k] = rows[0, k]
            over[k], under[k] = 1.0, 1.0
        for first in range(self.starts[n], last, 16):  # one logarithm for the product over sixteen columns
            own_over, own_under = 1.0, 1.0
            for index in range(first, min(first + 16, last)):
                is_one = self.columns[index] < size
                d = self.columns[index] if is_one else self.columns[index] - size
                a, b, ones, missing = self.a[d], self.b[d], 3 + d, 3 + size + d
                for k in range(len(out)):
                    observed = rows[2, k] - rows[missing, k]
                    over[k] *= a + (rows[ones, k] if is_one else b + observed)
                    under[k] *= b + observed - rows[ones, k]
                observed = rows[2, own] - rows[missing, own]
                has_zero, total = rows[ones, own] < observed, a + b + observed - 1.0
                if is_one or has_zero:
                    own_over *= a + rows[ones, own] - 1.0 if is_one else total
                    own_under *= b + observed - rows[ones, own] - 1.0 if has_zero else total
            without += math.log(own_over / own_under)
            for k in range(len(out)):
                over[k] /= under[k]
                under[k] = 1.0
            take_logs(over, out)
        out[own] = without

    def shift(self, n, k, sign):
        return _shift(self, n, k, sign)


def _arrays(family: BernoulliBeta, entries: Data, rows: int) -> tuple[np.ndarray, ...]:
    """Components of the prior, the places of the entries [N + 1] and their columns, a and b."""
    starts, columns, _ = (np.ascontiguousarray(array.numpy()) for array in entries.nonzeros)
    a, b, prior = family.a.numpy(), family.b.numpy(), np.zeros((rows, 1))
    prior[0] = np.log(b / (a + b)).sum()
    return prior, starts, columns, a, b


def _summed(form: Bernoulli | MaskedBits, labels: np.ndarray, slots: int) -> np.ndarray:
    """Components [W, slots] at once, since each row added alone would change all columns of its component."""
    cells = form.columns + 3
    cells *= slots
    cells += np.repeat(labels, np.diff(form.starts))
    table = np.bincount(cells, minlength=len(form.components) * slots).astype(np.float64).reshape(-1, slots)
    size, width = np.bincount(labels, minlength=slots), len(form.a)
    table[2] = size
    step = max(1, 2**18 // slots)
    for first in range(0, width, step):
        columns = slice(first, min(first + step, width))
        a, b = form.a[columns, None], form.b[columns, None]
        missing = table[3 + width :][columns]
        observed = size - missing if len(missing) else size
        zeros = observed - table[3:][columns]
        table[0] += np.log((b + zeros) / (a + b + observed)).sum(0)
        before = np.divide(b + zeros - 1, a + b + observed - 1, out=np.ones_like(zeros), where=zeros > 0)
        table[1] += np.log(before).sum(0)
    return table


@inner
def _shift(state, n, k, sign):
    """Add x_n to component k, or remove it."""
    rows, width = state.components, len(state.a)
    rows[2, k] += sign
    for index in range(state.starts[n], state.starts[n + 1]):
        rows[3 + state.columns[index], k] += sign
    masked = len(rows) > 3 + width
    log_zero, log_before = 0.0, 0.0
    zero, before = 1.0, 1.0
    for d in range(width):
        observed = rows[2, k] - rows[3 + width + d, k] if masked else rows[2, k]
        zeros, total = state.b[d] + observed - rows[3 + d, k], state.a[d] + state.b[d] + observed
        zero *= zeros / total
        if rows[3 + d, k] < observed:
            before *= (zeros - 1.0) / (total - 1.0)
        if min(zero, before) < 1e-150:
            log_zero += math.log(zero)
            log_before += math.log(before)
            zero, before = 1.0, 1.0
    rows[0, k], rows[1, k] = log_zero + math.log(zero), log_before + math.log(before)
    return False
