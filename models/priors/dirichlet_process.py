"""The Dirichlet process prior over partitions.

    v_k ~ Beta(1, alpha),    EPPF = alpha^K Gamma(alpha) / Gamma(alpha + N) prod_k Gamma(n_k),    alpha ~ Gamma

Sources: Sethuraman (1994), Pitman (1995), Escobar & West (1995), Kulis & Jordan (2012); docs/derivations/mixtures,
"Joint density".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..distributions.sampling import log_gamma_draw
from ..domains import GammaPrior, Positive
from .base import Hyper, PartitionPrior, StickExpectations
from .hyper import GammaConcentration
from .sticks import posterior_sticks


@dataclass(eq=False)
class DirichletProcess(GammaConcentration, PartitionPrior):
    """Dirichlet process prior over partitions.

    Parameters
    ----------
    concentration : alpha > 0 (the starting value if it has a prior); about alpha log N components are expected
    concentration_prior : (shape, rate) of alpha ~ Gamma, or None for a fixed alpha

    Examples
    --------
    >>> round(DirichletProcess(concentration=2.0).expected_components(100), 2)
    8.39
    """

    concentration: Positive = 1.0
    concentration_prior: GammaPrior | None = None

    def urn(self, h: Hyper, num_data: int, capacity: int) -> tuple[Tensor, Tensor]:
        alpha = h["concentration"]
        return _log_sizes(num_data, alpha.device), alpha.log().expand(capacity + 1)

    def log_partition(self, counts: Tensor, h: Hyper) -> Tensor:
        alpha = h["concentration"]
        sizes = counts.to(alpha.dtype)
        urn = torch.lgamma(alpha) - torch.lgamma(alpha + sizes.sum())
        return len(sizes) * alpha.log() + urn + torch.lgamma(sizes).sum()

    def log_expected_weights(self, counts: Tensor, h: Hyper) -> Tensor:
        weights = torch.cat([counts, h["concentration"].reshape(1)])
        return weights.log() - weights.sum().log()

    def sticks(self, h: Hyper, truncation: int) -> tuple[Tensor, Tensor]:
        b = h["concentration"] * h["concentration"].new_ones(truncation - 1)
        return torch.ones_like(b), b

    def draw_rest(self, h: Hyper, num_components: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(h["concentration"]), h["concentration"]

    def draw(self, h: Hyper, counts: Tensor, generator: torch.Generator) -> Hyper:
        """Draw alpha given the block sizes [K], of which only the number matters, by Escobar and West's step."""
        if self.concentration_prior is None:
            return h
        given = len(counts), int(counts.sum()), self.concentration_prior
        return {"concentration": resample_concentration(h["concentration"], *given, generator)}

    def draw_truncated(self, h: Hyper, counts: Tensor, generator: torch.Generator) -> Hyper:
        """Draw alpha from its gamma law given auxiliary sticks, which are drawn given alpha and the counts [T]."""
        if self.concentration_prior is None:
            return h
        after = posterior_sticks(counts, *self.sticks(h, len(counts)))
        log_v, log_rest = (log_gamma_draw(part, generator) for part in after)
        log_rest = log_rest - torch.logaddexp(log_v, log_rest)
        return self.draw_concentration(h, len(log_rest), -log_rest.sum(), generator)

    # -- SVI: a stick is Beta(1, alpha) ------------------------------------------------------------------------------

    def initial(self, like: Tensor) -> Tensor:
        return self.initial_concentration(like.new_zeros((), dtype=torch.float64))

    def update(self, q: Tensor, log_v: Tensor, log_rest: Tensor) -> Tensor:
        """q(alpha) = Gamma(shape + T - 1, rate - sum_k E log(1 - v_k)) [2], where alpha has a prior."""
        return self.best_concentration(q, len(log_rest), -log_rest.sum())

    def expect(self, q: Tensor, truncation: int) -> StickExpectations:
        mean, log_mean, kl = self.expect_concentration(q)
        one = q.new_ones(truncation - 1)
        return StickExpectations(one, mean * one, -(truncation - 1) * log_mean, kl, {"concentration": mean})


@lru_cache(maxsize=16)
def _log_sizes(num_data: int, device: torch.device) -> Tensor:
    """log n [N + 1] for n = 0..N; the entry of n = 0 is 0."""
    return torch.arange(num_data + 1, dtype=torch.float64, device=device).clamp(min=1).log()


def resample_concentration(
    concentration: Tensor, num_components: int, num_data: int, prior: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """One Escobar-West step [] for alpha ~ Gamma(shape, rate), given K components of N points (infinite model).

    t ~ Beta(alpha + 1, N) and rate' = rate - log t; shape' is shape + K with odds (shape + K - 1) / (N rate'), else
    shape + K - 1.
    """
    shape, rate = prior
    one, two = (
        torch._standard_gamma(value, generator=generator)
        for value in (concentration + 1, torch.full_like(concentration, num_data))
    )
    rate_given_t = rate - (one.log() - (one + two).log())
    odds = (shape + num_components - 1) / (num_data * rate_given_t)
    uniform = torch.rand(odds.shape, generator=generator, dtype=odds.dtype, device=odds.device)
    shape_given_t = shape + num_components - (uniform * (1 + odds) > odds).to(odds.dtype)
    return torch._standard_gamma(shape_given_t, generator=generator) / rate_given_t
