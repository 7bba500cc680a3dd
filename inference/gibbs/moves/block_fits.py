"""Gaussian fits to the posteriors of the classifiers of blocks of points.

The Gaussian of least KL to N(eta; 0, nu^2 I) prod_n phi_n(eta^T a_n) is a fixed point (Opper & Archambeau 2009) of

    A <- I / nu^2 + sum_n r_n a_n a_n^T,   A m <- sum_n (s_n + r_n E f_n) a_n,   s_n = E phi', r_n = -E phi'' of log phi

where the expectations are under the present Gaussian of the scores f and phi_n are the factors of the rows
(`Scored.factors`). A step goes part of the way to the right-hand sides, in these coordinates. A step that lowers the
bound E log phi - KL(N || prior) is retried with a quarter of its length. Lengths start at 1/2 and grow to 3/4, since
full steps overshoot at the kink of a hinge. Expectations are computed by quadrature, for any loss. Classifiers of
several scores have a Gaussian each; where scores meet in one factor, its expectation varies one score at a time, with
the others at their means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....models.losses import Loss
from ....models.sums import row_chunks
from ...classifiers.ridge import Laws
from ...classifiers.scored import RepellingHyperplanes, Scored
from ...distributed.collectives import all_sum


@dataclass(frozen=True)
class BlockFits:
    """Gaussians N(mean_kc, A_kc^-1) of the classifiers of K blocks: the terms of each row in A and A m, float64."""

    natural: Tensor  # [K, 2, C, N], r_n and s_n + r_n E f_n
    goal: Tensor  # [K, 2, C, N], where a full step would lead
    bound: Tensor  # [K], E log of the factors - KL(N || prior)

    def __getitem__(self, blocks: list[int]) -> BlockFits:
        """The fits of some of the blocks, in this order."""
        return BlockFits(self.natural[blocks], self.goal[blocks], self.bound[blocks])

    def onward(self) -> Tensor:
        """The point half of the way from `natural` to `goal` [K, 2, C, N], whatever its bound."""
        return torch.lerp(self.natural, self.goal, 0.5)


def laws_of(natural: Tensor, scored: Scored | RepellingHyperplanes) -> Laws:
    """The Gaussians with the row terms natural [K, 2, C, N]."""
    precision, shift = natural.permute(1, 3, 0, 2)
    return Laws.of_rows(scored.features.double(), precision, shift, scored.weight_scale)


def means_of(natural: Tensor, scored: Scored | RepellingHyperplanes) -> Tensor:
    """The means [K, P, C] of the Gaussians with the row terms natural [K, 2, C, N]."""
    if scored.compiled is None:
        return laws_of(natural, scored).mean
    from ...classifiers import _numba_hyperplanes
    from ...compiled.decorators import entry_of

    rows, means = scored.compiled, natural.new_zeros(len(natural), scored.features.shape[1])
    room = _numba_hyperplanes.Room.of(rows)
    entry_of(_numba_hyperplanes.draw, rows.loss)(rows, natural.squeeze(2).numpy(), means.numpy(), room)
    return means.unsqueeze(2)


def start_fits(shares: Tensor, scored: Scored | RepellingHyperplanes, natural: Tensor | None = None) -> BlockFits:
    """Fits before the first step, at the prior or at the given row terms `natural`.

    shares [N, K] are the responsibilities of the blocks for the rows that their classifiers see, bool or in 0..1.
    """
    if natural is None:
        shape = shares.shape[1], 2, scored.num_scores, len(shares)
        natural = scored.features.new_zeros(shape, dtype=torch.float64)
    return BlockFits(natural, *_evaluate(natural, shares, scored))


def least_bound(scored: Scored | RepellingHyperplanes) -> float:
    """The bound at the prior, where fits of any block start: equal for all blocks, since scores are symmetric."""
    scale = (scored.weight_scale * scored.features.double().norm(dim=1, keepdim=True)).clamp(min=LEAST_SCALE)
    one = scale.new_ones(1)
    value, *_ = smoothed(torch.zeros_like(scale), scale, lambda scores: scored.loss.log_factor(scores, one))
    return float(all_sum(value.sum()))


def improve(fits: BlockFits, shares: Tensor, scored: Scored | RepellingHyperplanes, num_steps: int) -> BlockFits:
    """Take steps for the fits of blocks with shares [N, K]."""
    if scored.compiled is not None:
        fits = BlockFits(fits.natural.clone(), fits.goal.clone(), fits.bound.clone())
        return _improve_compiled(fits, shares, scored.compiled, num_steps)
    natural, goal, bound = fits.natural, fits.goal, fits.bound
    step = torch.full_like(bound, 0.5)
    for _ in range(num_steps):
        trial = torch.lerp(natural, goal, step.view(-1, 1, 1, 1))
        trial_goal, trial_bound = _evaluate(trial, shares, scored)
        better = trial_bound > bound
        bound, step = (
            torch.where(better, trial_bound, bound),
            torch.where(better, (1.5 * step).clamp(max=0.75), step / 4),
        )
        better = better.view(-1, 1, 1, 1)
        natural, goal = torch.where(better, trial, natural), torch.where(better, trial_goal, goal)
    return BlockFits(natural, goal, bound)


def _improve_compiled(fits: BlockFits, shares: Tensor, rows: Any, num_steps: int) -> BlockFits:
    """Take steps for fits of blocks [N, K], in place; with `num_steps` 0, compute goal and bound from `natural`."""
    from ...classifiers import _numba_hyperplanes  # compiles or loads machine code: only where it is needed
    from ...compiled.decorators import entry_of

    nodes, masses = _normal_quadrature(fits.bound.dtype, fits.bound.device)
    quadrature = _numba_hyperplanes.Quadrature(nodes.numpy(), masses.numpy(), LEAST_SCALE)
    natural, goal = fits.natural.squeeze(2), fits.goal.squeeze(2)
    arrays = shares.T.double().contiguous(), natural, goal, fits.bound, *natural.new_empty(2, *natural.shape)
    given = *(array.numpy() for array in arrays), _numba_hyperplanes.Room.of(rows), num_steps
    entry_of(_numba_hyperplanes.improve, rows.loss)(rows, quadrature, *given)
    return fits


def _evaluate(natural: Tensor, shares: Tensor, scored: Scored | RepellingHyperplanes) -> tuple[Tensor, Tensor]:
    """The goal [K, 2, C, N] of each Gaussian, and its bound [K]."""
    goal, bound = torch.zeros_like(natural), natural.new_zeros(len(natural))
    if scored.compiled is not None:
        _improve_compiled(BlockFits(natural, goal, bound), shares, scored.compiled, 0)
        return goal, bound
    laws = laws_of(natural, scored)
    mean, variance = laws.moments(scored.features.double())
    for rows in row_chunks(scored.features, NUM_NODES * mean.shape[1:].numel()):
        center, scale = mean[rows], variance[rows].clamp(min=LEAST_SCALE**2).sqrt().expand_as(mean[rows])
        factors = partial(scored.factors, shares=shares[rows], rows=rows)
        value, slope, curvature = _expected(center, scale, factors, scored.loss)
        toward = (-curvature).clamp(min=0)
        if variance.shape[2] < center.shape[2]:  # one covariance for all scores
            toward = toward.mean(2, keepdim=True).expand_as(center)
        goal[..., rows] = torch.stack([toward, slope + toward * center]).permute(2, 0, 3, 1)
        bound += value.sum(0, dtype=torch.float64)
    return goal, all_sum(bound) - laws.kl(scored.weight_scale)


def _expected(
    center: Tensor, scale: Tensor, factors: Callable[[Tensor], Tensor], loss: Loss
) -> tuple[Tensor, Tensor, Tensor]:
    """E log phi [n, K], E phi' and E phi'' [n, K, C] of log phi, for scores N(center, scale^2)."""
    value, slope, curvature = center.new_zeros(center.shape[:2]), torch.empty_like(center), torch.empty_like(center)
    blocks = loss.blocks(center.shape[2])
    for columns in blocks:

        def moved(scores: Tensor, columns: slice = columns) -> Tensor:
            every = center.expand(len(scores), *center.shape).clone()
            every[..., columns] = scores
            return factors(every)

        found = smoothed(center[..., columns], scale[..., columns], moved if len(blocks) > 1 else factors)
        value += found[0].sum(-1) / len(blocks)
        slope[..., columns], curvature[..., columns] = found[1:]
    return value, slope, curvature


def smoothed(center: Tensor, scale: Tensor, log_factor: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """E log phi, E phi' and E phi'' [...] of log phi, for scores N(center, scale^2), from values at scores [G, ...].

    phi' = E[e log phi] / scale and phi'' = E[(e^2 - 1) log phi] / scale^2, where e is the standardized score.
    """
    nodes, moments = _normal_quadrature(center.dtype, center.device)
    values = log_factor(torch.addcmul(center, nodes.view(-1, *[1] * center.dim()), scale))
    value, slope, curvature = (moments @ values.flatten(1)).unflatten(1, values.shape[1:])
    return value, slope / scale, curvature / scale.square()


@cache
def _normal_quadrature(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes [G] of a standard normal, and weights [3, G] for mean, slope and curvature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NUM_NODES)
    moments = weights / weights.sum() * np.stack([np.ones_like(nodes), nodes, nodes**2 - 1])
    places, masses = (torch.tensor(array, dtype=dtype, device=device) for array in (nodes, moments))
    return places, masses


NUM_NODES = 16
LEAST_SCALE = 1e-2  # below it, differences of log phi are lost in rounding
