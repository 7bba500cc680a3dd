"""Gaussians near the laws of hyperplanes that tell blocks of points from all others.

The one of least KL to N(eta; 0, nu^2 I) prod_n phi(y_n | eta^T a_n) is a fixed point (Opper & Archambeau 2009) of

    A <- I / nu^2 + sum_n r_n a_n a_n^T,   A m <- sum_n (s_n + r_n E f_n) a_n,   s_n = E phi', r_n = -E phi'' of log phi

under the present Gaussian of the scores f. A step goes part of the way there in these coordinates; one that lowers the
bound E log phi - KL(N || prior) is tried again at a quarter. It starts at a half, and grows to three quarters (whole
ones overshoot the kink of a hinge). Expectations are by quadrature, so for any loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np
import torch
from torch import Tensor

from ....models.base import Model
from ....models.data import Data
from ....models.linalg import safe_cholesky
from ....models.losses import Loss
from ....models.sums import row_chunks
from ...distributed.collectives import all_sum


@dataclass(frozen=True)
class BlockFits:
    """Gaussians N(mean_k, A_k^-1) of the hyperplanes of K blocks, all in double precision."""

    natural: Tensor  # [K, P^2 + P] A and A m
    goal: Tensor  # the same of where the next step goes
    bound: Tensor  # [K] E log of the factors - KL(N || prior)

    def __getitem__(self, blocks: list[int]) -> BlockFits:
        """Some of the blocks, in this order."""
        return BlockFits(self.natural[blocks], self.goal[blocks], self.bound[blocks])

    @cached_property
    def gaussian(self) -> tuple[Tensor, Tensor]:
        """Means [K, P] and Cholesky factors [K, P, P] of A."""
        return _gaussian(self.natural)

    def onward(self) -> Tensor:
        """A and A m [K, P^2 + P] half of the way to the goal, whether better or not."""
        return torch.lerp(self.natural, self.goal, 0.5)


def mean_scores(natural: Tensor, features: Tensor) -> Tensor:
    """Scores [N, K] of features [N, P] under the means of Gaussians [K, P^2 + P]."""
    return features @ _gaussian(natural)[0].T.to(features)


def start_fits(shares: Tensor, data: Data, model: Model, natural: Tensor | None = None) -> BlockFits:
    """Fits that were not improved yet, from the prior or from the Gaussians `natural` of others.

    `shares` [N, K] are the points of the blocks, bool, or soft: a point is one of the others' to the power 1 - share.
    """
    if natural is None:
        P = data.features.shape[1]
        natural = data.features.new_zeros(shares.shape[1], P * P + P, dtype=torch.float64)
        natural[:, : P * P : P + 1] = model.weight_scale**-2
    return BlockFits(natural, *_evaluate(natural, shares, data, model))


def improve(fits: BlockFits, shares: Tensor, data: Data, model: Model, num_steps: int) -> BlockFits:
    """Some steps for the blocks [N, K] that the fits were started with."""
    natural, goal, bound = fits.natural, fits.goal, fits.bound
    step = torch.full_like(bound, 0.5).unsqueeze(1)
    for _ in range(num_steps):
        trial = torch.lerp(natural, goal, step)
        trial_goal, trial_bound = _evaluate(trial, shares, data, model)
        better = trial_bound > bound
        bound, better = torch.where(better, trial_bound, bound), better.unsqueeze(1)
        natural, goal = torch.where(better, trial, natural), torch.where(better, trial_goal, goal)
        step = torch.where(better, (1.5 * step).clamp(max=0.75), step / 4)
    return BlockFits(natural, goal, bound)


def _evaluate(natural: Tensor, shares: Tensor, data: Data, model: Model) -> tuple[Tensor, Tensor]:
    """The goal [K, P^2 + P] of Gaussians, and their bounds [K]."""
    mean, tril = _gaussian(natural)
    covariance, features = torch.cholesky_inverse(tril), data.features
    K, P = mean.shape
    total = natural.new_zeros(K, P * P + P + 1)
    for rows in row_chunks(features, max(P * P, NUM_NODES * K)):
        own = features[rows]
        squares = (own.unsqueeze(2) * own.unsqueeze(1)).flatten(1)
        center = own @ mean.T.to(own)
        scale = (squares @ covariance.flatten(1).T.to(own)).clamp(min=LEAST_SCALE**2).sqrt()
        log_factor = partial(_log_factor, shares=shares[rows], loss=model.loss)
        value, slope, curvature = smoothed(center, scale, log_factor)
        toward = (-curvature).clamp(min=0)
        sums = toward.T @ squares, (slope + toward * center).T @ own, value.sum(0, dtype=torch.float64).unsqueeze(1)
        total += torch.cat(sums, 1)
    total = all_sum(total)
    total[:, : P * P : P + 1] += model.weight_scale**-2
    square = mean.square().sum(1) + covariance.diagonal(dim1=1, dim2=2).sum(1)
    log_det = tril.diagonal(dim1=1, dim2=2).log().sum(1)
    kl = square / (2 * model.weight_scale**2) + log_det + P * (math.log(model.weight_scale) - 0.5)
    return total[:, :-1], total[:, -1] - kl


def smoothed(center: Tensor, scale: Tensor, log_factor: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """E log phi, E phi' and E phi'' [...] of log phi for scores N(center, scale^2), from log phi of scores [G, ...].

    phi' = E[e log phi] / scale, phi'' = E[(e^2 - 1) log phi] / scale^2 with e the standardized score.
    """
    nodes, moments = _normal_quadrature(center.dtype, center.device)
    values = log_factor(torch.addcmul(center, nodes.view(-1, *[1] * center.dim()), scale))
    value, slope, curvature = (moments @ values.flatten(1)).unflatten(1, values.shape[1:])
    return value, slope / scale, curvature / scale.square()


def _log_factor(scores: Tensor, shares: Tensor, loss: Loss) -> Tensor:
    """log phi [G, N, K] of the sides that rows have in blocks by their shares [N, K]."""
    if shares.dtype == torch.bool:
        return loss.log_factor(scores, 2 * shares.to(scores) - 1)
    other, own = (loss.log_factor(scores, scores.new_tensor(side)) for side in (-1.0, 1.0))
    return torch.lerp(other, own, shares)


def _gaussian(natural: Tensor) -> tuple[Tensor, Tensor]:
    P = (math.isqrt(1 + 4 * natural.shape[1]) - 1) // 2
    tril = safe_cholesky(natural[:, : P * P].unflatten(1, (P, P)))
    return torch.cholesky_solve(natural[:, P * P :].unsqueeze(2), tril).squeeze(2), tril


@cache
def _normal_quadrature(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes [G] of a standard normal, and masses [3, G] for mean, slope and curvature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NUM_NODES)
    moments = weights / weights.sum() * np.stack([np.ones_like(nodes), nodes, nodes**2 - 1])
    places, masses = (torch.tensor(array, dtype=dtype, device=device) for array in (nodes, moments))
    return places, masses


NUM_NODES = 16
LEAST_SCALE = 1e-2  # below it differences of log phi are rounding
