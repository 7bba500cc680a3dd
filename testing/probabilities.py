"""Checks of the class probabilities of a loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..models.distributions.sampling import normals
from ..models.losses import Loss
from .requirements import require, require_close


def check_probabilities(loss: Loss, scores: Tensor, generator: torch.Generator) -> None:
    """Check that probabilities at scores [N, C] sum to one, in the scores' order, and the expected ones by draws."""
    probabilities = loss.probabilities(scores)
    shape = (len(scores), max(2, scores.shape[1]))
    message = f"have shape {tuple(probabilities.shape)} for scores {tuple(scores.shape)}"
    require(probabilities.shape == shape, "probabilities", message)
    require_close(probabilities.sum(1), torch.ones_like(scores[:, 0]), "probabilities", "do not sum to one")
    if scores.shape[1] > 1:
        lead = probabilities.amax(1, keepdim=True) - probabilities.gather(1, scores.argmax(1, keepdim=True))
        require((lead <= 1e-12).all(), "probabilities", "have another order than scores")
    certain = loss.expected_probabilities(scores, torch.zeros_like(scores))
    require_close(certain, probabilities, "expected_probabilities", "at no variance are others")
    check_expected(loss.probabilities, loss.expected_probabilities, scores, generator)


def check_expected(
    probabilities: Callable[[Tensor], Tensor],
    expected: Callable[[Tensor, Tensor], Tensor],
    scores: Tensor,
    generator: torch.Generator,
) -> None:
    """Require that `expected` at scores [..., C] of some variance is no further from a mean over draws than at none."""
    certain = probabilities(scores)
    for deviation in (0.5, 2.0, 5.0):
        noise = deviation * normals((_NUM_DRAWS, *scores.shape), generator, scores)
        exact = probabilities(scores + noise).mean(0)
        found = expected(scores, torch.full_like(scores, deviation**2))
        further = (found - exact).abs() - (certain - exact).abs()
        message = f"are further off than those at the mean, at the variance {deviation**2:g}"
        require((further <= _NEAR).all(), "expected_probabilities", message)


_NUM_DRAWS, _NEAR = 3000, 0.06  # draws of scores, and what an approximation may be off
