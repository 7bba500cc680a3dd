"""The Chinese restaurant franchise of a hierarchical Dirichlet process over state sequences.

    beta ~ GEM(gamma),   pi_j ~ DP(alpha, (1 - rho) beta + rho delta_j)   for each state j,   pi_start ~ DP(alpha, beta)

Over K states a row of the transition matrix is Dirichlet(alpha b_j), b_j = (1 - rho) beta + rho delta_j, with b_start =
beta. rho, the stickiness, is the prior probability that a new table of row j serves state j itself. Rows are indexed
0..K-1 by state, the last one is the start row.

Sources: Teh, Jordan, Beal & Blei (2006); Fox, Sudderth, Jordan & Willsky (2011) for rho; Nguyen, Phung, Le & Bui;
docs/derivations/sequences, "Joint density" and "Base weights and concentrations".
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..distributions.sampling import log_dirichlet, log_gamma_draw, uniforms
from .dirichlet_process import resample_concentration
from .sticks import broken, posterior_sticks


def row_means(base: Tensor, num_states: int, stickiness: float) -> Tensor:
    """Prior means b [K + 1, ...] of the rows, from beta [K], or [K + 1] with the weight of all new states last.

    >>> row_means(torch.tensor([0.5, 0.5]), 2, 0.5)
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500],
            [0.5000, 0.5000]])
    """
    own = torch.eye(num_states, len(base), dtype=base.dtype, device=base.device)
    return torch.cat([(1 - stickiness) * base + stickiness * own, base.unsqueeze(0)])


def count_transitions(states: Tensor, starts: Tensor, num_states: int) -> Tensor:
    """Transition counts n [K + 1, K] int64 from row j to state k, from states [N].

    The first step of a sequence is a transition from the start row.

    Parameters
    ----------
    starts : bool [N], True at the first step of every sequence
    """
    before = states.roll(1).masked_fill_(starts, num_states)
    cells = torch.add(states, before, alpha=num_states)
    return torch.bincount(cells, minlength=(num_states + 1) * num_states).view(num_states + 1, num_states)


def log_paths(counts: Tensor, concentration: Tensor, means: Tensor) -> Tensor:
    """log p(z | alpha, beta) [] with the rows integrated out, from counts n [J, K] and prior means b [J, K].

    prod_j Gamma(alpha) / Gamma(alpha + n_j.) prod_k Gamma(alpha b_jk + n_jk) / Gamma(alpha b_jk).
    """
    alpha, n = concentration.to(means.dtype), counts.to(means.dtype)
    shape = alpha * means
    used = torch.where(counts > 0, torch.lgamma(shape + n) - torch.lgamma(shape.clamp(min=_TINY)), 0.0)
    return (torch.lgamma(alpha) - torch.lgamma(alpha + n.sum(1))).sum() + used.sum()


def draw_tables(
    counts: Tensor, concentration: Tensor, means: Tensor, stickiness: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw the numbers of tables m [J, K] of every row's restaurant, and those [K] whose state came from beta.

    m_jk = sum_{i < n_jk} Bernoulli(alpha b_jk / (alpha b_jk + i)). With rho > 0 a table of row j that serves j itself
    came from the stickiness with probability rho / b_jj; such tables carry no information on beta.
    """
    n, shape = counts.flatten(), (concentration.to(means.dtype) * means).flatten()
    ends, own = n.cumsum(0), shape.repeat_interleave(n)
    seated = torch.arange(len(own), device=n.device) - (ends - n).repeat_interleave(n)  # exact in any precision
    opened = torch.nonzero(uniforms(own.shape, generator) * (own + seated) < own).squeeze(1)
    cells = torch.searchsorted(ends, opened, right=True)  # only for the few points that open a table
    tables = torch.bincount(cells, minlength=len(n)).view(counts.shape)
    chosen = tables.sum(0)
    if stickiness > 0:
        K = counts.shape[1]
        diagonal = tables[:K].diagonal()
        from_base = 1 - stickiness / means[:K].diagonal()
        rows = torch.repeat_interleave(torch.arange(K, device=n.device), diagonal)
        kept = uniforms(rows.shape, generator) < from_base[rows]
        chosen = chosen - diagonal + torch.bincount(rows[kept], minlength=K)
    return tables, chosen


def draw_row_concentration(
    concentration: Tensor,
    counts: Tensor,
    tables: Tensor,
    prior: tuple[float, float] | None,
    generator: torch.Generator,
) -> Tensor:
    """Draw alpha [] ~ Gamma(a + m_.. - sum_j s_j, b - sum_j log w_j); unchanged without a prior.

    w_j ~ Beta(alpha + 1, n_j.),  s_j ~ Bernoulli(n_j. / (n_j. + alpha)). A row without transitions adds 0.
    """
    if prior is None:
        return concentration
    shape, rate = prior
    n = counts.sum(1).to(concentration.dtype)
    one = torch._standard_gamma((concentration + 1).expand(len(n)).contiguous(), generator=generator)
    log_w = one.log() - (one + torch._standard_gamma(n, generator=generator)).log()
    s = uniforms(n.shape, generator) * (n + concentration) < n
    total = (shape + tables.sum() - s.sum()).to(concentration.dtype)
    return torch._standard_gamma(total, generator=generator) / (rate - log_w.sum())


def draw_top_concentration(
    top_concentration: Tensor, chosen: Tensor, prior: tuple[float, float] | None, generator: torch.Generator
) -> Tensor:
    """Draw gamma [] given the tables [K] whose state came from beta, beta integrated out (infinite model)."""
    if prior is None:
        return top_concentration
    total, num_states = torch.stack([chosen.sum(), (chosen > 0).sum()]).tolist()
    if not total:
        return top_concentration
    return resample_concentration(top_concentration, num_states, total, prior, generator)


def draw_base_weights(chosen: Tensor, top_concentration: Tensor, generator: torch.Generator) -> Tensor:
    """Draw (beta_1..beta_K, rest) [K + 1] ~ Dirichlet(m_.1, ..., m_.K, gamma), in the infinite model."""
    shape = torch.cat([chosen.to(top_concentration.dtype), top_concentration.reshape(1)])
    return log_dirichlet(shape, generator).exp()


def draw_sticks(chosen: Tensor, top_concentration: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Truncated model: (log beta [T], sum_{k<T} log(1 - u_k)) with u_k ~ Beta(1 + m_.k, gamma + m_.>k), u_T = 1."""
    chosen = chosen.to(top_concentration.dtype)
    after, before = posterior_sticks(chosen, torch.ones_like(chosen[1:]), top_concentration.expand(len(chosen) - 1))
    log_one, log_two = log_gamma_draw(after, generator), log_gamma_draw(before, generator)
    log_total = torch.logaddexp(log_one, log_two)
    log_u, log_rest = log_one - log_total, log_two - log_total
    return broken(log_u, log_rest), log_rest.sum()


_TINY = 1e-300
