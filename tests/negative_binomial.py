"""A family from outside, written from the guide with public names alone: counts, its dispersion a plain number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyro.distributions as dist
import torch

from regbayes.models import ExponentialFamily
from regbayes.models.compiled import register_compiled
from regbayes.models.compiled.scalars import inner, take_logs
from regbayes.models.domains import Positive, PositiveNumbers


@dataclass(eq=False)
class NegativeBinomial(ExponentialFamily):
    """Rows of counts x [D], x_d ~ NegativeBinomial(r, q_d): variance m + m^2 / r, with q_d ~ Beta(a, b_d)."""

    r: float = 2.0
    a: Positive = 2.0
    b: PositiveNumbers = None  # [D]; None: the prior mean of x is about the mean of the data

    def resolve(self, X, weights=None):
        totals, num_rows = X.sum(0), len(X)
        if weights is not None:
            totals, num_rows = weights.to(X) @ X, weights.to(X).sum()
        b = (totals + 1) / (num_rows + 1) / self.r if self.b is None else self.b
        return self.replace(b=torch.as_tensor(b).to(X).expand(X.shape[1]).clone())

    def check(self, X):
        if not ((X >= 0) & (X.round() == X)).all():
            raise ValueError("X has an entry that is no count 0, 1, 2, ...; NegativeBinomial needs counts.")

    def prior(self):
        return torch.cat([self.b.new_full((1,), self.a), self.b])

    def statistics(self, X):
        return torch.cat([X.new_full((len(X), 1), self.r), X], 1)

    def log_base_measure(self, X):
        return (torch.lgamma(X + self.r) - math.lgamma(self.r) - torch.lgamma(X + 1)).sum(1)

    def log_partition(self, chi):
        a, b = chi[..., :1], chi[..., 1:]
        return (torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)).sum(-1)

    def parameters(self, chi, sample):
        return {"q": sample("q", dist.Beta(chi[..., :1].expand_as(chi[..., 1:]), chi[..., 1:]).to_event(1))}

    def distribution(self, parameters):
        q = parameters["q"]
        return dist.NegativeBinomial(self.r, logits=torch.log1p(-q) - q.log()).to_event(1)


@inner
def take_ratios(above, below, out):
    for k in range(len(out)):
        above[k] /= below[k]
        below[k] = 1.0
    take_logs(above, out)


class Compiled(NamedTuple):
    """Rows (sum h(a + b), sum h(a + b - r), a, b [D]), where h(t) = log Gamma(t) / Gamma(t + r)."""

    components: np.ndarray
    X: np.ndarray  # [N, D]
    r: float

    @classmethod
    def of(cls, family, data):
        a, b = float(family.a), family.b.numpy()
        whole = sum(math.lgamma(a + own) - math.lgamma(a + own + family.r) for own in b)
        return cls(np.array([[whole], [0.0], [a], *([own] for own in b)]), data.X.long().numpy(), float(family.r))

    @staticmethod
    def log_normalizers(family, counts):
        a = family.a + family.r * counts
        return len(family.b) * (torch.lgamma(a + family.r) - torch.lgamma(a))

    def log_predictives(self, n, own, out, scratch):
        """One logarithm for the ratio of two products of 32 factors; `own` goes along as if x_n were not in it."""
        X, rows, above, below, total = self.X, self.components, scratch[0], scratch[1], scratch[2]
        for k in range(len(out)):
            out[k] = rows[1, k] if k == own else rows[0, k]
            above[k], below[k] = 1.0, 1.0
        a, factors = rows[2, own], 0
        rows[2, own] = a - 2.0 * self.r
        for d in range(X.shape[1]):
            count, b = X[n, d], rows[3 + d, own]
            if count == 0:
                continue
            rows[3 + d, own] = b - count
            for k in range(len(out)):
                total[k] = rows[2, k] + rows[3 + d, k] + self.r
            for i in range(count):
                for k in range(len(out)):
                    above[k] *= rows[3 + d, k] + i
                    below[k] *= total[k] + i
                factors += 1
                if factors % 32 == 0:
                    take_ratios(above, below, out)
            rows[3 + d, own] = b
        rows[2, own] = a
        take_ratios(above, below, out)

    def shift(self, n, k, sign):
        rows = self.components
        rows[2, k] += sign * self.r
        rows[0, k], rows[1, k] = 0.0, 0.0
        for d in range(self.X.shape[1]):
            rows[3 + d, k] += sign * self.X[n, d]
            total = rows[2, k] + rows[3 + d, k]
            middle = math.lgamma(total)
            rows[0, k] += middle - math.lgamma(total + self.r)
            rows[1, k] += math.lgamma(total - self.r) - middle
        return False


register_compiled(NegativeBinomial, Compiled)
