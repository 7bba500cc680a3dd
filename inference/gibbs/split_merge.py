"""Split-merge proposals: one Metropolis step that divides a component, or joins two, whatever the family and the loss.

A pair of points i, j is chosen uniformly, and B is the union of their components. The *launch* is a function of B, i, j
and the data, not of how B is divided now: two sides start from x_i alone and from x_j alone, and a few rounds of soft
reassignment, parallel over B, end in expected log densities and Gaussians q_1, q_2 of the two sides' classifiers.

    i, j together    eta_1 ~ q_1, eta_2 ~ q_2, then each point of B takes a side with its own odds     (split)
    i, j apart       eta ~ q, a Gaussian fitted to all of B                                            (merge)

    odds of the split = p(z') m(B_1) m(B_2) g_1(eta_1) g_2(eta_2)                 q(eta)
                        ----------------------------------------- * --------------------------------------
                             p(z) m(B) g(eta)                       q_1(eta_1) q_2(eta_2) prod_n q(side_n)

with m the block marginals, g_k(eta) = N(eta; 0, nu^2 I) prod_{n in B_k} phi(y_n | eta^T a_n), and g that of all of B. A
merge has the inverse odds. Exact for any launch that keeps to the rule; a good one is accepted more often.

Acceptance is delayed (Christen & Fox 2005): the square root of r = p(z') m(B_1) m(B_2) / (p(z) m(B)) is tested first,
then the odds over that root, so that most merges, which are hopeless, are turned down before their launch is computed.

Sources: Dahl (2003) and Jain & Neal (2004); their sequential restricted scans are here deterministic soft ones, which
leaves a product of odds that all points of B draw from at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ...models.likelihoods.base import row_chunks
from ...models.mixture import Data, Mixture
from ...models.priors.dirichlet_process import log_eppf, log_labelled_prior
from ..ridge import Ridge, soft_ridge
from .state import PartitionState

__all__ = ["Fit", "Launch", "fit_classifiers", "launch", "log_evidence_ratio", "log_proposal_ratio", "split_merge"]


def split_merge(
    state: PartitionState, data: Data, model: Mixture, generator: torch.Generator, *, truncated: bool
) -> PartitionState:
    """One proposal, accepted or not. In the truncated model a split takes a free label at random, and so needs one."""
    i, j = _pair(data.num_data, generator)
    own, other = state.assignments[[i, j]].tolist()
    rows = torch.nonzero((state.assignments == own) | (state.assignments == other)).squeeze(1)
    block, pair = data.rows(rows), torch.searchsorted(rows, torch.tensor([i, j], device=rows.device))
    screen, test = torch.log1p(-_uniform((2,), generator)).tolist()
    if own != other:
        side = state.assignments[rows] == other
        evidence = log_evidence_ratio(state, block, side, own, other, model, truncated=truncated)
        if screen >= -evidence / 2:
            return state
        start = launch(block, pair, model)
        weights = torch.cat([state.weights[[own, other]], start.whole.draw(generator)])
        if test < -evidence / 2 - log_proposal_ratio(block, side, weights, start, model):
            return _merge(state, own, other, weights, model, generator, truncated=truncated)
    elif (other := _free_label(state, generator, truncated=truncated)) >= 0:
        start = launch(block, pair, model)
        weights = torch.cat([start.sides.draw(generator), state.weights[own : own + 1]])
        odds = start.log_odds(block, weights, model)
        side = _uniform(odds.shape, generator, odds.dtype) < torch.sigmoid(odds)
        evidence = log_evidence_ratio(state, block, side, own, other, model, truncated=truncated)
        if screen < evidence / 2 and test < evidence / 2 + log_proposal_ratio(block, side, weights, start, model):
            return _split(state, rows[side], own, other, weights)
    return state


# -- the launch --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """What the proposals for a block of B points are drawn from; its order of sides is that of the pair."""

    log_density: Tensor  # [B] log odds of the second side from the family alone; -inf at i, +inf at j
    sides: Ridge  # q_1, q_2
    whole: Ridge  # q

    def log_odds(self, block: Data, weights: Tensor, model: Mixture) -> Tensor:
        """Log odds [B] of the second side given the classifiers [2 or more, P, C] of the sides."""
        margin = _log_margin(block, weights[:2], model)
        return self.log_density + margin[:, 1] - margin[:, 0]


def launch(block: Data, pair: Tensor, model: Mixture) -> Launch:
    """Rounds of soft reassignment from the pair of rows [2] of the block."""
    likelihood, sides = model.likelihood, None
    responsibilities = block.X.new_zeros(block.num_data, 2)
    responsibilities[pair, [0, 1]] = 1
    for step in range(_NUM_ROUNDS + 1):
        last = step == _NUM_ROUNDS
        chi = likelihood.prior() + likelihood.weighted_statistics(block.X, responsibilities)
        expected = likelihood.expected_log_density(block.X, chi) + responsibilities.sum(0).log()
        log_density = expected[:, 1] - expected[:, 0]
        log_density[pair] = log_density.new_tensor([-torch.inf, torch.inf])
        sides = fit_classifiers(block, responsibilities, model, sides, num_steps=_NUM_STEPS // 2 if last else 1)
        if not last:
            margin = _log_margin(block, sides.weights.mean, model)
            odds = log_density + margin[:, 1] - margin[:, 0]
            responsibilities = torch.sigmoid(torch.stack([-odds, odds], 1))
    assert sides is not None  # there is at least one round
    whole = fit_classifiers(block, torch.ones_like(responsibilities[:, :1]), model, num_steps=_NUM_STEPS)
    return Launch(log_density, sides.weights, whole.weights)


class Fit(NamedTuple):
    """Gaussians for the classifiers of K soft components, and the pseudo-observations they came from."""

    precision: Tensor  # [B, K, C]
    shift: Tensor  # [B, K, C]
    weights: Ridge


def fit_classifiers(
    block: Data, responsibilities: Tensor, model: Mixture, start: Fit | None = None, *, num_steps: int = 1
) -> Fit:
    """Gaussians N(mean_k, A_k^-1) near g_k(eta), from soft assignments [B, K]: steps from `start`, or from the prior.

    A step goes halfway to precision = -E phi'', shift = E phi' + precision E f of log phi under the present Gaussian of
    the score f; at a fixed point the Gaussian has the least KL to g_k (Opper & Archambeau 2009). Expectations are by
    quadrature, so for any loss. A step that lowers the bound E log phi - KL(N || prior) is tried again at a quarter.
    """
    none = block.X.new_zeros(block.num_data, responsibilities.shape[1], block.targets.shape[1])
    fit = _fit(block, responsibilities, model, *(start[:2] if start else (none, none)))
    if not none.shape[2]:
        return fit
    bound, goal = _improve(block, responsibilities, model, fit)
    step = 0.5
    for _ in range(num_steps):
        halfway = (torch.lerp(own, to, step) for own, to in zip(fit[:2], goal, strict=True))
        trial = _fit(block, responsibilities, model, *halfway)
        trial_bound, trial_goal = _improve(block, responsibilities, model, trial)
        if trial_bound > bound:
            fit, bound, goal, step = trial, trial_bound, trial_goal, 0.5
        else:
            step /= 4
    return fit


def _fit(block: Data, responsibilities: Tensor, model: Mixture, precision: Tensor, shift: Tensor) -> Fit:
    weights = soft_ridge(block.features, precision, shift, responsibilities, weight_scale=model.weight_scale)
    return Fit(precision, shift, weights)


def _improve(block: Data, responsibilities: Tensor, model: Mixture, fit: Fit) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The bound, summed over the components, and the precision and shift [B, K, C] to go towards."""
    mean = torch.einsum("np,kpc->nkc", block.features, fit.weights.mean)
    scale = fit.weights.score_variance(block.features).sqrt().clamp(min=_LEAST_SCALE)
    pieces = [
        _quadratic(mean[rows], scale[rows], block.targets[rows], model)
        for rows in row_chunks(block.X, _NUM_NODES * mean[0].numel())
    ]
    value, slope, curvature = (torch.cat(piece) for piece in zip(*pieces, strict=True))
    precision = (-curvature).clamp(min=0)
    bound = (responsibilities * value).sum() - fit.weights.kl(model.weight_scale).sum()
    return bound, (precision, slope + precision * mean)


def _quadratic(mean: Tensor, scale: Tensor, targets: Tensor, model: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    """E log phi [B, K], E phi' and E phi'' [B, K, C] of log phi for scores N(mean, scale^2).

    phi' = E[e log phi] / scale, phi'' = E[(e^2 - 1) log phi] / scale^2 with e the standardized score. Scores that
    meet in one factor move one at a time, the others at their means.
    """
    nodes, masses = mean.new_tensor(_normal_quadrature())
    moments = torch.stack([masses, masses * nodes, masses * (nodes.square() - 1)])
    value, slope, curvature = mean.new_zeros(mean.shape[:2]), torch.empty_like(mean), torch.empty_like(mean)
    blocks = model.loss.blocks(mean.shape[2])
    for columns in blocks:
        scores = mean.expand(_NUM_NODES, *mean.shape).clone()
        scores[..., columns] += nodes.view(-1, 1, 1, 1) * scale[..., columns]
        log_factor = model.loss.log_factor(scores, targets.unsqueeze(1))
        expected, first, second = torch.einsum("mg,gnkc->mnkc", moments, log_factor)
        value += expected.sum(-1) / len(blocks)
        slope[..., columns] = first / scale[..., columns]
        curvature[..., columns] = second / scale[..., columns].square()
    return value, slope, curvature


@cache
def _normal_quadrature() -> list[list[float]]:
    """Nodes and masses of a standard normal."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(_NUM_NODES)
    return [nodes.tolist(), (masses / masses.sum()).tolist()]


# -- the odds ----------------------------------------------------------------------------------------------------------


def log_evidence_ratio(
    state: PartitionState, block: Data, side: Tensor, own: int, other: int, model: Mixture, *, truncated: bool
) -> float:
    """log of p(z') m(B_1) m(B_2) / p(z) m(B), classifiers apart: the part of the odds that needs no launch.

    In the truncated model times the number of labels that the split may have chosen from.
    """
    alpha = state.concentration.double()
    merged = torch.bincount(state.assignments, minlength=max(len(state.weights), other + 1)).double()
    merged[own], merged[other] = block.num_data, 0
    split = merged.clone()
    split[own], split[other] = (~side).sum(), side.sum()
    if truncated:
        ratio = log_labelled_prior(split, alpha) - log_labelled_prior(merged, alpha) + (merged == 0).sum().log()
    else:
        ratio = log_eppf(split, alpha) - log_eppf(merged[merged > 0], alpha)
    sums = model.likelihood.summed_statistics(block.X, side.long(), 2).double()
    chi = model.likelihood.prior().double() + torch.cat([sums, sums.sum(0, keepdim=True)])
    first, second, whole = model.likelihood.log_marginal(chi)
    return float(ratio + first + second - whole)


def log_proposal_ratio(block: Data, side: Tensor, weights: Tensor, start: Launch, model: Mixture) -> float:
    """log of g_1 g_2 q / (g q_1 q_2 prod q(side_n)) at eta_1, eta_2, eta = weights [3, P, C]: the rest of the odds."""
    density = _log_prior(weights, model)
    density -= torch.cat([_log_normal(start.sides, weights[:2]), _log_normal(start.whole, weights[2:])])
    margin = _log_margin(block, weights, model).double()
    divided = torch.where(side, margin[:, 1], margin[:, 0]).sum() - margin[:, 2].sum()
    odds = start.log_odds(block, weights, model).double()
    return float(density[0] + density[1] - density[2] + divided - logsigmoid(torch.where(side, odds, -odds)).sum())


def _log_prior(weights: Tensor, model: Mixture) -> Tensor:
    """log N(eta; 0, nu^2 I) [K] in double precision."""
    square = (weights.double() / model.weight_scale).square().sum((1, 2))
    return -(square + weights[0].numel() * math.log(2 * math.pi * model.weight_scale**2)) / 2


def _log_normal(fit: Ridge, weights: Tensor) -> Tensor:
    """log N(eta; mean, A^-1) [K] in double precision."""
    tril = fit.precision_tril.double()
    gap = (weights - fit.mean).double().mT.unsqueeze(-1)
    half_log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum((1, 2))
    return half_log_det - ((tril.mT @ gap).square().sum((1, 2, 3)) + weights[0].numel() * math.log(2 * math.pi)) / 2


def _log_margin(block: Data, weights: Tensor, model: Mixture) -> Tensor:
    """log phi(y_n | eta_k^T a_n) [B, K]."""
    scores = torch.einsum("np,kpc->nkc", block.features, weights)
    return model.log_margin(scores, block.targets.unsqueeze(1))


# -- the moves ---------------------------------------------------------------------------------------------------------


def _split(state: PartitionState, rows: Tensor, own: int, other: int, weights: Tensor) -> PartitionState:
    assignments = state.assignments.clone()
    assignments[rows] = other
    kept = state.weights if other < len(state.weights) else torch.cat([state.weights, weights[1:2]])
    kept = kept.clone()
    kept[[own, other]] = weights[:2]
    return replace(state, assignments=assignments, weights=kept)


def _merge(
    state: PartitionState,
    own: int,
    other: int,
    weights: Tensor,
    model: Mixture,
    generator: torch.Generator,
    *,
    truncated: bool,
) -> PartitionState:
    """All in `own`; the label `other` is free: it goes, or in the truncated model takes a classifier of the prior."""
    assignments = torch.where(state.assignments == other, own, state.assignments)
    kept = state.weights.clone()
    kept[own] = weights[2]
    if truncated:
        like: dict[str, Any] = {"generator": generator, "dtype": kept.dtype, "device": kept.device}
        kept[other] = model.weight_scale * torch.randn(kept[other].shape, **like)
        return replace(state, assignments=assignments, weights=kept)
    others = torch.arange(len(kept), device=kept.device) != other
    return replace(state, assignments=assignments - (assignments > other).long(), weights=kept[others])


def _free_label(state: PartitionState, generator: torch.Generator, *, truncated: bool) -> int:
    """The next label, or in the truncated model a free one at random; -1 if there is none."""
    if not truncated:
        return len(state.weights)
    free = torch.nonzero(torch.bincount(state.assignments, minlength=len(state.weights)) == 0).squeeze(1)
    return int(free[int(len(free) * _uniform((), generator))]) if len(free) else -1


def _pair(num_data: int, generator: torch.Generator) -> tuple[int, int]:
    """Two different points."""
    uniforms = _uniform((2,), generator).tolist()
    i, step = int(uniforms[0] * num_data), int(uniforms[1] * (num_data - 1))
    return i, (i + 1 + step) % num_data


def _uniform(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=dtype, device=generator.device)


_NUM_ROUNDS = 4
_NUM_STEPS = 10
_NUM_NODES = 16
_LEAST_SCALE = 1e-2  # below it differences of log phi are rounding
