"""Random divisions of a block of points into two sides, given each point's log odds of the second side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ....models.distributions.sampling import uniforms
from ...distributed.collectives import all_sum, own_stream
from ...markov.paths import filter_states, sample_paths, smooth


@dataclass(frozen=True)
class Sides:
    """Points choose their sides independently."""

    def marginals(self, log_odds: Tensor) -> Tensor:
        """Probabilities [B, 2] of the two sides."""
        return torch.sigmoid(torch.stack([-log_odds, log_odds], 1))

    def draw(self, log_odds: Tensor, generator: torch.Generator) -> Tensor:
        """Which points [B] are on the second side."""
        return uniforms(tuple(log_odds.shape), own_stream(generator)) < torch.sigmoid(log_odds.double())

    def log_probability(self, log_odds: Tensor, side: Tensor) -> float:
        """log q of a division, side [B]."""
        return float(all_sum(logsigmoid(torch.where(side, log_odds, -log_odds).double()).sum()))


@dataclass(frozen=True)
class PersistentSides(Sides):
    """Steps of sequences tend to stay on one side: within a run of consecutive steps the sides are a Markov chain.

    Attributes
    ----------
    first : bool [B], True at the first step of each run
    """

    first: Tensor

    def marginals(self, log_odds: Tensor) -> Tensor:
        """Probabilities [B, 2] of the two sides, by forward and backward passes."""
        return smooth(*self._chain(log_odds)).marginals.to(log_odds)

    def draw(self, log_odds: Tensor, generator: torch.Generator) -> Tensor:
        """Which steps [B] are on the second side, drawn run by run."""
        levels = uniforms(tuple(log_odds.shape), own_stream(generator))
        return sample_paths(*self._chain(log_odds), levels).bool()

    def log_probability(self, log_odds: Tensor, side: Tensor) -> float:
        """log q of a division, side [B]."""
        _, log_normalizers = filter_states(*self._chain(log_odds))
        before = torch.cat([side[:1], side[:-1]])
        stays = torch.where(before == side, math.log(_STAY), math.log(1 - _STAY)).double()
        moves = torch.where(self.first, math.log(0.5), stays)
        emissions = _emissions(log_odds).gather(1, side.long().unsqueeze(1))
        return float(all_sum(moves.sum() + emissions.sum() - log_normalizers.sum()))

    def _chain(self, log_odds: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        table = log_odds.new_tensor([[_STAY, 1 - _STAY], [1 - _STAY, _STAY]], dtype=torch.float64).log()
        ends = [*torch.nonzero(self.first).squeeze(1).tolist(), len(self.first)]
        lengths = [end - start for start, end in pairwise(ends)]
        return table.new_full((2,), math.log(0.5)), table, _emissions(log_odds), lengths


def _emissions(log_odds: Tensor) -> Tensor:
    return logsigmoid(torch.stack([-log_odds, log_odds], 1).double())


_STAY = 0.9  # probability that the next step is on the same side
