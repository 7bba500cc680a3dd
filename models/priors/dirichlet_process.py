"""The Dirichlet process prior over partitions: sticks, urn, EPPF, concentration, and the small-variance penalty.

Sources: Sethuraman (1994), Pitman (1995), Escobar & West (1995), Kulis & Jordan (2012).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "expected_log_sticks",
    "farthest_first_penalty",
    "log_eppf",
    "log_labelled_prior",
    "log_stick_weights",
    "posterior_sticks",
    "resample_concentration",
]


def log_stick_weights(sticks: Tensor) -> Tensor:
    """log pi [..., T] of stick proportions v [..., T-1]: pi_k = v_k prod_{j<k} (1 - v_j), v_T = 1.

    >>> log_stick_weights(torch.tensor([0.5, 0.5])).exp()
    tensor([0.5000, 0.2500, 0.2500])
    """
    zero = sticks.new_zeros(*sticks.shape[:-1], 1)
    # a stick that rounds to 0 or 1 keeps a finite log weight and a finite gradient (log1p(-v) has none at v = 1)
    tiny = torch.finfo(sticks.dtype).tiny
    log_v = torch.cat([sticks.clamp(min=tiny).log(), zero], -1)
    log_rest = torch.cat([zero, (1 - sticks).clamp(min=tiny).log().cumsum(-1)], -1)
    return log_v + log_rest


def posterior_sticks(counts: Tensor, concentration: Tensor | float) -> tuple[Tensor, Tensor]:
    """Beta parameters (a, b), each [..., T-1], of v_k | z: a = 1 + n_k, b = alpha + n_{>k}, from counts [..., T]."""
    after = counts.flip(-1).cumsum(-1).flip(-1) - counts
    return 1 + counts[..., :-1], concentration + after[..., :-1]


def expected_log_sticks(sticks: Tensor) -> tuple[Tensor, Tensor]:
    """(E log v, E log(1 - v)), each [T - 1], of sticks v ~ Beta with parameters [2, T - 1]."""
    a, b = sticks
    total = torch.digamma(a + b)
    return torch.digamma(a) - total, torch.digamma(b) - total


def log_eppf(counts: Tensor, concentration: Tensor | float) -> Tensor:
    """log probability of a partition with block sizes `counts` [K] > 0.

    EPPF = alpha^K Gamma(alpha) / Gamma(alpha + N) prod_k Gamma(n_k).
    """
    alpha = torch.as_tensor(concentration, dtype=_float(counts), device=counts.device)
    sizes = counts.to(alpha.dtype)
    urn = torch.lgamma(alpha) - torch.lgamma(alpha + sizes.sum())
    return len(sizes) * alpha.log() + urn + torch.lgamma(sizes).sum()


def log_labelled_prior(counts: Tensor, concentration: Tensor | float) -> Tensor:
    """log p(z) [...] under the truncated prior, sticks integrated out, from counts [..., T] (empty ones included).

    p(z) = prod_{k<T} B(1 + n_k, alpha + n_{>k}) / B(1, alpha).
    """
    alpha = torch.as_tensor(concentration, dtype=_float(counts), device=counts.device)
    a, b = posterior_sticks(counts.to(alpha.dtype), alpha)
    return (torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b) + alpha.log()).sum(-1)


def resample_concentration(
    concentration: Tensor, num_components: int, num_data: int, prior: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """One Escobar-West step for alpha ~ Gamma(shape, rate), given K components of N points (infinite model).

    t ~ Beta(alpha + 1, N), rate' = rate - log t, odds (shape + K - 1) / (N rate') for shape' = shape + K,
    else shape + K - 1.
    """
    shape, rate = prior
    log_t = _log_beta(concentration + 1, torch.full_like(concentration, num_data), generator)
    rate_given_t = rate - log_t
    odds = (shape + num_components - 1) / (num_data * rate_given_t)
    uniform = torch.rand(odds.shape, generator=generator, dtype=odds.dtype, device=odds.device)
    shape_given_t = shape + num_components - (uniform * (1 + odds) > odds).to(odds.dtype)
    return torch._standard_gamma(shape_given_t, generator=generator) / rate_given_t


def farthest_first_penalty(
    cost_of: Callable[[int | None], Tensor], num_components: int, refund: Tensor | float = 0.0
) -> float:
    """The small-variance penalty at which about `num_components` components pay for themselves.

    Farthest-first: start from the global centre, K times take the point with the largest cost, record it, and make it
    a centre. The last recorded cost is returned (Kulis & Jordan 2012; math/dp-mixtures, section 8).

    Parameters
    ----------
    cost_of : maps a row index (None: the global centre) to the cost [N] of every point under that centre
    refund : [N] or 0, what a point would still cost in a component of its own
    """
    cost = cost_of(None)
    penalty = 0.0
    for _ in range(num_components):
        gain = cost - refund
        farthest = int(gain.argmax())
        penalty = float(gain[farthest])
        cost = torch.minimum(cost, cost_of(farthest))
    return penalty


def _log_beta(a: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
    """log of a Beta(a, b) draw through two gammas."""
    x = torch._standard_gamma(a, generator=generator)
    return x.log() - (x + torch._standard_gamma(b, generator=generator)).log()


def _float(counts: Tensor) -> torch.dtype:
    return counts.dtype if counts.is_floating_point() else torch.float64
