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
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ....models.data import Data
from ....models.distributions.sampling import normals, uniforms
from ....models.mixture import Mixture
from ....models.priors.laws import PointLaw
from ...classifiers.ridge import Ridge
from ...classifiers.scored import log_prior
from ...distributed.collectives import all_sum, own_stream
from ..scans.components import count_members
from ..state import PartitionState
from .launch import Launch, launch, log_margins


def num_moves(most: int, step: int, num_warmup: int) -> int:
    """How many moves come before a scan: `most` in the warm-up, where chains leave their starts, and before every tenth
    scan after it, since a move costs as much as several scans (not so those of `_numba_split_merge`)."""
    return most if step < num_warmup or step % _RARE == 0 else 0


def split_merge(
    state: PartitionState, data: Data, model: Mixture, generator: torch.Generator, *, law: PointLaw
) -> PartitionState:
    """One proposal, accepted or not. A split takes a free label of the law, and so needs one."""
    i, j = draw_pair(data.num_data, generator)
    own, other = state.assignments[[i, j]].tolist()
    rows = torch.nonzero((state.assignments == own) | (state.assignments == other)).squeeze(1)
    block, pair = data.rows(rows), torch.searchsorted(rows, torch.tensor([i, j], device=rows.device))
    screen, test = torch.log1p(-uniforms((2,), generator)).tolist()
    if own != other:
        side = state.assignments[rows] == other
        evidence = log_evidence_ratio(state, block, side, own, other, model, law=law)
        if screen >= -evidence / 2:
            return state
        start = launch(block, pair, model)
        weights = torch.cat([state.weights[[own, other]], start.whole.draw(generator)])
        if test < -evidence / 2 - log_proposal_ratio(block, side, weights, start, model):
            return _merge(state, own, other, weights, model, generator, law=law)
    elif (other := law.free_label(count_members(state), generator)) >= 0:
        start = launch(block, pair, model)
        weights = torch.cat([start.sides.draw(generator), state.weights[own : own + 1]])
        odds = start.log_odds(block, weights, model)
        side = uniforms(tuple(odds.shape), own_stream(generator)) < torch.sigmoid(odds.double())
        evidence = log_evidence_ratio(state, block, side, own, other, model, law=law)
        if screen < evidence / 2 and test < evidence / 2 + log_proposal_ratio(block, side, weights, start, model):
            return _split(state, rows[side], own, other, weights)
    return state


# -- the odds ----------------------------------------------------------------------------------------------------------


def log_evidence_ratio(
    state: PartitionState, block: Data, side: Tensor, own: int, other: int, model: Mixture, *, law: PointLaw
) -> float:
    """log of p(z') m(B_1) m(B_2) / p(z) m(B), classifiers apart: the part of the odds that needs no launch.
    `side` [B] says which points of the block are in `other`.

    Times the number of labels that the split may have chosen from.
    """
    merged = all_sum(torch.bincount(state.assignments, minlength=max(len(state.weights), other + 1))).double()
    merged[own], merged[other] = merged[own] + merged[other], 0
    split = merged.clone()
    split[other] = all_sum(side.sum())
    split[own] -= split[other]
    ratio = law.log_prior(split, state.hyper) - law.log_prior(merged, state.hyper) + (merged == 0).sum().log()
    sums = model.likelihood.summed_statistics(block.X, side.long(), 2).double()
    chi = model.likelihood.prior().double() + torch.cat([sums, sums.sum(0, keepdim=True)])
    first, second, whole = model.likelihood.log_marginal(chi)
    return float(ratio + first + second - whole)


def log_proposal_ratio(block: Data, side: Tensor, weights: Tensor, start: Launch, model: Mixture) -> float:
    """log of g_1 g_2 q / (g q_1 q_2 prod q(side_n)) at eta_1, eta_2, eta = weights [3, P, C]: the rest of the odds."""
    density = log_prior(weights, model.weight_scale)
    density -= torch.cat([_log_normal(start.sides, weights[:2]), _log_normal(start.whole, weights[2:])])
    margin = log_margins(block, weights, model).double()
    odds = start.log_odds(block, weights, model).double()
    divided = torch.where(side, margin[:, 1], margin[:, 0]) - margin[:, 2]
    points = divided - logsigmoid(torch.where(side, odds, -odds))
    return float(density[0] + density[1] - density[2] + all_sum(points.sum()))


def _log_normal(fit: Ridge, weights: Tensor) -> Tensor:
    """log N(eta; mean, A^-1) [K] in double precision."""
    tril = fit.precision_tril.double()
    gap = (weights - fit.mean).double().mT.unsqueeze(-1)
    half_log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum((1, 2))
    return half_log_det - ((tril.mT @ gap).square().sum((1, 2, 3)) + weights[0].numel() * math.log(2 * math.pi)) / 2


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
    law: PointLaw,
) -> PartitionState:
    """All in `own`; the label `other` is free, and where the law keeps it takes a classifier of the prior."""
    merged = replace(state, assignments=torch.where(state.assignments == other, own, state.assignments))
    new, kept = state.weights.clone(), law.kept(count_members(merged))
    new[own] = weights[2]
    if kept[other]:
        new[other] = model.weight_scale * normals(tuple(new[other].shape), generator, new)
    return replace(state, assignments=(kept.cumsum(0) - 1)[merged.assignments], weights=new[kept])


def draw_pair(num_data: int, generator: torch.Generator) -> tuple[int, int]:
    """Two different points."""
    first, second = uniforms((2,), generator).tolist()
    i, step = int(first * num_data), int(second * (num_data - 1))
    return i, (i + 1 + step) % num_data


_RARE = 10
