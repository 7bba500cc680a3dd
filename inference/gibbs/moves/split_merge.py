"""Split-merge proposals: one block is split, two are merged, or two are redivided, with classifiers that fit.

A scan moves one point at a time, or opens components with classifiers that suit no other point, so that chains stay
near their start. Here a pair of points i, j is chosen uniformly, B is the union of their blocks, and the proposals are

    i, j together    sides of B from the launch, then classifiers of both from q(. | S)                (split)
    i, j apart       one block, with classifiers from q(. | B); the freed place gets r ~ q(. | {})     (merge)
    i, j apart       other sides of B, and classifiers for them; where components repel                (redivision)

    odds of the split = m(B_1) m(B_2) / m(B) * w(B_1) w(B_2) / w(B) / q(sides) * sum_a W_a p(z'_a) / p(z)

The sum is over the places a that are free when B is one block. z'_a is the split that uses a, and W_a = q(r_a | {}) /
ghat_0(r_a); a is chosen with probability proportional to its term. m are block marginals; w and ghat are defined in
`block_classifiers`. A merge has the inverse odds. A redivision has the odds of one split divided by those of the other,
without the sum. Whether w and ghat depend on the block alone or on all points follows from `classifiers.scored`.

The launch is a function of B, i, j, the data and the hyperparameters, not of how B is divided now: two sides start from
one point each, and a few rounds of soft reassignment give log odds. Half of the launches, chosen at random beforehand,
use the likelihood alone. With classifiers, a launch may settle on a cut through a cluster; without them, it misses
clusters that overlap.

Acceptance is delayed (Christen & Fox 2005). A first test uses s, the square root of the odds without q(sides) and with
`screening` in place of w. It rejects most moves early: merges before their launch is computed, and many moves before
anything is fitted, because no hyperplanes could outweigh the likelihood's odds (`reach`).

Sources: Dahl (2003) and Jain & Neal (2004), whose sequential restricted scans are here deterministic soft ones;
docs/derivations/repelling, "Split-merge moves".
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ....models.distributions.sampling import draw_categorical, uniforms
from ...distributed.collectives import all_count, all_sum
from ..allocations import Allocation, D, M, S
from .block_classifiers import exchange
from .union import Union


def num_moves(most: int, step: int, num_warmup: int, *, costly: bool) -> int:
    """The number of moves before a scan: `most` in the warm-up, in which chains leave their starts.

    `costly` moves, those of repelling hyperplanes, come before every second scan of the warm-up. After the warm-up
    moves come before every tenth scan, since a move costs as much as several scans (except in `_numba_split_merge`).
    """
    often = _OFTEN if costly else 1
    return 0 if step % (often if step < num_warmup else _RARE) else most


def split_merge(state: S, z: Allocation[S, D, M], model: M, generator: torch.Generator) -> S:
    """Make one proposal and accept or reject it."""
    return z.close(state, propose(z.open(state), z, model, generator))


def propose(at: S, z: Allocation[S, D, M], model: M, generator: torch.Generator) -> S:
    """Make one proposal for an open state; its kind is drawn before it is known whether the pair is together."""
    pair = torch.tensor(draw_pair(all_count(z.points.num_data), generator), device=at.assignments.device)
    kind, basis, habit = uniforms((3,), generator).tolist()
    union = Union(at, z, model, pair, with_margin=basis < 0.5, persistent=habit < 0.5)
    together = union.own == union.other
    if kind < union.scored.redivided:
        return at if together else redivide(at, union, generator)
    return split(at, union, generator) if together else merge(at, union, generator)


def split(at: S, union: Union[S, D, M], generator: torch.Generator) -> S:
    """Propose to split the block of the pair."""
    free = union.z.free(at)
    if not len(free):
        return at
    screen, test, which = uniforms((3,), generator)
    screen, log_odds = float(torch.log1p(-screen)), union.launch()
    side = union.sides.draw(log_odds, generator)
    share = union.z.draw_share(side, generator)
    division = union.weigh(at, side, free, share, (screen, math.inf))
    if not screen < division.log_screen:
        return at
    division = division.refined()
    weights, log_gain = exchange(division.blocks[[3, 1, 2]], at.weights[union.own : union.own + 1], generator)
    log_ratio, places = union.log_ratio(division, at.weights[free], log_gain, log_odds)
    if not torch.log1p(-test) < log_ratio - division.log_screen:
        return at
    place = int(free[draw_categorical(places, which)])
    divided = union.z.divide(at, union.steps[side], union.own, place, share)
    return replace(divided, weights=_put(at.weights, [union.own, place], weights))


def merge(at: S, union: Union[S, D, M], generator: torch.Generator) -> S:
    """Propose to merge the two blocks of the pair."""
    z, own, other = union.z, union.own, union.other
    screen, test = torch.log1p(-uniforms((2,), generator)).tolist()
    side = at.assignments[union.steps] == other
    joined = z.join(at, own, other, generator)
    free = z.free(joined)
    division = union.weigh(joined, side, free, z.share(at, own, other), (-math.inf, -screen))
    if not screen < -division.log_screen:
        return at
    division, log_odds, present = division.refined(), union.launch(), at.weights[[own, other]]
    whole, log_gain = exchange(division.blocks[[1, 2, 3]], present, generator)
    freed = division.blocks[[0]].draw(1, generator)[:, 0].to(whole)
    weights = _put(at.weights, [own, other], torch.cat([whole, freed]))
    log_ratio, _ = union.log_ratio(division, weights[free], -log_gain, log_odds)
    if not test < division.log_screen - log_ratio:
        return at
    return replace(joined, weights=weights)


def redivide(at: S, union: Union[S, D, M], generator: torch.Generator) -> S:
    """Propose to redivide the two blocks of the pair."""
    own, other = union.own, union.other
    screen, test = torch.log1p(-uniforms((2,), generator)).tolist()
    log_odds, now = union.launch(), at.assignments[union.steps] == other
    side = union.sides.draw(log_odds, generator)
    if not all_sum((side != now).sum()):
        return at
    labels = at.assignments.index_fill(0, union.steps, own).index_fill(0, union.steps[side], other)
    log_ratio = union.log_renewal(at, replace(at, assignments=labels), log_odds)
    blocks = union.blocks(~now, now, ~side, side)
    if not screen < (log_ratio + blocks.reach()) / 2:
        return at
    bounds = blocks.screening()
    log_screen = (log_ratio + bounds[2:].sum() - bounds[:2].sum()) / 2
    if not screen < log_screen:
        return at
    weights, log_gain = exchange(blocks.refined(), at.weights[[own, other]], generator)
    if not test < log_ratio + log_gain - log_screen:
        return at
    return replace(at, assignments=labels, weights=_put(at.weights, [own, other], weights))


def draw_pair(num_data: int, generator: torch.Generator) -> tuple[int, int]:
    """Draw two different points; return their numbers."""
    first, second = uniforms((2,), generator).tolist()
    i, step = int(first * num_data), int(second * (num_data - 1))
    return i, (i + 1 + step) % num_data


def _put(weights: Tensor, places: list[int], new: Tensor) -> Tensor:
    return weights.index_copy(0, torch.tensor(places, device=weights.device), new)


_OFTEN, _RARE = 2, 10
