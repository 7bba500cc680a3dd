"""Mixing of chains: rank-normalized split R-hat and effective sample sizes, for many quantities at once.

References
----------
Vehtari, Gelman, Simpson, Carpenter & Buerkner (2021), Rank-normalization, folding, and localization: an improved R-hat
for assessing convergence of MCMC; Geyer (1992), for where sums of autocorrelations end.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["bulk_size", "joint_size", "rhat", "tail_size"]


def rhat(draws: Tensor) -> Tensor:
    """R-hat [Q] of quantities [C, S, Q] in C chains of S >= 4 draws; different spreads also raise it.

    It is the larger of the split R-hats of normal quantiles of the ranks of x and of |x - median|. 1 if a quantity
    never changes, inf if it differs between chains alone.
    """
    folded = (draws - draws.flatten(0, 1).quantile(0.5, dim=0)).abs()
    return torch.maximum(*(_split_rhat(_normal_ranks(_split(each))) for each in (draws, folded)))


def bulk_size(draws: Tensor) -> Tensor:
    """Effective number of draws [Q] for the bulk of quantities [C, S, Q]; C S if a quantity never changes."""
    return _size(_normal_ranks(_split(draws)))


def tail_size(draws: Tensor) -> Tensor:
    """Effective number of draws [Q] for the 5 % and 95 % quantiles of quantities [C, S, Q], the lesser one."""
    levels = torch.quantile(draws.flatten(0, 1), draws.new_tensor([0.05, 0.95]), dim=0)
    return torch.minimum(*(_size(_split((draws <= level).to(draws))) for level in levels))


def joint_size(draws: Tensor) -> Tensor:
    """Joint effective number of draws [] of quantities [C, S, Q], for the sum of the squared errors of their means."""
    return _size(draws, jointly=True).squeeze(0)


def _split(draws: Tensor) -> Tensor:
    """Both halves of each chain as chains [2 C, S / 2, Q], without the draw between them if S is odd."""
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def _normal_ranks(draws: Tensor) -> Tensor:
    """Normal quantiles of the ranks among all chains; equal values have their mean rank."""
    columns = draws.flatten(0, 1).T.contiguous()
    ordered = columns.sort(1).values
    below, within = (torch.searchsorted(ordered, columns, right=right) for right in (False, True))
    ranks = (below + within + 1) / 2
    quantiles = torch.special.ndtri((ranks.to(draws) - 0.375) / (columns.shape[1] + 0.25))
    return quantiles.T.reshape(draws.shape)


def _split_rhat(draws: Tensor) -> Tensor:
    number = draws.shape[1]
    within, between = draws.var(1).mean(0), number * draws.mean(1).var(0)
    found = ((between / within + number - 1) / number).sqrt()
    return torch.where(_unchanging(draws), 1.0, found)


def _size(draws: Tensor, *, jointly: bool = False) -> Tensor:
    """Number of draws divided by the autocorrelation time, [Q]; its sum ends at the first pair that is not positive."""
    chains, number, _ = draws.shape
    covariance = _autocovariance(draws).mean(0)  # [S, Q]
    between = draws.mean(1).var(0) if chains > 1 else torch.zeros_like(covariance[0])
    if jointly:
        covariance, between = covariance.sum(1, keepdim=True), between.sum(0, keepdim=True)
    within, total = covariance[0] * number / (number - 1), covariance[0] + between
    correlation = 1 - (within - covariance) / total
    correlation[0] = 1.0
    last = max(1, math.ceil(number / 2 - 1))
    even, odd = correlation[: 2 * last : 2], correlation[1 : 2 * last : 2]
    pairs = even + odd
    ends = (pairs <= 0).double()
    ends[-1] = 1.0
    first = ends.argmax(0)  # the pairs before this one count, and its even half
    before = torch.arange(last, device=draws.device).unsqueeze(1) < first
    time = 2 * torch.where(before, pairs.cummin(0).values, 0.0).sum(0) - 1
    time = time + even.gather(0, first.unsqueeze(0)).squeeze(0).clamp(min=0.0)
    found = chains * number / time.clamp(min=1 / math.log10(chains * number))
    unchanging = _unchanging(draws)
    return torch.where(unchanging.all() if jointly else unchanging, float(chains * number), found)


def _autocovariance(draws: Tensor) -> Tensor:
    """Autocovariance of each chain [C, S, Q], divided by S at all lags."""
    number = draws.shape[1]
    centred = draws - draws.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, 2 * number, dim=1).abs().square()
    return torch.fft.irfft(spectrum, 2 * number, dim=1)[:, :number] / number


def _unchanging(draws: Tensor) -> Tensor:
    return draws.amax((0, 1)) - draws.amin((0, 1)) <= torch.finfo(draws.dtype).resolution
