"""The Pitman-Yor prior over partitions: a Dirichlet process whose number of components grows like a power of N.

    v_k ~ Beta(1 - d, alpha + k d),    an old block has weight n_k - d, a new one alpha + d K

Sources: Pitman & Yor (1997); Fan, Zeng & Cao (2013) for the falling price; docs/derivations/priors, "Sticks and urns".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

import pyro.distributions as dist
import torch
from torch import Tensor

from ..domains import GammaPrior, NonNegative, Number, Pair
from .base import Hyper, PartitionPrior, gamma_law


@dataclass(eq=False)
class PitmanYor(PartitionPrior):
    """Pitman-Yor process: components grow in number like N^discount; with discount 0 it is the Dirichlet process.

    Parameters
    ----------
    discount, concentration : 0 <= d < 1 and alpha > -d (starting values if they have a prior; then d, alpha > 0)
    discount_prior, concentration_prior : (p, q) of d ~ Beta, (shape, rate) of alpha ~ Gamma; None: fixed values
    price_exponent : theta >= 0; under small variance component K + 1 costs max(0, penalty - theta log K)
    """

    discount: Annotated[float, Number(least=0.0, below=1.0)] = 0.25
    concentration: Annotated[float, Number(above=-1.0)] = 1.0
    discount_prior: Annotated[tuple[float, float], Pair("p > 0, q > 0")] | None = None
    concentration_prior: GammaPrior | None = None
    price_exponent: NonNegative = 0.0

    def checked(self, name: str = "") -> Self:
        found = super().checked(name)
        least = 0.0 if found.concentration_prior or found.discount_prior else -found.discount
        if found.concentration <= least:
            raise ValueError(f"{name}concentration is {found.concentration!r}; it must be more than {least:g}.")
        if found.discount_prior and not found.discount:
            raise ValueError(f"{name}discount is {found.discount!r}; it must be more than 0, as it has a prior.")
        return found

    def hyperpriors(self, like: Tensor) -> dict[str, torch.distributions.Distribution | None]:
        shapes = self.discount_prior
        beta = None if shapes is None else dist.Beta(*like.new_tensor(shapes), validate_args=False)
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
        least = torch.as_tensor(penalty, dtype=torch.float64)
        ranks = torch.arange(1, max(1, num_components), dtype=torch.float64, device=least.device)
        total = least + (least - self.price_exponent * ranks.log()).clamp(min=0.0).sum()
        return total if isinstance(penalty, Tensor) else float(total)
