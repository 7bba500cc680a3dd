"""The hierarchical Dirichlet process prior over state sequences, with stickiness.

    beta ~ GEM(gamma),   pi_j ~ DP(alpha, (1 - rho) beta + rho delta_j)   for each state j,   pi_start ~ DP(alpha, beta)
    z_1 ~ pi_start,      z_t ~ pi_{z_{t-1}}

Sources: Teh, Jordan, Beal & Blei (2006); Fox, Sudderth, Jordan & Willsky (2011) for rho;
docs/derivations/sequences, "Joint density" and "Base weights and concentrations". The counts and draws are in
`franchise`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..domains import GammaPrior, Number, Positive
from .franchise import (
    draw_base_weights,
    draw_row_concentration,
    draw_sticks,
    draw_tables,
    draw_top_concentration,
    log_paths,
    row_means,
)
from .hyper import Hyper, HyperPrior, gamma_law
from .sticks import log_stick_weights


@dataclass(eq=False)
class HierarchicalDirichletProcess(HyperPrior):
    """Prior over the rows of a transition matrix and the states that they share.

    Parameters
    ----------
    concentration : alpha > 0 of the rows (the starting value if it has a prior)
    concentration_prior : (shape, rate) of alpha ~ Gamma, or None for a fixed alpha
    top_concentration, top_concentration_prior : the same for gamma; a larger gamma gives more states
    stickiness : rho in [0, 1), the prior weight of the self-transition in each row

    Hyperparameters h are {"concentration": alpha, "top_concentration": gamma}, each [] float64. Counts [K + 1, K] are
    moves from row j to state k, the start row last; base weights [K + 1] are beta_1..beta_K and that of all others.
    """

    concentration: Positive = 1.0
    concentration_prior: GammaPrior | None = (1.0, 1.0)
    top_concentration: Positive = 1.0
    top_concentration_prior: GammaPrior | None = (1.0, 1.0)
    stickiness: Annotated[float, Number(least=0.0, below=1.0)] = 0.0

    def hyperpriors(self, like: Tensor) -> dict[str, Distribution | None]:
        priors = {"concentration": self.concentration_prior, "top_concentration": self.top_concentration_prior}
        return {name: gamma_law(prior, like) for name, prior in priors.items()}

    def sample_rows(self, truncation: int, like: Tensor) -> Tensor:
        """Sample `transitions` [T + 1, T], the last row for starts, after `sticks` [T - 1] and hyperparameters."""
        alpha, gamma = self.sample(like).values()
        with pyro.plate("sticks_plate", truncation - 1):
            sticks = pyro.sample("sticks", dist.Beta(like.new_ones(()), gamma))
        means = self.row_means(log_stick_weights(sticks).exp(), truncation)
        with pyro.plate("rows", truncation + 1):
            tiny = torch.finfo(like.dtype).tiny
            return pyro.sample("transitions", dist.Dirichlet((alpha * means).clamp(min=tiny)))

    def row_means(self, base: Tensor, num_states: int) -> Tensor:
        """Prior means b [K + 1, ...] of the rows from beta [K], or [K + 1] with the weight of all other states."""
        return row_means(base, num_states, self.stickiness)

    def log_paths(self, counts: Tensor, base: Tensor, h: Hyper) -> Tensor:
        """log p(z | alpha, beta) [] with the rows integrated out."""
        K = counts.shape[1]
        return log_paths(counts, h["concentration"], self.row_means(base, K)[:, :K])

    def log_base(self, base: Tensor, h: Hyper) -> Tensor:
        """log p(beta | gamma) p(alpha) p(gamma) [] of the infinite model."""
        K, gamma, log_base = len(base) - 1, h["top_concentration"], _log(base)
        return K * gamma.log() + (gamma - 1) * log_base[K] - log_base[:K].sum() + self.log_density(h)

    def log_sticks(self, base: Tensor, h: Hyper) -> Tensor:
        """log p(v | gamma) p(alpha) p(gamma) [] of the sticks v of T states, from their base weights."""
        T, gamma = len(base) - 1, h["top_concentration"]
        return (T - 1) * gamma.log() + (gamma - 1) * _log(base)[T - 1] + self.log_density(h)

    def draw(self, h: Hyper, base: Tensor, counts: Tensor, generator: torch.Generator) -> tuple[Hyper, Tensor]:
        """Draw alpha, gamma and base weights [K + 1] of the infinite model, with auxiliary tables."""
        alpha, chosen = self._draw_rows(h, base, counts, generator)
        gamma = draw_top_concentration(h["top_concentration"], chosen, self.top_concentration_prior, generator)
        return {"concentration": alpha, "top_concentration": gamma}, draw_base_weights(chosen, gamma, generator)

    def draw_truncated(
        self, h: Hyper, base: Tensor, counts: Tensor, generator: torch.Generator
    ) -> tuple[Hyper, Tensor]:
        """Draw alpha, gamma and base weights [T + 1] of the truncated model, whose base weights come from sticks."""
        alpha, chosen = self._draw_rows(h, base, counts, generator)
        gamma = h["top_concentration"]
        log_base, log_rest = draw_sticks(chosen, gamma, generator)
        if self.top_concentration_prior is not None:
            shape, rate = self.top_concentration_prior
            total = gamma.new_tensor(shape + counts.shape[1] - 1)
            gamma = torch._standard_gamma(total, generator=generator) / (rate - log_rest)
        base = torch.cat([log_base.exp(), log_base.new_zeros(1)])
        return {"concentration": alpha, "top_concentration": gamma}, base

    def _draw_rows(self, h: Hyper, base: Tensor, counts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw alpha [], and the number of tables of each state [K] whose state came from beta."""
        K, alpha = counts.shape[1], h["concentration"]
        tables, chosen = draw_tables(counts, alpha, self.row_means(base, K)[:, :K], self.stickiness, generator)
        return draw_row_concentration(alpha, counts, tables, self.concentration_prior, generator), chosen


def _log(base: Tensor) -> Tensor:
    return base.clamp(min=torch.finfo(base.dtype).tiny).log()
