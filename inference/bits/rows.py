"""The features of rows given all other variables, by coordinate ascent on their probabilities, one after another.

    logit psi_nk = o_k + sum_d [ b_nd W_kd - a_nd (E w_kd^2 / 2 + sum_{j != k} psi_nj E w_jd w_kd) ] + margin

with prior log odds o and the pseudo-observations (a, b) of the likelihood. Rows are independent given the loadings, so
all rows are updated at once. Features are updated in turn: otherwise two that explain the same entries would both be
taken, or both be left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...models import host
from ...models.likelihoods import LinearLikelihood
from ...models.losses import PseudoObservation
from ...models.priors.hyper import Hyper


@dataclass(frozen=True)
class LoadingMoments:
    """Mean and covariance of the loadings, as a draw or q(W) has them."""

    mean: Tensor  # [K, D]
    covariance: Tensor | None = None  # [U, K, K] of the U kinds of columns; None: the loadings are known
    which: Tensor | None = None  # [D], the kind of each column

    def second(self, precision: Tensor) -> Tensor:
        """sum_d a_d E[w_d w_d^T] [K, K] with precisions a [D] of the columns."""
        total = (self.mean * precision) @ self.mean.T
        if self.covariance is not None and self.which is not None:
            share = precision.new_zeros(len(self.covariance)).index_add(0, self.which, precision)
            total = total + torch.einsum("u,ujk->jk", share, self.covariance)
        return total

    def predictor(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """E m and E m^2, each [N, D], of m = W^T z for independent bits with probabilities [N, K]."""
        mean, spread = features @ self.mean, features * (1 - features)
        square = mean.square() + spread @ self.mean.square()
        if self.covariance is not None and self.which is not None:
            quadratic = torch.einsum("nj,ujk,nk->nu", features, self.covariance, features)
            quadratic = quadratic + spread @ self.covariance.diagonal(dim1=-2, dim2=-1).T
            square = square + quadratic[:, self.which]
        return mean, square


class BinaryRows(NamedTuple):
    """Rows [N, D] whose K bits are to be inferred, and all that these depend on except labels."""

    X: Tensor  # [N, D]
    counted: Tensor | None  # [N, D], 1 for observed entries, 0 for missing ones; None: all are observed
    likelihood: LinearLikelihood
    h: Hyper  # hyperparameters of the likelihood
    log_odds: Tensor  # [K] prior log odds
    loadings: LoadingMoments

    def some(self, index: Tensor) -> BinaryRows:
        """Some of the rows, from their indices [M]."""
        return self._replace(X=self.X[index], counted=None if self.counted is None else self.counted[index])

    def pseudo(self, mean: Tensor, square: Tensor, hard: bool) -> PseudoObservation:
        """Pseudo-observations of the entries at these moments [N, D] of the predictor; `hard`: for divergences."""
        return self.likelihood.majorize(self.X, mean) if hard else self.likelihood.expect(self.X, square, self.h, mean)

    @property
    def is_gaussian(self) -> bool:
        """Whether no entry is missing and all entries of a column have the same precision."""
        return self.counted is None and is_gaussian(self.likelihood, self.h, self.X)


@dataclass(frozen=True)
class Settle:
    """How features are set to their best probabilities, or bits are drawn, one after another; psi is [K, N]."""

    one: Callable[[int, Tensor, Tensor], Tensor]  # (k, log odds [N] without labels, psi) -> probabilities [N]
    block: Callable[[slice, Tensor, Tensor, Tensor], None] | None = None
    """(features, log odds [B, N] without labels, their coupling [B, B], psi, which is changed)."""


Margin = Callable[[Tensor], Settle]
"""The labels' term in the update of features, given the probabilities [N, K] before a sweep."""


def infer_features(
    rows: BinaryRows,
    *,
    num_sweeps: int = 30,
    hard: bool = False,
    tolerance: float = 1e-4,
    margin: Callable[[Tensor], Margin] | None = None,
    start: Tensor | None = None,
) -> Tensor:
    """Probabilities [N, K] of the features of new rows, a local optimum; bits if `hard`.

    Parameters
    ----------
    num_sweeps, tolerance : a row is finished once none of its probabilities changes by more in a sweep
    margin : the labels' term for some rows, from their indices [M]; None: no labels
    start : probabilities [N, K] to start from; None: those of the prior
    """
    N, log_odds = len(rows.X), rows.log_odds
    psi = (log_odds.sigmoid().expand(N, -1) if start is None else start).clone()
    moving = torch.arange(N if len(log_odds) else 0, device=rows.X.device)
    for step in range(num_sweeps):
        if not len(moving):
            break
        known = None if margin is None else margin(moving)
        moved = sweep_features(rows.some(moving), psi[moving], hard=hard, margin=known)
        change = (moved - psi[moving]).abs().amax(1)
        psi[moving] = moved
        if host.looks(psi, step):
            moving = moving[change > tolerance]
    return psi


def best_features(rows: BinaryRows, *, candidates: Tensor, hard: bool = False) -> Tensor:
    """As `infer_features`, from several starts: for each row the optimum of the largest `row_bounds`, [N, K].

    The starts are the prior's odds, no feature, all features, and the candidate bits [U, K] that explain the row best.
    """
    best = infer_features(rows, hard=hard)
    if not best.numel():
        return best
    value = row_bounds(rows, best, hard=hard)
    exists = (rows.log_odds > -torch.inf).to(rows.X)
    starts = [torch.zeros_like(best), exists.expand_as(best)]
    starts += [_best_candidates(rows, best, candidates.to(rows.X) * exists, hard=hard)] if len(candidates) else []
    for start in starts:
        found = infer_features(rows, hard=hard, start=start)
        other = row_bounds(rows, found, hard=hard)
        better = other > value + _LEAST_GAIN * (1 + value.abs())  # by more than the tolerance within one optimum
        best, value = torch.where(better.unsqueeze(1), found, best), torch.where(better, other, value)
    return best


def row_bounds(rows: BinaryRows, psi: Tensor, *, hard: bool = False) -> Tensor:
    """E log p(x, z) + entropy [N] at probabilities [N, K]; for bits, their log odds minus the divergence."""
    X, counted, likelihood, h, log_odds, loadings = rows
    mean, square = loadings.predictor(psi)
    fit = -likelihood.divergence(X, mean) if hard else likelihood.expected_log_density(X, mean, square, h)
    fit = fit if counted is None else fit * counted
    prior = torch.where(psi > 0, psi * log_odds, 0.0) + torch.special.entr(psi) + torch.special.entr(1 - psi)
    return fit.sum(1) + prior.sum(1)


def _best_candidates(rows: BinaryRows, psi: Tensor, bits: Tensor, *, hard: bool) -> Tensor:
    """The candidates [N, K] of largest bound among [U, K], by pseudo-observations at psi [N, K]."""
    loadings = rows.loadings
    observed = rows.pseudo(*loadings.predictor(psi), hard)
    counts = 1.0 if rows.counted is None else rows.counted
    own_mean, own_square = loadings.predictor(bits)
    own_square = own_mean.square() if hard else own_square
    fit = (observed.shift * counts) @ own_mean.T - (observed.precision * counts) @ own_square.T / 2
    prior = torch.where(bits > 0, bits * rows.log_odds, 0.0).sum(1)
    return bits[(fit + prior).argmax(1)]


def sweep_features(rows: BinaryRows, psi: Tensor, *, hard: bool = False, margin: Margin | None = None) -> Tensor:
    """One pass over the features, [N, K]: each psi is set to its optimum given the others; `margin` adds labels."""
    X, counted, likelihood, h, log_odds, loadings = rows
    settle = Settle(partial(_squash, hard)) if margin is None else margin(psi)
    if rows.is_gaussian:
        observed = likelihood.majorize(X, X) if hard else observe_gaussian(X, likelihood, h)
    else:
        observed = rows.pseudo(*loadings.predictor(psi), hard)
    return visit_features(observed, counted, log_odds, loadings, psi, settle)


def visit_features(
    observed: PseudoObservation,
    counted: Tensor | None,
    log_odds: Tensor,
    loadings: LoadingMoments,
    psi: Tensor,
    settle: Settle,
) -> Tensor:
    """Features [N, K] after each was set in turn, starting from psi [N, K]: probabilities, or bits.

    Parameters
    ----------
    observed : precision [1, D] or [N, D] and shift [N, D] of the entries
    counted : [N, D], 1 where an entry was observed, 0 where not; None: all were
    log_odds : [K] a priori
    """
    if counted is None and len(observed.precision) == 1:
        return _visit_blocks(observed, log_odds, loadings, psi, settle)
    mean, (weight, shift) = psi @ loadings.mean, observed
    weight, shift = (weight.expand_as(mean), shift) if counted is None else (weight * counted, shift * counted)
    linear = (shift @ loadings.mean.T).T.contiguous()
    psi = psi.T.clone(memory_format=torch.contiguous_format)  # clone: the transpose of a single row would be a view
    for k, row in enumerate(loadings.mean):
        rest = mean - psi[k].unsqueeze(1) * row
        gain = linear[k] - torch.addmv((rest * weight) @ row, weight, row.square(), alpha=0.5)
        if loadings.covariance is not None and loadings.which is not None:
            spread = loadings.covariance[:, k]  # [U, K]
            cross = spread @ psi - psi[k] * spread[:, k : k + 1] + spread[:, k : k + 1] / 2
            gain = gain - _over_columns(weight, cross, loadings.which)
        psi[k] = settle.one(k, log_odds[k] + gain, psi)
        mean = torch.addcmul(rest, psi[k].unsqueeze(1), row)
    return psi.T.contiguous()


def is_gaussian(likelihood: LinearLikelihood, h: Hyper, like: Tensor) -> bool:
    """Whether all entries of a column of X [N, D] have the same precision, so that sums over rows suffice."""
    none = like.new_zeros(2, like.shape[1])
    return len(likelihood.expect(none, none, h, none).precision) == 1


def observe_gaussian(X: Tensor, likelihood: LinearLikelihood, h: Hyper) -> PseudoObservation:
    """Precision [1, D] and shift [N, D] of Gaussian entries, which do not depend on the predictor."""
    any_predictor = X.new_zeros(()).expand_as(X)
    return likelihood.expect(X, any_predictor, h, any_predictor)


def _visit_blocks(
    observed: PseudoObservation, log_odds: Tensor, loadings: LoadingMoments, psi: Tensor, settle: Settle
) -> Tensor:
    """`visit_features` if one matrix sum_d a_d E[w_d w_d^T] serves all rows.

    The terms of a block of features due to all others are one matrix product; within the block, each change is passed
    on.
    """
    second = loadings.second(observed.precision[0])
    own = second.diagonal()
    linear = loadings.mean @ observed.shift.T + (log_odds - own / 2).unsqueeze(1)
    psi = psi.T.clone(memory_format=torch.contiguous_format)  # clone: the transpose of a single row would be a view
    visit = settle.block or partial(_in_turn, settle)
    for start in range(0, len(psi), _BLOCK):
        some = slice(start, start + _BLOCK)
        visit(some, torch.addmm(linear[some], second[some], psi, alpha=-1), second[some, some].contiguous(), psi)
    return psi.T.contiguous()


def _in_turn(settle: Settle, some: slice, logits: Tensor, coupling: Tensor, psi: Tensor) -> None:
    for j, own in enumerate(coupling.diagonal()):
        k = some.start + j
        moved = settle.one(k, torch.addcmul(logits[j], psi[k], own), psi)
        logits[j + 1 :].addr_(coupling[j, j + 1 :], moved - psi[k], alpha=-1)
        psi[k] = moved


def _over_columns(weight: Tensor, cross: Tensor, which: Tensor) -> Tensor:
    """sum_d weight_nd cross_{u(d) n} [N], of weights [N, D] and cross [U, N]."""
    if len(cross) == len(which):
        return torch.einsum("nd,dn->n", weight, cross[which])
    share = weight.new_zeros(len(cross), len(weight)).index_add_(0, which, weight.T)
    return (share * cross).sum(0)


def _squash(hard: bool, k: int, log_odds: Tensor, psi: Tensor) -> Tensor:
    return (log_odds > 0).to(log_odds) if hard else log_odds.sigmoid()


_LEAST_GAIN = 1e-6  # of a bound
_BLOCK = 50  # features per block: one product for each, and few corrections within it
