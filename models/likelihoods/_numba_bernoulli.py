"""The compiled forms of `BernoulliBeta`, which reads only the ones of a row, and of `MaskedBernoulli`."""

import math
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from ..compiled.scalars import inner, prefetch, take_logs
from ..data import Data
from ._numba_counts import compressed
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
        (starts, columns, _), a, b = compressed(data), family.a.numpy(), family.b.numpy()
        prior = np.zeros((3 + len(a), 1))
        prior[0] = np.log(b / (a + b)).sum()
        return cls(prior, starts, columns, a, b)

    @staticmethod
    def wide() -> int:
        return 64

    def summed(self, family: BernoulliBeta, data: Data, labels: Tensor, slots: int) -> np.ndarray:
        """Sum at once, since each row added alone would change all columns of its component."""
        cells = self.columns + 3
        cells *= slots
        cells += np.repeat(labels.numpy(), np.diff(self.starts))
        table = np.bincount(cells, minlength=(3 + len(self.a)) * slots).astype(np.float64).reshape(-1, slots)
        size = table[2] = np.bincount(labels.numpy(), minlength=slots)
        step = max(1, 2**18 // slots)
        for first in range(0, len(self.a), step):
            a, b = self.a[first : first + step, None], self.b[first : first + step, None]
            zeros = size - table[3 + first : 3 + first + step]
            table[0] += np.log((b + zeros) / (a + b + size)).sum(0)
            before = np.divide(b + zeros - 1, a + b + size - 1, out=np.ones_like(zeros), where=zeros > 0)
            table[1] += np.log(before).sum(0)
        return table

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
        rows = self.components
        rows[2, k] += sign
        for index in range(self.starts[n], self.starts[n + 1]):
            rows[3 + self.columns[index], k] += sign
        size, log_zero, log_before = rows[2, k], 0.0, 0.0
        zero, before = 1.0, 1.0
        for d in range(len(self.a)):
            zeros, total = self.b[d] + size - rows[3 + d, k], self.a[d] + self.b[d] + size
            zero *= zeros / total
            if rows[3 + d, k] < size:
                before *= (zeros - 1.0) / (total - 1.0)
            if min(zero, before) < 1e-150:
                log_zero += math.log(zero)
                log_before += math.log(before)
                zero, before = 1.0, 1.0
        rows[0, k], rows[1, k] = log_zero + math.log(zero), log_before + math.log(before)
        return False


class MaskedBits(NamedTuple):
    """Rows: ones [D], observed entries [D]."""

    components: np.ndarray
    bits: np.ndarray  # [N, D] int8: 1, 0, or -1 where one is missing
    a: np.ndarray  # [D] of the prior
    b: np.ndarray  # [D]

    @classmethod
    def of(cls, family: MaskedBernoulli, data: Data) -> Self:
        starts, columns, values = (array.numpy() for array in data.nonzeros)
        bits = np.zeros(data.X.shape, np.int8)
        bits[np.repeat(np.arange(len(bits)), np.diff(starts)), columns] = np.where(np.isnan(values), -1, 1)
        return cls(np.zeros((2 * bits.shape[1], 1)), bits, family.a.numpy(), family.b.numpy())

    def log_predictives(self, n, own, out, scratch):
        """One logarithm for the product over sixteen observed columns; x_n is taken out of its component meanwhile."""
        rows, size, factors = self.components, self.bits.shape[1], 0
        part, whole = scratch[0], scratch[1]
        for k in range(len(out)):
            out[k] = 0.0
            part[k], whole[k] = 1.0, 1.0
        _count(self, n, own, -1.0)
        for d in range(size):
            if self.bits[n, d] >= 0:
                a, b = self.a[d], self.b[d]
                for k in range(len(out)):
                    part[k] *= a + rows[d, k] if self.bits[n, d] else b + rows[size + d, k] - rows[d, k]
                    whole[k] *= a + b + rows[size + d, k]
                factors += 1
                if factors % 16 == 0:
                    _take_ratio(part, whole, out)
        _take_ratio(part, whole, out)
        _count(self, n, own, 1.0)

    def shift(self, n, k, sign):
        _count(self, n, k, sign)
        return False


@inner
def _count(state, n, k, sign):
    """Add the observed bits of x_n to component k, or remove them."""
    size = state.bits.shape[1]
    for d in range(size):
        if state.bits[n, d] >= 0:
            state.components[d, k] += sign * state.bits[n, d]
            state.components[size + d, k] += sign


@inner
def _take_ratio(part, whole, out):
    """Add the logarithms of part / whole to `out`, and reset both to 1."""
    for k in range(len(out)):
        part[k] /= whole[k]
        whole[k] = 1.0
    take_logs(part, out)
