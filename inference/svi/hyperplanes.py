"""Variational hyperplanes that see every point: a positive with weight r_nk, and a negative with weight 1 - r_nk.

    A_k = I / nu^2 + sum_n [r precision+ + (1 - r) precision-] a_n a_n^T
    m_k = A_k^-1 sum_n [r shift+ + (1 - r) shift-] a_n

over all points n and all T components; a point weighs component k by the difference of the two bounds of E log phi
(math/discriminative-clustering, section 6).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...models.losses.base import Loss, PseudoObservation
from ..classifiers.ridge import Ridge


class Sides(NamedTuple):
    """What both sides of T hyperplanes expect of N points."""

    positive: PseudoObservation  # [N, T, C]
    negative: PseudoObservation  # [N, T, C]
    gain: Tensor  # [N, T] bound of E log phi(+1 | f) less that of E log phi(-1 | f)
    rejection: Tensor  # [N, T] bound of E log phi(-1 | f)


def expect_sides(features: Tensor, classifiers: Ridge, loss: Loss) -> Sides:
    """Expected pseudo-observations and bounds of both sides, from features [N, P]."""
    mean, variance = classifiers.moments(features)
    one = torch.ones_like(mean)
    positive, accepted = loss.expect_with_bound(mean, variance, one)
    negative, rejected = loss.expect_with_bound(mean, variance, -one)
    rejection = rejected.sum(-1)
    return Sides(positive, negative, accepted.sum(-1) - rejection, rejection)


def blend(sides: Sides, responsibilities: Tensor) -> tuple[Tensor, Tensor]:
    """(precision, shift), each [N, T, C], averaged over the sides with weights r and 1 - r."""
    r = responsibilities.unsqueeze(-1)
    pairs = zip(sides.negative, sides.positive, strict=True)
    precision, shift = (negative + r * (positive - negative) for negative, positive in pairs)
    return precision, shift
