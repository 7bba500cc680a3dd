"""The mixture of a multi-label model in a stochastic step: components without classifiers, a family for each block.

    log r_nk = E log pi_k + sum_j E log p_j(x_nj | theta_kj) + const,    chi_k <- (1 - rho) chi_k + rho (chi0 + sum_n
    s r_nk t(x_n)) for a batch of which each row stands for s

Blocks of columns are never copied into one array, and what the bound and the responsibilities both need of a family is
computed once. Tables of counts are kept words first, [V, T] in memory, as products with sparse rows read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ....models.dpm import DPM
from ....models.likelihoods import ExponentialFamily, MultinomialDirichlet
from ....models.sparse import Rows
from ...distributed.collectives import all_sum
from ..partition.factors import VariationalPartition
from ._numba_labels import expect_logs

State = TypeVar("State", bound=VariationalPartition)


class Block(NamedTuple):
    """Columns of N rows with the family of their own, and q(theta)."""

    family: ExponentialFamily
    rows: Rows  # [N, D]
    chi: Tensor  # [T, S]


class Expected(NamedTuple):
    """What q(theta) expects of the rows, and how far it is from its prior."""

    log_density: Tensor  # [N, T] E log p(x_n | theta_k)
    kl: Tensor  # [] float64, of all components


def expect(blocks: list[Block]) -> Expected:
    """The sums over the blocks."""
    found = [_EXPECT.get(type(block.family), _expect)(block) for block in blocks]
    return Expected(*(reduce(torch.add, values) for values in zip(*found, strict=True)))


def with_log_mixture(state: VariationalPartition, log_density: Tensor) -> Tensor:
    """log r_nk [N, T] up to a constant for each row, from log densities [N, T]."""
    return state.expected_log_mixture.to(log_density) + log_density


def shares(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Their softmax [N, T] over the components, and its log normalizers [N]."""
    log_r = logits.log_softmax(1)
    least = math.log(torch.finfo(logits.dtype).tiny) / 2  # denormal numbers would take many times as long
    return log_r.clamp(min=least).exp(), logits.amax(1) - log_r.amax(1)


def move(state: State, blocks: list[Block], memberships: Tensor, mixture: DPM, rho: float) -> State:
    """Sticks and families a step of size rho towards their optimum for rows that count `memberships` [N, T]; before,
    q(h) at its own given the sticks."""
    sizes = all_sum(memberships.sum(0, dtype=torch.float64))
    chi = state.hyperparameters
    table, start = chi.new_empty(chi.shape[1], chi.shape[0]), 0
    for family, rows, own in blocks:
        target = family.prior() + family.weighted_statistics(rows, memberships)
        torch.lerp(own.T, target.T, rho, out=table[start : start + own.shape[1]])
        start += own.shape[1]
    return replace(state.stepped(sizes, mixture, rho).without_rows(), hyperparameters=table.T)


# -- what a family expects -------------------------------------------------------------------------------------------


def _expect(block: Block) -> Expected:
    family, rows, chi = block
    return Expected(family.expected_log_density(rows, chi), family.kl(chi).sum(dtype=torch.float64))


def _expect_counts(block: Block) -> Expected:
    """Of Dirichlet laws of all words: their digammas serve the densities and the KL.

    KL = sum_k [A(chi0) - A(chi_k) + <chi_k - chi0, E t_k>],  A(chi) = sum_v log Gamma(chi_v) - log Gamma(sum_v chi_v)
    """
    family: Any = block.family
    if block.chi.is_cuda:
        return _expect(block)
    table, prior = block.chi.T.contiguous(), family.concentration.double().contiguous()
    totals, expected = table.sum(0, dtype=torch.float64), torch.empty_like(table)
    inner = expect_logs(*(part.numpy() for part in (table, prior, torch.digamma(totals), expected)))
    kl = len(totals) * family.log_partition(prior) + torch.lgamma(totals).sum() + inner
    return Expected(family.linear_log_density(block.rows, expected.T), kl)


_EXPECT: dict[type, Callable[[Block], Expected]] = {MultinomialDirichlet: _expect_counts}
