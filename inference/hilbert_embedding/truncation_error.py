"""The truncation error of a stick-breaking mixture in the space of a kernel: how many components suffice.

The mass r_t beyond sticks 1..t has E r_t^2 = prod_{k<=t} b_k (b_k + 1) / (c_k (c_k + 1)), c = a + b, which is (alpha /
(alpha + 2))^t for the Dirichlet process. This replaces Theorem 2 of Muandet (2012), whose rate exp(-t / alpha) is
neither a bound nor the expected one (docs/derivations/hilbert-embedding, "The quadratic program";
docs/derivations/mixtures, "What the papers print").
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.priors import PartitionPrior

__all__ = ["expected_error", "expected_weights", "least_truncation"]


def expected_error(prior: PartitionPrior, truncation: int, like: Tensor, *, nonnegative: bool = True) -> Tensor:
    """Bounds [T + 1] of E |mu - mu_t|^2 / R0 for t = 0..T components, the last stick of which takes all that is left.

    With R0 = sup k(x, x), |mu - mu_t|^2 <= 2 R0 r_t^2 for a nonnegative kernel, and 4 R0 r_t^2 for any.

    Parameters
    ----------
    prior : with its hyperparameters at their start values
    like : a floating-point tensor [...] of the wanted dtype and device
    nonnegative : whether the kernel is
    """
    a, b = prior.sticks(prior.start(like), truncation + 1)
    kept = b * (b + 1) / ((a + b) * (a + b + 1))
    return (2 if nonnegative else 4) * torch.cat([kept.new_ones(1), kept.cumprod(0)])


def least_truncation(prior: PartitionPrior, error: float, like: Tensor, *, nonnegative: bool = True) -> int:
    """The least T >= 1 whose `expected_error` is at most so much; `like` [...] as there.

    Raises
    ------
    ValueError    if that takes more than 10,000 components.
    """
    bounds = expected_error(prior, _MOST_COMPONENTS, like, nonnegative=nonnegative)
    enough = torch.nonzero(bounds[1:] <= error)
    if not len(enough):
        raise ValueError(
            f"truncation_error is {error:g}, which takes more than {_MOST_COMPONENTS} components under {prior!r}. "
            "Give a truncation, or take a larger error."
        )
    return int(enough[0]) + 1


def expected_weights(prior: PartitionPrior, truncation: int, like: Tensor) -> Tensor:
    """E pi [T] of sticks 1..T under the prior, scaled to sum to 1; `like` [...] as in `expected_error`."""
    a, b = prior.sticks(prior.start(like), truncation + 1)
    left = (b / (a + b)).log().cumsum(0)
    log_weights = (a / (a + b)).log() + torch.cat([left.new_zeros(1), left[:-1]])
    return log_weights.softmax(0).to(like)


_MOST_COMPONENTS = 10_000
