"""Conformance of a model: its Pyro program and what the kernels ask of its parts are the same density."""

from __future__ import annotations

from typing import Any

from .references import reference_of


def check_model(model: Any, X: Any, y: Any = None, *, lengths: Any = None, seed: int = 0) -> None:
    """Check a model on a small data set X [N, D] with y [N], or with the `lengths` of its sequences.

    1. Resolving twice changes nothing.
    2. The program has the sites that the prior object and the family state, and no others.
    3. Its log density is that of its parts as kernels compute them: hyperparameters and sticks from the prior object,
       family, weights, and the points with their margin factors, also with the latents summed out.

    Raises
    ------
    AssertionError    naming the part that disagrees.
    """
    reference_of(model).program(model, X, y, lengths, seed)
