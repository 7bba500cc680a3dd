"""The launch of a split-merge proposal: rounds of soft reassignment from two points, and Gaussians for classifiers.

It is a function of the block of points and the pair alone, not of how the block is divided now (`split_merge`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ....models.base import Model
from ....models.data import Data
from ....models.mixture import Mixture
from ....models.scores import scores
from ....models.sums import row_chunks
from ...classifiers.ridge import Ridge, soft_natural
from ...distributed.collectives import all_sum
from .block_fits import LEAST_SCALE, NUM_NODES, smoothed


@dataclass(frozen=True)
class Launch:
    """What the proposals for a block of B points are drawn from; its order of sides is that of the pair."""

    log_density: Tensor  # [B] log odds of the second side from the family alone; -inf at i, +inf at j
    sides: Ridge  # q_1, q_2
    whole: Ridge  # q

    def log_odds(self, block: Data, weights: Tensor, model: Mixture) -> Tensor:
        """Log odds [B] of the second side given the classifiers [2 or more, P, C] of the sides."""
        margin = log_margins(block, weights[:2], model)
        return self.log_density + margin[:, 1] - margin[:, 0]


def launch(block: Data, pair: Tensor, model: Mixture) -> Launch:
    """Rounds of soft reassignment from the pair of rows [2] of the block."""
    sides, responsibilities = None, seeds(block, pair)
    for step in range(NUM_ROUNDS + 1):
        last = step == NUM_ROUNDS
        log_density = family_odds(block, responsibilities, pair, model)
        sides = fit_classifiers(block, responsibilities, model, sides, num_steps=_NUM_STEPS // 2 if last else 1)
        if not last:
            margin = log_margins(block, sides.weights.mean, model)
            odds = log_density + margin[:, 1] - margin[:, 0]
            responsibilities = torch.sigmoid(torch.stack([-odds, odds], 1))
    assert sides is not None  # there is at least one round
    whole = fit_classifiers(block, torch.ones_like(responsibilities[:, :1]), model, num_steps=_NUM_STEPS)
    return Launch(log_density, sides.weights, whole.weights)


def seeds(block: Data, pair: Tensor) -> Tensor:
    """Responsibilities [B, 2] of two sides that start from one row each."""
    responsibilities = block.features.new_zeros(block.num_data, 2)
    responsibilities[pair, [0, 1]] = 1
    return responsibilities


def family_odds(block: Data, responsibilities: Tensor, pair: Tensor, model: Model) -> Tensor:
    """Log odds [B] of the second of two soft sides [B, 2] from the family and their sizes; -inf at i, +inf at j."""
    chi = model.likelihood.prior() + model.likelihood.weighted_statistics(block.X, responsibilities)
    expected = model.likelihood.expected_log_density(block.X, chi) + all_sum(responsibilities.sum(0)).log()
    log_odds = expected[:, 1] - expected[:, 0]
    log_odds[pair] = log_odds.new_tensor([-torch.inf, torch.inf])
    return log_odds


class Fit(NamedTuple):
    """Gaussians for the classifiers of K soft components, and the pseudo-observations they came from."""

    precision: Tensor  # [B, K, C]
    shift: Tensor  # [B, K, C]
    weights: Ridge
    bound: Tensor  # [K] float64, E log of the factors - KL(N || prior)


def fit_classifiers(
    block: Data, responsibilities: Tensor, model: Model, start: Fit | None = None, *, num_steps: int = 1
) -> Fit:
    """Gaussians N(mean_k, A_k^-1) near g_k(eta), from soft assignments [B, K]: steps from `start`, or from the prior.

    A step goes part of the way to precision = -E phi'', shift = E phi' + precision E f of log phi under the present
    Gaussian of the score f; at a fixed point it has the least KL to g_k (Opper & Archambeau 2009). Expectations are by
    quadrature, so for any loss. A step that lowers the bound E log phi - KL(N || prior) of its component is tried again
    at a quarter; it starts at a half, and grows to three quarters (whole ones overshoot the kink of a hinge).

    A row's factor counts r_nk times.
    """
    none = block.features.new_zeros(block.num_data, responsibilities.shape[1], block.targets.shape[1])
    fit, goal = _improve(block, responsibilities, model, *(start[:2] if start else (none, none)))
    step = torch.full_like(fit.bound, 0.5)
    for _ in range(num_steps if none.shape[2] else 0):
        share = step.to(none).view(-1, 1)
        halfway = (torch.lerp(own, to, share) for own, to in zip(fit[:2], goal, strict=True))
        trial, trial_goal = _improve(block, responsibilities, model, *halfway)
        better = trial.bound > fit.bound
        fit = _where(better, trial, fit)
        column = better.view(-1, 1)
        goal = torch.where(column, trial_goal[0], goal[0]), torch.where(column, trial_goal[1], goal[1])
        step = torch.where(better, (1.5 * step).clamp(max=0.75), step / 4)
    return fit


def _where(better: Tensor, one: Fit, other: Fit) -> Fit:
    """For each component [K] one of two fits."""
    column, matrix = better.view(-1, 1), better.view(-1, 1, 1)
    mean = torch.where(matrix, one.weights.mean, other.weights.mean)
    tril = torch.where(matrix.unsqueeze(-1), one.weights.precision_tril, other.weights.precision_tril)
    precision = torch.where(column, one.precision, other.precision)
    shift = torch.where(column, one.shift, other.shift)
    return Fit(precision, shift, Ridge(mean, tril), torch.where(better, one.bound, other.bound))


def _improve(
    block: Data, responsibilities: Tensor, model: Model, precision: Tensor, shift: Tensor
) -> tuple[Fit, tuple[Tensor, Tensor]]:
    """The Gaussians of pseudo-observations [B, K, C], and those to go towards."""
    natural = soft_natural(block.features, precision, shift, responsibilities, weight_scale=model.weight_scale)
    weights = _unchecked_ridge(*natural)
    mean = scores(block.features, weights.mean)
    scale = weights.score_variance(block.features).sqrt().clamp(min=LEAST_SCALE)
    pieces = [
        _quadratic(mean[rows], scale[rows], block.targets[rows], model)
        for rows in row_chunks(block.X, NUM_NODES * mean[0].numel())
    ]
    value, slope, curvature = (torch.cat(piece) for piece in zip(*pieces, strict=True))
    toward = (-curvature).clamp(min=0)
    bound = all_sum((responsibilities * value).sum(0, dtype=torch.float64)) - weights.kl(model.weight_scale)
    return Fit(precision, shift, weights, bound), (toward, slope + toward * mean)


def _unchecked_ridge(gram: Tensor, linear: Tensor) -> Ridge:
    """The Gaussians of A [K, C, P, P] and A m [K, P, C], NaN where A has no factor in floating point.

    To look whether it has makes a GPU wait. No step is better for NaN, and `split_merge` turns it down.
    """
    tril, info = torch.linalg.cholesky_ex(gram)
    tril = tril.masked_fill((info > 0)[..., None, None], torch.nan)
    return Ridge(torch.cholesky_solve(linear.mT.unsqueeze(-1), tril).squeeze(-1).mT, tril)


def _quadratic(mean: Tensor, scale: Tensor, targets: Tensor, model: Model) -> tuple[Tensor, Tensor, Tensor]:
    """E log phi [B, K], E phi' and E phi'' [B, K, C] of log phi for scores N(mean, scale^2).

    Scores that meet in one factor move one at a time, the others at their means.
    """
    value, slope, curvature = mean.new_zeros(mean.shape[:2]), torch.empty_like(mean), torch.empty_like(mean)
    blocks = model.loss.blocks(mean.shape[2])
    for columns in blocks:

        def log_factor(scores: Tensor, columns: slice = columns) -> Tensor:
            moved = mean.expand(len(scores), *mean.shape).clone()
            moved[..., columns] = scores
            found: Tensor = model.loss.log_factor(moved, targets.unsqueeze(1))
            return found

        found = smoothed(mean[..., columns], scale[..., columns], log_factor)
        value += found[0].sum(-1) / len(blocks)
        slope[..., columns], curvature[..., columns] = found[1:]
    return value, slope, curvature


def log_margins(block: Data, weights: Tensor, model: Model) -> Tensor:
    """log phi(y_n | eta_k^T a_n) [B, K] of classifiers [K, P, C]."""
    return model.log_margin(scores(block.features, weights), block.targets.unsqueeze(1))


NUM_ROUNDS = 4
_NUM_STEPS = 10
