"""Proposals for the hyperplanes of blocks of points where components repel, and what they weigh.

    ghat_S(eta) = N(eta; 0, nu^2 I) prod_{n in S} phi(+1 | eta^T a_n) prod_{n not in S} phi(-1 | eta^T a_n)

is the law of a block's hyperplane up to its integral g(S), which nobody knows. q(. | S) is the Gaussian of least KL to
it, a function of S and the data alone. A hyperplane is chosen among R candidates of q with probability prop. to
ghat_S / q, whose mean w(S) then stands for g(S). Where a move leaves S, the present hyperplane is the first of the R:
the others are auxiliary variables, and odds that weigh the blocks by w are exact for every R
(math/discriminative-clustering, section 15).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ....models.base import Model
from ....models.data import Data
from ....models.distributions.sampling import draw_categorical, normals, uniforms
from ....models.scores import scores
from ....models.sums import row_chunks
from ...classifiers.scored import log_prior
from ...distributed.collectives import all_sum
from .block_fits import BlockFits, improve, start_fits


@dataclass(frozen=True)
class BlockHyperplanes:
    """q(. | S) for K blocks S of N points."""

    members: Tensor  # bool [N, K]
    fit: BlockFits  # its bound [K] is below log g(S), and near it once refined

    def __getitem__(self, blocks: list[int]) -> BlockHyperplanes:
        """Some of the blocks, in this order."""
        return BlockHyperplanes(self.members[:, blocks], self.fit[blocks])

    def refined(self, data: Data, model: Model) -> BlockHyperplanes:
        """After more steps of the fits."""
        return replace(self, fit=improve(self.fit, self.members, data, model, _NUM_FINE))

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        """R hyperplanes of each block, [K, R, P] float64."""
        mean, tril = self.fit.gaussian
        noise = normals((*mean.shape, number), generator, tril)
        return mean.unsqueeze(1) + torch.linalg.solve_triangular(tril.mT, noise, upper=True).mT

    def log_ratio(self, planes: Tensor, data: Data, model: Model) -> Tensor:
        """log of ghat_S / q(. | S) [K, R] float64 at R hyperplanes of each block, [K, R, P]."""
        return log_unnormalized(planes, self.members, data, model) - self._log_density(planes)

    def _log_density(self, planes: Tensor) -> Tensor:
        mean, tril = self.fit.gaussian
        gap = planes.double() - mean.unsqueeze(1)
        log_det = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        return log_det - ((gap @ tril).square().sum(-1) + planes.shape[2] * math.log(2 * math.pi)) / 2


def fit_blocks(members: Tensor, data: Data, model: Model) -> BlockHyperplanes:
    """Rough fits, from the points of each block, bool [N, K]: their bounds do for most moves."""
    return BlockHyperplanes(members, improve(start_fits(members, data, model), members, data, model, _NUM_ROUGH))


def log_unnormalized(planes: Tensor, members: Tensor, data: Data, model: Model) -> Tensor:
    """log ghat_S [K, R] float64 of R hyperplanes for each of the blocks, bool [N, K]; planes [K, R, P]."""
    K, R, P = planes.shape
    total = planes.new_zeros(K, R, dtype=torch.float64)
    for rows in row_chunks(data.features, K * R):
        found = scores(data.features[rows], planes.reshape(K * R, P, 1)).double().view(-1, K, R)
        total += model.loss.log_factor(found, 2.0 * members[rows].unsqueeze(2) - 1).sum(0)
    return all_sum(total) + log_prior(planes.unsqueeze(-1), model.weight_scale)


def exchange(
    blocks: BlockHyperplanes, present: Tensor, data: Data, model: Model, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Hyperplanes [K - L, P, 1] of the last blocks in place of those present [L, P, 1] of the first L; and the log of
    the product of w over the last, divided by that over the first."""
    num_left = len(present)
    candidates = blocks.draw(_NUM_CANDIDATES, generator).to(present)
    candidates[:num_left, 0] = present.squeeze(-1)
    ratios = blocks.log_ratio(candidates, data, model)
    log_weights = ratios.logsumexp(1)
    chosen = draw_categorical(ratios[num_left:], uniforms((len(ratios) - num_left,), generator))
    planes = candidates[num_left:][torch.arange(len(chosen), device=chosen.device), chosen]
    log_gain = log_weights[num_left:].sum() - log_weights[:num_left].sum()
    log_gain -= (len(ratios) - 2 * num_left) * math.log(_NUM_CANDIDATES)
    return planes.unsqueeze(-1), float(log_gain)


_NUM_ROUGH, _NUM_FINE = 3, 8  # steps of the fits
_NUM_CANDIDATES = 8  # R
