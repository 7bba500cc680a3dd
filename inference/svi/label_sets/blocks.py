"""The mixture of a multi-label model: components without classifiers, and a likelihood for each block of columns.

    log r_nk = E log pi_k + sum_j E log p_j(x_nj | theta_kj) + const,    chi_k <- (1 - rho) chi_k + rho (chi0 + sum_n
    s r_nk t(x_n)) for a batch of which each row stands for s

Blocks of columns are never copied into one array, and terms of a likelihood that both the bound and the
responsibilities need are computed once. Tables of counts are [V, T] in memory, as products with sparse rows read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ....models import host
from ....models.dpm import DPM
from ....models.likelihoods import ExponentialFamily, MultinomialDirichlet, Product
from ....models.sparse import Rows
from ....models.sums import among
from ...distributed.collectives import all_sums
from ..allocations import block_unions
from ..partition.factors import VariationalPartition
from ._numba_labels import expect_logs, log_gammas_of_sums

State = TypeVar("State", bound=VariationalPartition)


class Block(NamedTuple):
    """A block of columns of N rows, its likelihood, and chi of q(theta)."""

    family: ExponentialFamily
    rows: Rows  # [N, D]
    chi: Tensor  # [T, S]


class Law(NamedTuple):
    """Expectations under q(theta) of one likelihood."""

    log_density: Callable[[Rows], Tensor]  # rows [n, D] -> E log p(x_n | theta_k) [n, T]
    kl: Tensor  # [] float64, KL from its prior, summed over components


class Expected(NamedTuple):
    """Expectations under q(theta) of all blocks, for given rows."""

    log_density: Tensor  # [N, T] E log p(x_n | theta_k)
    kl: Tensor  # [] float64, of all components


def laws_of(blocks: list[Block]) -> list[Law]:
    """The `Law` of each block, for any of its rows."""
    return [_LAWS.get(type(family), _law)(family, chi) for family, _, chi in blocks]


def expect(blocks: list[Block]) -> Expected:
    """The sums over the blocks."""
    laws = laws_of(blocks)
    density = (law.log_density(block.rows) for law, block in zip(laws, blocks, strict=True))
    return Expected(reduce(torch.add, density), kl_of(laws))


def kl_of(laws: list[Law]) -> Tensor:
    """The KL of all blocks, [] float64."""
    return reduce(torch.add, (law.kl for law in laws))


def with_log_mixture(state: VariationalPartition, log_density: Tensor) -> Tensor:
    """log r_nk [N, T] up to a constant for each row, from log densities [N, T]."""
    return state.expected_log_mixture.to(log_density) + log_density


def shares(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax [N, T] of logits over the components, and the log normalizers [N]."""
    log_r = logits.log_softmax(1)
    least = math.log(torch.finfo(logits.dtype).tiny) / 2  # denormal numbers would take many times as long
    return log_r.clamp(min=least).exp(), logits.amax(1) - log_r.amax(1)


def move(state: State, blocks: list[Block], memberships: Tensor, mixture: DPM, rho: float) -> State:
    """Set q(h) to its optimum, then move sticks and q(theta) by rho to the optimum for `memberships` [N, T]."""
    chi, sizes = stepped(blocks, memberships, rho)
    return replace(state.stepped(sizes, mixture, rho).without_rows(), hyperparameters=chi)


def stepped(blocks: list[Block], memberships: Tensor, rho: float) -> tuple[Tensor, Tensor]:
    """chi [T, S] of all blocks after a step of size rho to their optimum (1: the optimum), and the sizes [T]."""
    table = memberships.new_empty(sum(chi.shape[1] for _, _, chi in blocks), memberships.shape[1])
    start = 0
    with among(None):
        sums = [family.weighted_statistics(rows, memberships) for family, rows, _ in blocks]
    sizes, *sums = all_sums(memberships.sum(0, dtype=torch.float64), *sums)
    for (family, _, own), seen in zip(blocks, sums, strict=True):
        torch.lerp(own.T, (family.prior() + seen).T, rho, out=table[start : start + own.shape[1]])
        start += own.shape[1]
    return table.T, sizes


# -- unions of components ----------------------------------------------------------------------------------------------


def log_marginal_of_unions(family: Product, chi: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """log m [M] of the unions of M pairs of components, from hyperparameters chi [T, S] of all components."""
    own = family.own(chi)
    return reduce(torch.add, (_UNIONS.get(type(part), block_unions)(part, each, first, second) for part, each in own))


def _unions_of_counts(family: Any, chi: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """`log_marginal_of_unions` for counts: log Gamma of all words, minus that of their total, minus the prior's."""
    if not host.on_cpu(chi):
        return block_unions(family, chi, first, second)
    prior, found = family.concentration.double().contiguous(), torch.empty(len(first), dtype=torch.float64)
    log_gammas_of_sums(*(part.numpy() for part in (chi.contiguous(), first, second, prior, found)))
    totals = chi.sum(1, dtype=torch.float64)
    found -= torch.lgamma(totals[first] + totals[second] - prior.sum()) + family.log_partition(prior)
    return found.to(chi)


# -- expectations of likelihoods ---------------------------------------------------------------------------------------


def _law(family: ExponentialFamily, chi: Tensor) -> Law:
    return Law(lambda rows: family.expected_log_density(rows, chi), family.kl(chi).sum(dtype=torch.float64))


def _law_of_counts(family: Any, chi: Tensor) -> Law:
    """The `Law` of Dirichlet laws of words: the same digammas serve the densities and the KL.

    KL = sum_k [A(chi0) - A(chi_k) + <chi_k - chi0, E t_k>],  A(chi) = sum_v log Gamma(chi_v) - log Gamma(sum_v chi_v)
    """
    if not host.on_cpu(chi):
        return _law(family, chi)
    table, prior = chi.T.contiguous(), family.concentration.double().contiguous()
    totals, expected = table.sum(0, dtype=torch.float64), torch.empty_like(table)
    inner = expect_logs(*(part.numpy() for part in (table, prior, torch.digamma(totals), expected)))
    kl = len(totals) * family.log_partition(prior) + torch.lgamma(totals).sum() + inner
    return Law(lambda rows: family.linear_log_density(rows, expected.T), kl)


_UNIONS: dict[type, Callable[..., Tensor]] = {MultinomialDirichlet: _unions_of_counts}
_LAWS: dict[type, Callable[[Any, Tensor], Law]] = {MultinomialDirichlet: _law_of_counts}
