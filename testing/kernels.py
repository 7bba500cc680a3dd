"""Conformance of a backend: what its trace promises holds, and on tiny data it agrees with exact enumeration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .enumeration import log_evidence, partition_posterior
from .sequences import log_state_evidence, state_posterior

__all__ = ["check_kernel"]

_ROUNDING = 1e-9


def check_kernel(
    backend: Any, model: Any, X: Any, y: Any = None, *, lengths: Any = None, num_batches: int = 20
) -> None:
    """Check a fit to tiny data (5 points or steps, or fewer; 2 classifier features or fewer).

    An objective never rises. An ELBO never falls and stays below the log evidence of the truncated model. Draws have
    the exact co-assignment probabilities, within five standard errors from batch means.

    Parameters
    ----------
    backend : `Gibbs`, `SVI` (without minibatches), `SmallVariance`, `NUTS`, or another with the same interface
    lengths : of the sequences, for a model of states; its concentrations must be fixed
    num_batches : batches of consecutive draws from which the standard errors of a sampler come

    Raises
    ------
    AssertionError    saying what was found and what is exact.
    """
    posterior = backend.fit(model, X, y, lengths=lengths)
    values = posterior.trace.values
    steps = (values[:, 1:] - values[:, :-1]).nan_to_num(0.0) / values[:, 1:].abs().nan_to_num(1.0).clamp(min=1.0)
    if posterior.trace.name == "objective":
        assert steps.max() <= _ROUNDING, f"the objective rose by {steps.max():.3g} of its size"
    elif posterior.trace.name == "ELBO":
        assert steps.min() >= -_ROUNDING, f"the ELBO fell by {-steps.min():.3g} of its size"
        if model.structure == "sequence":
            exact = log_state_evidence(posterior.model, X, lengths, truncation=model.truncation)
        else:
            exact = log_evidence(posterior.model, X, y, truncation=model.truncation)
        bound = float(posterior.trace.final.max())
        assert bound <= exact + 1e-6, f"the ELBO {bound:.6f} is above the log evidence {exact:.6f}"
    elif posterior.trace.name != "log joint":
        raise ValueError(f"{type(backend).__name__} records an {posterior.trace.name}, which has no exact value.")
    else:
        # a sampler without scans draws from the program, which is truncated
        truncation = model.truncation if getattr(backend, "scan", "blocked") == "blocked" else None
        if model.structure == "sequence":
            probabilities = state_posterior(posterior.model, X, lengths, truncation=truncation)
        else:
            probabilities = partition_posterior(posterior.model, X, y, truncation=truncation)
        _check_draws(posterior, probabilities, num_batches)


def _check_draws(posterior: Any, exact: dict[tuple[int, ...], float], num_batches: int) -> None:
    pairs = torch.stack([_together(draw) for draw in posterior.samples["assignments"]])
    batches = torch.stack([batch.mean(0) for batch in pairs.chunk(num_batches)])
    found, error = batches.mean(0), batches.std(0) / len(batches) ** 0.5
    expected = sum(probability * _together(torch.tensor(partition)) for partition, probability in exact.items())
    off = (found - torch.as_tensor(expected)).abs()
    # a pair that never changed has no error estimate: allow one draw's worth
    ratio = float((off / (error + 1 / len(pairs))).max())
    assert (off <= 5 * error + 1 / len(pairs)).all(), (
        f"co-assignment probabilities are off by up to {ratio:.1f} standard errors"
    )


def _together(assignments: Tensor) -> Tensor:
    """1 where two points share a component, [N, N]."""
    return (assignments.unsqueeze(0) == assignments.unsqueeze(1)).double().cpu()
