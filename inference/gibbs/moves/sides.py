"""How the points of a block are put on two sides, given the log odds of the second side for each of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ....models.distributions.sampling import uniforms
from ...distributed.collectives import all_sum, own_stream


@dataclass(frozen=True)
class Sides:
    """Each point by itself."""

    def marginals(self, log_odds: Tensor) -> Tensor:
        """Probabilities [B, 2] of the two sides."""
        return torch.sigmoid(torch.stack([-log_odds, log_odds], 1))

    def draw(self, log_odds: Tensor, generator: torch.Generator) -> Tensor:
        """Which points [B] are on the second side."""
        return uniforms(tuple(log_odds.shape), own_stream(generator)) < torch.sigmoid(log_odds.double())

    def log_probability(self, log_odds: Tensor, side: Tensor) -> float:
        """log q of the sides [B]."""
        return float(all_sum(logsigmoid(torch.where(side, log_odds, -log_odds).double()).sum()))
