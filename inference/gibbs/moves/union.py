"""The union of the blocks of two points, its launch, and the terms of the acceptance odds (`split_merge`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic

import torch
from torch import Tensor

from ....models import scores as linear
from ...classifiers.scored import classifiers_of
from ...distributed.collectives import all_sum
from ...distributed.picked import own_of, taken
from ..allocations import Allocation, D, M, S
from .block_classifiers import BlockClassifiers
from .block_fits import means_of, start_fits


@dataclass(frozen=True)
class Division:
    """A division of B into two sides, compared with B as one block."""

    side: Tensor  # [B] bool
    blocks: BlockClassifiers  # the empty block, the two sides, and B
    log_places: Tensor  # [A], m(B_1) m(B_2) / m(B) * p(z'_a) / p(z) for each free place a
    log_screen: float  # log s

    def refined(self) -> Division:
        """This division with more steps of the fits."""
        return replace(self, blocks=self.blocks.refined())


class Union(Generic[S, D, M]):
    """The union B of the blocks of two points in an open state; `side` bool [B] marks the second side."""

    def __init__(
        self,
        at: S,
        z: Allocation[S, D, M],
        model: M,
        pair: Tensor,
        *,
        with_margin: bool,
        persistent: bool = False,
    ) -> None:
        self.z, self.model, self.with_margin = z, model, with_margin
        self.own, self.other = taken(at.assignments[z.steps], pair).tolist()
        self.steps = torch.nonzero((at.assignments == self.own) | (at.assignments == self.other)).squeeze(1)
        rows = z.rows[self.steps]
        self.seen = torch.nonzero(rows >= 0).squeeze(1)
        self.rows, self.sides = rows[self.seen], z.sides(self.steps, persistent=persistent)
        self.block = z.points.rows(self.rows)
        # which points of the pair are on this rank, and their positions in the block
        self.ends = torch.cat([torch.full_like(own_of(end, len(z.steps)), k) for k, end in enumerate(pair.split(1))])
        self.pair = torch.searchsorted(self.rows, own_of(pair, len(z.steps)))
        self.scored = classifiers_of(model, z.points, z.data.observed(at.assignments), len(at.weights))
        self.scored = self.scored.within(self.rows)

    def launch(self) -> Tensor:
        """The launch: log odds [B] of the second side, 0 for steps without an x, -inf and +inf at the pair."""
        natural = None
        shares = self.block.features.new_zeros(self.block.num_data, 2)
        shares[self.pair, self.ends] = 1
        for _ in range(NUM_ROUNDS):
            odds = self._family_odds(shares)
            if self.with_margin and self.block.targets.shape[1]:
                natural = start_fits(self.scored.spread(shares, self.rows), self.scored, natural).onward()
                scores = linear.scores(self.block.features, means_of(natural, self.scored).to(self.block.features))
                margin = self.model.log_margin(scores, self.block.targets.unsqueeze(1))
                odds = odds + margin[:, 1] - margin[:, 0]
            log_odds = odds.new_zeros(len(self.steps)).index_copy(0, self.seen, odds)
            shares = self.sides.marginals(log_odds)[self.seen]
        return log_odds

    def _family_odds(self, shares: Tensor) -> Tensor:
        """Log odds [B] of the second of two soft sides [B, 2], by likelihood and sizes; -inf at i, +inf at j."""
        family = self.model.likelihood
        chi = family.prior() + family.weighted_statistics(self.block.X, shares)
        expected = family.expected_log_density(self.block.X, chi) + all_sum(shares.sum(0)).log()
        log_odds = expected[:, 1] - expected[:, 0]
        log_odds[self.pair] = log_odds.new_tensor([-torch.inf, torch.inf])[self.ends]
        return log_odds

    def log_evidence(self, side: Tensor) -> Tensor:
        """log of m(B_1) m(B_2) / m(B), []."""
        family = self.model.likelihood
        sums = family.summed_statistics(self.block.X, side[self.seen].long(), 2).double()
        parts = family.log_marginal(family.prior().double() + torch.cat([sums, sums.sum(0, keepdim=True)]))
        return parts[0] + parts[1] - parts[2]

    def blocks(self, *which: Tensor) -> BlockClassifiers:
        """q(. | S) for sets S of steps of B, each bool [B]."""
        members = torch.stack(which, 1)[self.seen]
        return BlockClassifiers(self.scored.spread(members, self.rows), self.scored)

    def weigh(
        self, joined: S, side: Tensor, free: Tensor, share: float, limits: tuple[float, float] = (-math.inf, math.inf)
    ) -> Division:
        """The terms of a division whose second side takes one of the places `free`.

        Nothing is fitted if bounds show that log s is at most the lower limit or at least the upper one; `log_screen`
        is then that bound.
        """
        blocks = self.blocks(side & ~side, ~side, side, side | ~side)
        some = free[:1] if self.z.law.alike else free
        log_places = self.z.log_divisions(joined, side, self.steps, self.own, some, share)
        log_places = log_places.expand(len(free)) + self.log_evidence(side)
        places, reach = float(log_places.logsumexp(0)), blocks.reach()
        most, least = (places + reach) / 2, (places - reach) / 2
        if most <= limits[0] or least >= limits[1]:
            return Division(side, blocks, log_places, most if most <= limits[0] else least)
        nobody, first, second, whole = blocks.screening()
        return Division(side, blocks, log_places, (places + float(first + second - whole - nobody)) / 2)

    def log_ratio(
        self, division: Division, weights: Tensor, log_gain: float, log_odds: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log odds [] of a split, and the log weights [A] of the free places, which hold classifiers [A, P, C].

        `log_gain` is the log of w(B_1) w(B_2) / w(B); `log_odds` [B] are those of the launch.
        """
        places = division.log_places - division.blocks[[0]].log_ratio(weights.unsqueeze(0))[0]
        return places.logsumexp(0) + log_gain - self.sides.log_probability(log_odds, division.side), places

    def log_renewal(self, at: S, moved: S, log_odds: Tensor) -> Tensor:
        """Log odds [] of a redivision without w: ratios of p(z), of the marginals, and of the proposals."""
        now, side = (each.assignments[self.steps] == self.other for each in (at, moved))
        log_ratio = self.z.log_density(moved) - self.z.log_density(at)
        log_ratio = log_ratio + self.log_evidence(side) - self.log_evidence(now)
        return log_ratio + self.sides.log_probability(log_odds, now) - self.sides.log_probability(log_odds, side)


NUM_ROUNDS = 4
