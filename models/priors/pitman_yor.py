"""The Pitman-Yor prior over partitions: a Dirichlet process whose number of components grows like a power of N.

    v_k ~ Beta(1 - d, alpha + k d),    an old block has weight n_k - d, a new one alpha + d K

Sources: Pitman & Yor (1997); Fan, Zeng & Cao (2013) for the falling price; math/priors, section 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..checks import require_gamma_prior, require_number
from .base import Hyper, PartitionPrior, gamma_law


@dataclass(eq=False)
class PitmanYor(PartitionPrior):
    """Pitman-Yor process; discount 0 is the Dirichlet process.

    Parameters
    ----------
    discount, concentration : 0 <= d < 1 and alpha > -d (starting values where they have a prior; then d, alpha > 0)
    discount_prior, concentration_prior : (p, q) of d ~ Beta, (shape, rate) of alpha ~ Gamma; None: fixed values
    price_exponent : theta >= 0; for small variance component K + 1 costs max(0, penalty - theta log K)
    """

    discount: float = 0.25
    concentration: float = 1.0
    discount_prior: tuple[float, float] | None = None
    concentration_prior: tuple[float, float] | None = None
    price_exponent: float = 0.0

    def check(self) -> None:
        require_number("discount", self.discount, below=1.0, closed=self.discount_prior is None)
        require_number("concentration", self.concentration, above=0.0 if self.concentration_prior else -self.discount)
        require_number("price_exponent", self.price_exponent, closed=True)
        require_gamma_prior("discount_prior", self.discount_prior)
        require_gamma_prior("concentration_prior", self.concentration_prior)

    def hyperpriors(self, like: Tensor) -> dict[str, Distribution | None]:
        beta = None if self.discount_prior is None else dist.Beta(*like.new_tensor(self.discount_prior))
        return {"discount": beta, "concentration": gamma_law(self.concentration_prior, like)}

    def urn(self, h: Hyper, num_data: int, capacity: int) -> tuple[Tensor, Tensor]:
        d = h["discount"]
        counts = torch.arange(max(num_data, capacity) + 1, dtype=torch.float64, device=d.device)
        return (counts[: num_data + 1] - d).log(), (h["concentration"] + d * counts[: capacity + 1]).log()

    def log_partition(self, counts: Tensor, h: Hyper) -> Tensor:
        d, alpha = h["discount"], h["concentration"]
        opened = (alpha + d * torch.arange(1, len(counts), device=d.device)).log().sum()
        blocks = (torch.lgamma(counts - d) - torch.lgamma(1 - d)).sum()
        return opened + blocks - torch.lgamma(alpha + counts.sum()) + torch.lgamma(alpha + 1)

    def sticks(self, h: Hyper, truncation: int) -> tuple[Tensor, Tensor]:
        k = torch.arange(1, truncation, device=h["discount"].device)
        return (1 - h["discount"]) * torch.ones_like(k), h["concentration"] + k * h["discount"]

    def draw_rest(self, h: Hyper, num_components: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        d, alpha = h["discount"], h["concentration"]
        if d == 0:
            return d, alpha
        return d, torch._standard_gamma(alpha / d + num_components, generator=generator) * d / torch.lgamma(1 - d).exp()

    def price(self, penalty: float | Tensor, num_components: int) -> float | Tensor:
        each = (max(0.0, float(penalty) - self.price_exponent * math.log(i)) for i in range(1, num_components))
        return penalty + sum(each)
