"""The prior over partitions of a finite mixture whose number of components K is unknown.

    K ~ p_K,    pi | K ~ Dirichlet(gamma, ..., gamma),    p(n_1, ..., n_t) = V_N(t) prod_c gamma^(n_c)

    V_N(t) = sum_{k >= t} k! / (k - t)! / (gamma k)^(N) p_K(k),        x^(m) = Gamma(x + m) / Gamma(x)

For the last of N points a block weighs n_c + gamma, a new one gamma V_N(t + 1) / V_N(t). It has no independent sticks.
Source: Miller & Harrison (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ..domains import GammaPrior, Number
from .base import Hyper, PartitionPrior
from .hyper import GammaConcentration


@dataclass(eq=False)
class MixtureOfFiniteMixtures(GammaConcentration, PartitionPrior):
    """Mixture of finite mixtures with K - 1 ~ Poisson(size); only Gibbs(scan="collapsed") and SmallVariance() serve it.

    Parameters
    ----------
    concentration : gamma > 0, at most 10^8, of the weights (the starting value if it has a prior); if it is small, the
        sizes of components differ much
    size : lambda, at most 10,000; the prior mean of the number of components is 1 + lambda, empty ones included
    concentration_prior : (shape, rate) of gamma ~ Gamma, or None for a fixed gamma
    """

    concentration: Annotated[float, Number(above=0.0, most=1e8)] = 1.0
    size: Annotated[float, Number(above=0.0, most=1e4)] = 4.0
    concentration_prior: GammaPrior | None = None

    def urn(self, h: Hyper, num_data: int, capacity: int) -> tuple[Tensor, Tensor]:
        gamma = h["concentration"]
        sizes = torch.arange(num_data + 1, dtype=torch.float64, device=gamma.device)
        ratios = self._log_v(num_data, 1, capacity + 1, gamma).diff()
        return (sizes + gamma).log(), gamma.log() + torch.cat([ratios.new_zeros(1), ratios])

    def log_partition(self, counts: Tensor, h: Hyper) -> Tensor:
        gamma = h["concentration"]
        blocks = torch.lgamma(counts + gamma) - torch.lgamma(gamma)
        return self._log_v(int(counts.sum()), len(counts), 1, gamma).squeeze(0) + blocks.sum()

    def expected_components(self, num_data: int) -> float:
        """E[t] = sum_k p_K(k) k (1 - E[(1 - pi_1)^N | k]), 1 - pi_1 ~ Beta((k - 1) gamma, gamma)."""
        gamma = torch.tensor(self.concentration, dtype=torch.float64)
        k = torch.arange(1, self._num_terms + 1, dtype=torch.float64)
        log_empty = torch.lgamma((k - 1) * gamma + num_data) - torch.lgamma(k * gamma + num_data)
        log_empty += torch.lgamma(k * gamma) - torch.lgamma((k - 1) * gamma)
        return float((self._log_law(k).exp() * k * -torch.expm1(log_empty)).sum())

    def _log_v(self, num_data: int, first: int, number: int, gamma: Tensor) -> Tensor:
        """log V_N(t) [number] for t = first, first + 1, ..."""
        more = torch.arange(self._num_terms, dtype=torch.float64, device=gamma.device)  # k - t
        k = first + torch.arange(number + len(more) - 1, dtype=torch.float64, device=gamma.device)
        terms = torch.lgamma(k + 1) + self._log_law(k) + torch.lgamma(gamma * k) - torch.lgamma(gamma * k + num_data)
        rows = terms.unfold(0, len(more), 1).split(max(1, 2**20 // len(more)))
        return torch.cat([(row - torch.lgamma(more + 1)).logsumexp(1) for row in rows])

    def _log_law(self, k: Tensor) -> Tensor:  # log p_K(k)
        return (k - 1) * math.log(self.size) - self.size - torch.lgamma(k)

    @property
    def _num_terms(self) -> int:  # of the sums over k; all further terms are 40 nats below the largest
        return math.ceil(self.size + 16 + math.sqrt(180 + 80 * self.size))
