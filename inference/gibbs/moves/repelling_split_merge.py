"""Split-merge proposals where components repel: blocks divided, joined or divided anew, with hyperplanes that fit.

A scan opens a component with a hyperplane that rejects all points, so that no other point follows, and chains stay
where they start. Here a pair of points i, j is chosen uniformly, B is the union of their blocks, and

    i, j together    sides of B from the launch, then hyperplanes of both from q(. | S)              (split)
    i, j apart       one block, with a hyperplane from q(. | B); the freed place gets r ~ q(. | {})   (merge)
    i, j apart       other sides of B, and hyperplanes for them                                      (redivision)

    odds of the split = m(B_1) m(B_2) / m(B) * w(B_1) w(B_2) / w(B) / q(sides) * sum_a W_a p(z'_a) / p(z)

over the places a that are free when B is one block, z'_a the split that uses a, W_a = q(r_a | {}) / ghat_0(r_a); a is
chosen with probability prop. to its term. m are block marginals, w and ghat those of `block_hyperplanes`. A merge has
the inverse odds, and a redivision those of one split over the other, without the sum.

The launch is a function of B, i, j, the data and the hyperparameters, not of how B is divided now: two sides start from
one point each, and a few rounds of soft reassignment end in log odds. Half of the launches, chosen beforehand, go by
the family alone: with the hyperplanes they may settle on a cut through a cluster, without they miss clusters that
overlap.

Acceptance is delayed (Christen & Fox 2005): s, the square root of the odds with the bounds of rough fits for w and
without the sides, is tested first, so that most moves are turned down early, merges before their launch is computed.

Source: math/discriminative-clustering, section 15.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ....models.base import Model
from ....models.distributions.sampling import draw_categorical, uniforms
from ...distributed.collectives import all_sum
from .block_fits import mean_scores, start_fits
from .block_hyperplanes import BlockHyperplanes, exchange, fit_blocks
from .labelled import Labelled, LabelledPartitions
from .launch import NUM_ROUNDS, family_odds, seeds
from .split_merge import draw_pair


def split_merge_repelling(
    state: Any, data: Any, model: Model, generator: torch.Generator, *, law: Any, places: Any = LabelledPartitions
) -> Any:
    """One proposal for a state, accepted or not; `places` is `LabelledPartitions` or what derives from it."""
    target: LabelledPartitions = places(state, data, law)
    return target.close(propose(target.open(), target, model, generator))


def propose(at: Labelled, target: LabelledPartitions, model: Model, generator: torch.Generator) -> Labelled:
    """One proposal, accepted or not. Its kind is chosen before it is known whether the pair is together."""
    pair = torch.tensor(draw_pair(target.points.num_data, generator), device=at.labels.device)
    kind, basis, habit = uniforms((3,), generator).tolist()
    union = Union(at, target, model, pair, with_margin=basis < 0.5, persistent=habit < 0.5)
    together = union.own == union.other
    if kind < _REDIVIDED:
        return at if together else _redivide(at, union, generator)
    return _split(at, union, generator) if together else _merge(at, union, generator)


@dataclass(frozen=True)
class Division:
    """A division of B against B in one block."""

    side: Tensor  # [B] bool
    blocks: BlockHyperplanes  # of no point, of the two sides, and of B
    log_places: Tensor  # [A] of m(B_1) m(B_2) / m(B) * p(z'_a) / p(z)
    log_screen: float  # log s


class Union:
    """The union B of the blocks of a pair of points, and the terms of the odds of its divisions.

    A division says which steps of B are on the second side, bool [B].
    """

    def __init__(
        self,
        at: Labelled,
        target: LabelledPartitions,
        model: Model,
        pair: Tensor,
        *,
        with_margin: bool,
        persistent: bool = False,
    ) -> None:
        self.target, self.points, self.model, self.with_margin = target, target.points, model, with_margin
        self.own, self.other = at.labels[target.steps[pair]].tolist()
        self.steps = torch.nonzero((at.labels == self.own) | (at.labels == self.other)).squeeze(1)
        rows = target.rows[self.steps]
        self.seen = torch.nonzero(rows >= 0).squeeze(1)
        self.rows, self.sides = rows[self.seen], target.sides(self.steps, persistent=persistent)
        self.block, self.pair = self.points.rows(self.rows), torch.searchsorted(self.rows, pair)

    def launch(self) -> Tensor:
        """Log odds [B] of the second side, 0 where there is no x; -inf and +inf at the pair."""
        shares, natural = seeds(self.block, self.pair), None
        for _ in range(NUM_ROUNDS):
            odds = family_odds(self.block, shares, self.pair, self.model)
            if self.with_margin:
                everywhere = self.points.features.new_zeros(self.points.num_data, 2).index_copy(0, self.rows, shares)
                natural = start_fits(everywhere, self.points, self.model, natural).onward()
                scores = mean_scores(natural, self.block.features).unsqueeze(2)
                margin = self.model.log_margin(scores, scores.new_ones(1))
                odds = odds + margin[:, 1] - margin[:, 0]
            log_odds = odds.new_zeros(len(self.steps)).index_copy(0, self.seen, odds)
            shares = self.sides.marginals(log_odds)[self.seen]
        return log_odds

    def log_evidence(self, side: Tensor) -> Tensor:
        """log of m(B_1) m(B_2) / m(B) []."""
        family = self.model.likelihood
        sums = family.summed_statistics(self.block.X, side[self.seen].long(), 2).double()
        parts = family.log_marginal(family.prior().double() + torch.cat([sums, sums.sum(0, keepdim=True)]))
        return parts[0] + parts[1] - parts[2]

    def fit(self, *which: Tensor) -> BlockHyperplanes:
        """q(. | S) of some sets of steps of B, each bool [B]."""
        members = torch.stack(which, 1)[self.seen]
        nowhere = members.new_zeros(self.points.num_data, len(which))
        return fit_blocks(nowhere.index_copy(0, self.rows, members), self.points, self.model)

    def weigh(self, joined: Labelled, side: Tensor, free: Tensor, share: float) -> Division:
        """A division whose second side takes one of the places free."""
        blocks = self.fit(side & ~side, ~side, side, side | ~side)
        some = free[:1] if self.target.law.alike else free
        log_places = self.target.log_divisions(joined, side, self.steps, self.own, some, share)
        log_places = log_places.expand(len(free)) + self.log_evidence(side)
        nobody, first, second, whole = blocks.fit.bound
        log_screen = (log_places.logsumexp(0) + first + second - whole - nobody) / 2
        return Division(side, blocks, log_places, float(log_screen))

    def refined(self, division: Division) -> Division:
        """The same with more steps of the fits."""
        return replace(division, blocks=division.blocks.refined(self.points, self.model))

    def log_ratio(self, division: Division, planes: Tensor, log_gain: float, log_odds: Tensor) -> tuple[Tensor, Tensor]:
        """Log odds [] of a split, and the log weights [A] of the free places with their hyperplanes [A, P, 1].

        `log_gain` is log of w(B_1) w(B_2) / w(B), `log_odds` [B] what the launch ended in.
        """
        nobody, free = division.blocks[[0]], planes.squeeze(-1).unsqueeze(0)
        places = division.log_places - nobody.log_ratio(free, self.points, self.model)[0]
        return places.logsumexp(0) + log_gain - self.sides.log_probability(log_odds, division.side), places

    def log_renewal(self, at: Labelled, moved: Labelled, log_odds: Tensor) -> Tensor:
        """log of p(z') m m / (p(z) m m) [] for other sides of B, and of their proposals."""
        now, side = (each.labels[self.steps] == self.other for each in (at, moved))
        log_ratio = self.target.log_prior(moved) - self.target.log_prior(at)
        log_ratio = log_ratio + self.log_evidence(side) - self.log_evidence(now)
        return log_ratio + self.sides.log_probability(log_odds, now) - self.sides.log_probability(log_odds, side)


def _split(at: Labelled, union: Union, generator: torch.Generator) -> Labelled:
    free = at.free()
    if not len(free):
        return at
    screen, test, which = uniforms((3,), generator)
    log_odds = union.launch()
    side = union.sides.draw(log_odds, generator)
    share = union.target.draw_share(side, generator)
    division = union.weigh(at, side, free, share)
    if torch.log1p(-screen) >= division.log_screen:
        return at
    division = union.refined(division)
    own = at.planes[union.own : union.own + 1]
    planes, log_gain = exchange(division.blocks[[3, 1, 2]], own, union.points, union.model, generator)
    log_ratio, places = union.log_ratio(division, at.planes[free], log_gain, log_odds)
    if torch.log1p(-test) >= log_ratio - division.log_screen:
        return at
    place = int(free[draw_categorical(places, which)])
    divided = union.target.divide(at, union.steps[side], union.own, place, share)
    return replace(divided, planes=_put(at.planes, [union.own, place], planes))


def _merge(at: Labelled, union: Union, generator: torch.Generator) -> Labelled:
    target, own, other = union.target, union.own, union.other
    screen, test = torch.log1p(-uniforms((2,), generator)).tolist()
    side = at.labels[union.steps] == other
    joined = target.join(at, own, other, generator)
    free = joined.free()
    division = union.weigh(joined, side, free, target.share(at, own, other))
    if screen >= -division.log_screen:
        return at
    division, log_odds, present = union.refined(division), union.launch(), at.planes[[own, other]]
    plane, log_gain = exchange(division.blocks[[1, 2, 3]], present, union.points, union.model, generator)
    freed = division.blocks[[0]].draw(1, generator).mT.to(plane)
    planes = _put(at.planes, [own, other], torch.cat([plane, freed]))
    log_ratio, _ = union.log_ratio(division, planes[free], -log_gain, log_odds)
    if test >= division.log_screen - log_ratio:
        return at
    return replace(joined, planes=planes)


def _redivide(at: Labelled, union: Union, generator: torch.Generator) -> Labelled:
    own, other = union.own, union.other
    screen, test = torch.log1p(-uniforms((2,), generator)).tolist()
    log_odds, now = union.launch(), at.labels[union.steps] == other
    side = union.sides.draw(log_odds, generator)
    if not all_sum((side != now).sum()):
        return at
    labels = at.labels.index_fill(0, union.steps, own).index_fill(0, union.steps[side], other)
    log_ratio = union.log_renewal(at, replace(at, labels=labels), log_odds)
    blocks = union.fit(~now, now, ~side, side)
    log_screen = (log_ratio + blocks.fit.bound[2:].sum() - blocks.fit.bound[:2].sum()) / 2
    if screen >= log_screen:
        return at
    blocks, present = blocks.refined(union.points, union.model), at.planes[[own, other]]
    planes, log_gain = exchange(blocks, present, union.points, union.model, generator)
    if test >= log_ratio + log_gain - log_screen:
        return at
    return replace(at, labels=labels, planes=_put(at.planes, [own, other], planes))


def _put(planes: Tensor, places: list[int], new: Tensor) -> Tensor:
    return planes.index_copy(0, torch.tensor(places, device=planes.device), new)


_REDIVIDED = 1 / 3  # share of the proposals
