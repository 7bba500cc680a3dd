"""Rows of independent bits that Pyro can enumerate jointly; its own Bernoulli rows allow one bit only."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

MOST_BITS = 16
"""The most bits of a row that is enumerated: a program is summed over the 2^K values of each row."""


def all_rows(num_bits: int, like: Tensor) -> Tensor:
    """All rows [2^K, K] of K bits, in the dtype and on the device of `like` [...].

    >>> all_rows(2, torch.zeros(1)).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    """
    places = torch.arange(num_bits, device=like.device)
    return (torch.arange(2**num_bits, device=like.device).unsqueeze(1) >> places & 1).to(like)


class Bits(dist.Independent):
    """Rows [..., K] of bits, z_k ~ Bernoulli(probabilities [..., K]): one site of 2^K values."""

    has_enumerate_support = True

    def __init__(self, probabilities: Tensor) -> None:
        super().__init__(dist.Bernoulli(probabilities), 1)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> Bits:
        return Bits(self.base_dist.probs.expand(*batch_shape, *self.event_shape))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All rows [2^K, 1, ..., K], or expanded to the batch [2^K, ..., K]; ValueError if there are too many."""
        (num_bits,), ones = self.event_shape, (1,) * len(self.batch_shape)
        if num_bits > MOST_BITS:
            raise ValueError(
                f"A row has {num_bits} bits; at most {MOST_BITS} are enumerated. Use a model with "
                f"truncation={MOST_BITS} or less."
            )
        rows = all_rows(num_bits, self.base_dist.probs).view(-1, *ones, num_bits)
        return rows.expand(-1, *self.batch_shape, -1) if expand else rows
