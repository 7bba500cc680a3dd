"""Conformance of a backend: its trace keeps what its kind promises, and on tiny data it agrees with enumeration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..models.likelihoods import ExponentialFamily, Likelihood
from .references import Reference, check_program, reference_of

_ROUNDING = 1e-9


def check_kernel(
    backend: Any, model: Any, X: Any, y: Any = None, *, lengths: Any = None, num_batches: int = 20
) -> None:
    """Check a backend on a fit to tiny data: at most 5 points or steps, and at most 2 classifier features.

    If the prior has sticks, the model's program must agree with its parts, which kernels and exact sums use. The
    backend's `kind` decides what else is checked: an objective never rises; an ELBO never falls and stays below the log
    evidence of the truncated model; draws have the exact co-assignment probabilities (or `Reference.indicators`),
    within five standard errors from batch means.

    Parameters
    ----------
    backend : `Gibbs`, `SVI` (without minibatches), `SmallVariance`, `NUTS`, or another with the same interface
    model : of a structure with a `Reference`; see `register_reference`
    lengths : of the sequences, for a model of states
    num_batches : number of batches of consecutive draws for the standard errors of a sampler; a quarter as many are
        tried too, and the larger errors are used

    Raises
    ------
    AssertionError    saying what was found and what is exact.
    ValueError        if the backend's `kind` is "estimate", if there are fewer than two draws for each batch, or if the
                      likelihood has no conjugate prior, so that neither draws nor a bound have an exact value.
    """
    likelihood, compared = getattr(model, "likelihood", None), getattr(backend, "kind", "") in ("draws", "bound")
    if compared and isinstance(likelihood, Likelihood) and not isinstance(likelihood, ExponentialFamily):
        raise ValueError(f"{likelihood!r} has no conjugate prior, so that exact probabilities are not known.")
    reference = reference_of(model)
    check_program(model, X, y, lengths)
    posterior = backend.fit(model, X, y, lengths=lengths)
    values = posterior.trace.values
    steps = (values[:, 1:] - values[:, :-1]).nan_to_num(0.0) / values[:, 1:].abs().nan_to_num(1.0).clamp(min=1.0)
    if posterior.trace.kind == "objective":
        assert (steps <= _ROUNDING).all(), f"the objective rose by {steps.max():.3g} of its size"
    elif posterior.trace.kind == "bound":
        assert (steps >= -_ROUNDING).all(), f"the ELBO fell by {-steps.min():.3g} of its size"
        exact = reference.log_evidence(posterior.model, X, y, lengths, model.truncation)
        bound = float(posterior.trace.final.max())
        assert bound <= exact + 1e-6, f"the ELBO {bound:.6f} is above the log evidence {exact:.6f}"
    elif posterior.trace.kind != "draws":
        raise ValueError(f"{type(backend).__name__} records {posterior.trace.name}, which has no exact value.")
    else:
        truncation = getattr(model, "truncation", None) if backend.truncation_of(model) else None
        probabilities = reference.posterior(posterior.model, X, y, lengths, truncation)
        _check_draws(posterior, reference, probabilities, num_batches)


def _check_draws(posterior: Any, reference: Reference, exact: dict[Any, float], num_batches: int) -> None:
    found = torch.stack([reference.indicators(draw) for draw in posterior.samples[reference.site]]).double()
    if len(found) < 2 * num_batches:
        raise ValueError(
            f'{type(posterior.backend).__name__} has kind = "draws" and {len(found)} draws: too few for errors from '
            f"{num_batches} batches. Draw at least {2 * num_batches}, pass fewer num_batches, or give the backend the "
            'kind of what it finds: "bound", "objective" or "estimate".'
        )
    # a slowly mixing chain needs longer batches, though their errors are less certain
    error = torch.maximum(_standard_errors(found, num_batches), _standard_errors(found, num_batches // 4))
    expected = sum(weight * reference.indicators(torch.tensor(latents)) for latents, weight in exact.items())
    off = (found.mean(0) - torch.as_tensor(expected)).abs()
    # an indicator that never changed has no error estimate: allow one draw's worth
    ratio = float((off / (error + 1 / len(found))).max())
    assert (off <= 5 * error + 1 / len(found)).all(), (
        f"co-assignment probabilities are off by up to {ratio:.1f} standard errors"
    )


def _standard_errors(found: Tensor, num_batches: int) -> Tensor:
    """The standard error [...] of the mean of found [S, ...], from the means of consecutive batches."""
    batches = torch.stack([batch.mean(0) for batch in found.chunk(max(2, num_batches))])
    return batches.std(0) / len(batches) ** 0.5
