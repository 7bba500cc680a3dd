"""Proposals for the classifiers of blocks of points, and their importance weights.

    ghat_S(eta) = N(eta; 0, nu^2 I) prod_{n in S} phi(y_n | eta^T a_n)                    own classifiers
    ghat_S(eta) = N(eta; 0, nu^2 I) prod_{n in S} phi(+1 | eta^T a_n) prod_{n not in S} phi(-1 | eta^T a_n)    repelling

is the density of a block's classifiers up to its unknown integral g(S). q(. | S) is the Gaussian of least KL to it, a
function of S and the data alone. Classifiers are chosen among R candidates from q with probability proportional to
ghat_S / q; the mean w(S) of these ratios replaces g(S). For a block that a move dissolves, the first of the R
candidates are the present classifiers. The other candidates are auxiliary variables, so that odds with w in place of g
are exact for every R (docs/derivations/repelling, "Split-merge moves").
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from ....models.distributions.sampling import draw_categorical, uniforms
from ....models.scores import scores
from ....models.sums import row_chunks
from ...classifiers.ridge import Laws
from ...classifiers.scored import RepellingHyperplanes, Scored, log_prior
from ...distributed.collectives import all_sum
from .block_fits import BlockFits, improve, laws_of, least_bound, start_fits


class BlockClassifiers:
    """q(. | S) for K blocks S of N points.

    Attributes
    ----------
    members : bool [N, K], of the rows that the classifiers see
    fit : rough at first, with a bound [K] below log g(S); close to it once `refined`
    """

    def __init__(self, members: Tensor, scored: Scored | RepellingHyperplanes, fit: BlockFits | None = None) -> None:
        self.members, self.scored = members, scored
        if fit is not None:
            self.fit = fit

    @cached_property
    def fit(self) -> BlockFits:
        """The fits of the K blocks after a few steps."""
        return improve(start_fits(self.members, self.scored), self.members, self.scored, self.scored.num_rough)

    def __getitem__(self, blocks: list[int]) -> BlockClassifiers:
        """Some of the blocks, in this order."""
        return BlockClassifiers(self.members[:, blocks], self.scored, self.fit[blocks])

    def screening(self) -> Tensor:
        """Approximate log g(S) [K] for the screening of proposals, by the bounds of rough fits (without fits: 0)."""
        return self.fit.bound if self.scored.num_rough else self.members.new_zeros(self.members.shape[1]).double()

    def reach(self) -> float:
        """The largest difference between `screening` of two blocks and of two others.

        Every bound lies between that of the start of a fit and 0.
        """
        return -2 * least_bound(self.scored) if self.scored.num_rough else 0.0

    def refined(self) -> BlockClassifiers:
        """The blocks after more steps of the fits."""
        return BlockClassifiers(self.members, self.scored, improve(self.fit, self.members, self.scored, _NUM_FINE))

    @cached_property
    def laws(self) -> Laws:
        """q(. | S) of each block."""
        return laws_of(self.fit.natural, self.scored)

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        """R sets of classifiers of each block, [K, R, P, C] float64."""
        return self.laws.draws(number, generator)

    def log_ratio(self, weights: Tensor) -> Tensor:
        """log of ghat_S / q(. | S) [K, R] float64 at R sets of classifiers of each block, [K, R, P, C]."""
        return log_unnormalized(weights, self.members, self.scored) - self.laws.log_density(weights.double())


def log_unnormalized(weights: Tensor, members: Tensor, scored: Scored | RepellingHyperplanes) -> Tensor:
    """log ghat_S [K, R] float64 at R sets of classifiers [K, R, P, C] of each block; members bool [N, K]."""
    K, R, P, C = weights.shape
    total = weights.new_zeros(R, K, dtype=torch.float64)
    for rows in row_chunks(scored.features, K * R * C):
        found = scores(scored.features[rows], weights.reshape(K * R, P, C)).double().unflatten(1, (K, R))
        total += scored.factors(found.permute(2, 0, 1, 3), members[rows], rows).sum((1, 3))
    return all_sum(total).T + log_prior(weights, scored.weight_scale)


def exchange(blocks: BlockClassifiers, present: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
    """Draw classifiers [K - L, P, C] of the last blocks, which replace those `present` [L, P, C] of the first L blocks.

    Also returns the log of the product of w over the last blocks divided by that over the first.
    """
    num_left = len(present)
    candidates = blocks.draw(_NUM_CANDIDATES, generator).to(present)
    candidates[:num_left, 0] = present
    ratios = blocks.log_ratio(candidates)
    log_weights = ratios.logsumexp(1)
    chosen = draw_categorical(ratios[num_left:], uniforms((len(ratios) - num_left,), generator))
    weights = candidates[num_left:][torch.arange(len(chosen), device=chosen.device), chosen]
    log_gain = log_weights[num_left:].sum() - log_weights[:num_left].sum()
    log_gain -= (len(ratios) - 2 * num_left) * math.log(_NUM_CANDIDATES)
    return weights, float(log_gain)


_NUM_FINE = 8  # steps of the fits
_NUM_CANDIDATES = 8  # R
