"""Bounds of E log p(y_n | psi_k, f_n) in the coupled multi-label joints, and sums over points for psi and classifiers.

Let B_1 and B_0 be the bounds of E log sigma(f) and E log(1 - sigma(f)). For every point n and component k:

    "and"           y = 1: E log psi + B_1;  y = 0: logsumexp over the bits (0, 0), (0, 1), (1, 0) of
                    E log(1 - psi) + B_0, E log(1 - psi) + B_1, E log psi + B_0
    "multinomial"   q(u) = Gamma(s, t), t = sum_c E g_c, and q(m_c) = Poisson(e_c) with s = n + sum_c e_c and
                    e_c = exp(digamma(s) - log t + E log g_c + B_0c)

Source: docs/derivations/label-sets, "Variational inference". "multinomial" needs no array of N x T x C numbers: e is a
product of terms of n and of k, except for s, which solves one equation for each pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.likelihoods import BernoulliBeta


class Told(NamedTuple):
    """Sums and pseudo-observations for psi and the classifiers, of points with given responsibilities."""

    statistics: Tensor  # [T, 2 C] float64, added to the prior's hyperparameters of psi
    times: Tensor  # [N, C] number of observations of each score, which multiplies the precision of one
    shift: Tensor  # [N, C]


class Local(NamedTuple):
    """The bounds of points, and a function that returns their `Told`."""

    margin: Tensor  # [N, T]
    told: Callable[[Tensor, Tensor], Told]  # (responsibilities [N, T], the same times the points' weights) -> Told


def prior_of(model: BNMC) -> Tensor:
    """Hyperparameters [2 C]: (l1, l0) of Beta laws, or (lam, 1) of the gamma laws of g."""
    labels: Any = model.label_likelihood
    if not labels.given_totals:
        return torch.cat([labels.a, labels.b])
    return torch.cat([labels.concentration, torch.ones_like(labels.concentration)])


def local(model: BNMC, labels: Tensor, bounds: tuple[Tensor, Tensor], chi: Tensor) -> Local:
    """The bounds for labels [N, C], given (B_1, B_0) [N, C] and hyperparameters chi [T, 2 C] of psi."""
    return _LOCAL[model.joint](labels, *bounds, chi)


def kl(model: BNMC, chi: Tensor) -> Tensor:
    """The KL of the laws of psi from their prior, [] float64."""
    if model.joint == "and":
        labels: Any = model.label_likelihood
        return BernoulliBeta(labels.a, labels.b).kl(chi).sum(dtype=torch.float64)
    (a, b), (a0, b0) = (part.double().chunk(2, -1) for part in (chi, prior_of(model)))
    gain = (a - a0) * torch.digamma(a) - torch.lgamma(a) + torch.lgamma(a0)
    return (gain + a0 * (b / b0).log() + a * (b0 / b - 1)).sum()


def means(model: BNMC, chi: Tensor) -> Tensor:
    """E psi [T, C]; for "multinomial" an approximation, the shares of E g."""
    a, b = chi.chunk(2, -1)
    if model.joint == "and":
        return a / (a + b)
    return (a / b) / (a / b).sum(-1, keepdim=True)


def _bits(labels: Tensor, one: Tensor, zero: Tensor, chi: Tensor) -> Local:
    a, b = chi.chunk(2, -1)
    total = torch.digamma(a + b)
    log_psi, log_rest = torch.digamma(a) - total, torch.digamma(b) - total
    present, known = (labels > 0).unsqueeze(1), ~labels.isnan()
    either = torch.logaddexp(one, zero).unsqueeze(1)
    absent = torch.logaddexp(log_rest + either, log_psi + zero.unsqueeze(1))
    bound = torch.where(present, log_psi + one.unsqueeze(1), absent)
    mask = known.to(bound).unsqueeze(1)

    def told(r: Tensor, counted: Tensor) -> Told:
        has = torch.where(present, 1.0, (log_psi + zero.unsqueeze(1) - absent).exp()) * mask
        agrees = torch.where(present, 1.0, (log_rest + one.unsqueeze(1) - absent).exp()) * mask
        ones = torch.einsum("nk,nkc->kc", counted.double(), has.double())
        zeros = torch.einsum("nk,nkc->kc", counted.double(), (mask - has).double())
        shift = torch.einsum("nk,nkc->nc", r, agrees - mask / 2)
        return Told(torch.cat([ones, zeros], 1), known.to(shift), shift)

    return Local((bound * mask).sum(-1), told)


def _counts(labels: Tensor, one: Tensor, zero: Tensor, chi: Tensor) -> Local:
    a, b = chi.chunk(2, -1)
    log_g, t = torch.digamma(a) - b.log(), (a / b).sum(-1)
    total = labels.sum(1, keepdim=True)
    rest, pull = zero.exp(), log_g.exp() / t.unsqueeze(1)
    s = _shape(total, rest @ pull.T)
    size = torch.where(total > 0, torch.digamma(s).exp(), 0.0)  # exp(E log u) t
    sums = size * (rest @ pull.T)
    ways = torch.lgamma(1 + total) - torch.lgamma(1 + labels).sum(1, keepdim=True)
    margin = ways - torch.lgamma(total) - total * t.log() + (labels @ log_g.T + (labels * one).sum(1, keepdim=True))
    margin = margin - sums * torch.digamma(s) + sums + torch.lgamma(s)

    def told(r: Tensor, counted: Tensor) -> Told:
        negatives = (r * size) @ pull * rest
        own = counted.double()
        shapes = own.T @ labels.double() + (own * size).T @ rest.double() * pull
        rates = torch.where(total > 0, own * s / t, 0.0).sum(0)
        statistics = torch.cat([shapes, rates.unsqueeze(1).expand_as(shapes)], 1)
        return Told(statistics, labels + negatives, (labels - negatives) / 2)

    return Local(torch.where(total > 0, margin, 0.0), told)


def _shape(total: Tensor, share: Tensor) -> Tensor:
    """Solve s = n + exp(digamma(s)) H for s [N, T], 0 <= H [N, T] < 1, totals n [N, 1], by Newton from above."""
    n = total.clamp(min=1.0)
    s = (n / (1 - share).clamp(min=_LEAST)).expand_as(share)
    for _ in range(_NEWTON_STEPS):
        size = torch.digamma(s).exp() * share
        step = (s - n - size) / (1 - size * torch.polygamma(1, s)).clamp(min=_LEAST)
        s = torch.maximum(s - step, n)
    return s


_LOCAL: dict[str, Any] = {"and": _bits, "multinomial": _counts}
_NEWTON_STEPS = 20
_LEAST = 1e-9
