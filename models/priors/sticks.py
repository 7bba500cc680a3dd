"""Stick-breaking, for any prior whose sticks are independent v_k ~ Beta(a_k, b_k), k = 1..T-1, v_T = 1.

    pi_k = v_k prod_{j<k} (1 - v_j),    v_k | z ~ Beta(a_k + n_k, b_k + n_{>k}),
    p(z) = prod_{k<T} B(a_k + n_k, b_k + n_{>k}) / B(a_k, b_k)                               (docs/derivations/priors,
    "Sticks and urns")

Source: Ishwaran & James (2001).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad


def log_stick_weights(sticks: Tensor) -> Tensor:
    """log pi [..., T] from stick proportions v [..., T-1].

    >>> log_stick_weights(torch.tensor([0.5, 0.5])).exp()
    tensor([0.5000, 0.2500, 0.2500])
    """
    # a stick that rounds to 0 or 1 keeps a finite log weight and a finite gradient (log1p(-v) has none at v = 1)
    tiny = torch.finfo(sticks.dtype).tiny
    return broken(sticks.clamp(min=tiny).log(), (1 - sticks).clamp(min=tiny).log())


def broken(log_v: Tensor, log_rest: Tensor) -> Tensor:
    """log pi [..., T], or its expectation, from log v and log(1 - v), or their expectations, each [..., T-1]."""
    return pad(log_v, (0, 1)) + pad(log_rest.cumsum(-1), (1, 0))


def posterior_sticks(counts: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Beta parameters (A, B), each [..., T-1], of v_k | z from counts [..., T], whole or expected."""
    after = counts.flip(-1).cumsum(-1).flip(-1) - counts
    return a + counts[..., :-1], b + after[..., :-1]


def expected_log_sticks(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(E log v, E log(1 - v)), each [T - 1], for sticks v ~ Beta(a, b), each [T - 1]."""
    total = torch.digamma(a + b)
    return torch.digamma(a) - total, torch.digamma(b) - total


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    """log B(a, b) [...]."""
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def log_labelled_prior(counts: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """log p(z) [...] of the truncated prior with sticks integrated out, from counts [..., T], which may be 0."""
    counts = counts.to(torch.promote_types(counts.dtype, b.dtype))
    return (log_beta(*posterior_sticks(counts, a, b)) - log_beta(a, b)).sum(-1)


def log_swap_ratio(counts: list[float], k: int, rest: float, a: list[float], b: list[float]) -> float:
    """Log of the factor by which p(z) changes if labels k and k + 1 are exchanged; rest = n_{>k+1}.

    The factor is B(a_k + n_{k+1}, b_k + n_k + r) B(a_{k+1} + n_k, b_{k+1} + r) over the same with the counts exchanged;
    for the last pair only the first factors appear. a, b are lists [T - 1], counts is a list [T].
    """
    own, other = counts[k], counts[k + 1]

    def log_pair(first: float, second: float) -> float:
        total = _log_beta(a[k] + first, b[k] + second + rest)
        return total + (_log_beta(a[k + 1] + second, b[k + 1] + rest) if k + 1 < len(a) else 0.0)

    return log_pair(other, own) - log_pair(own, other)


def best_order(counts: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The order [T] of the components, from counts [T], for which p(z) is largest.

    For any choice of the component in the last place, decreasing sizes are best in places 1..T-1, and each choice is
    tried. Among orders that are equal up to rounding, the one nearest to decreasing sizes is taken.
    """
    decreasing = counts.argsort(descending=True, stable=True)
    T = len(counts)
    place = torch.arange(T, device=counts.device)
    # row j moves the j-th largest to the end
    shifted = place + (place >= place.unsqueeze(1)).long()
    orders = decreasing[torch.where(place == T - 1, place.unsqueeze(1), shifted.clamp(max=T - 1))]
    log_prior = log_labelled_prior(counts[orders], a, b)
    best = log_prior.max()
    tied = log_prior >= best - 64 * torch.finfo(log_prior.dtype).eps * best.abs()
    return orders[torch.where(tied, place, -1).argmax()]


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
