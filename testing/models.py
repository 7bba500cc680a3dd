"""Conformance of a model: its Pyro program has the density of its parts, and its predictions fit its targets."""

from __future__ import annotations

from typing import Any

from ..models.base import coding_of
from .references import check_program
from .targets import check_target


def check_model(model: Any, X: Any, y: Any = None, *, lengths: Any = None, seed: int = 0) -> None:
    """Check a model on a small data set X [N, D] with y [N], or with the `lengths` of its sequences.

    1. Resolving twice changes nothing.
    2. The program has the sites that the prior object and the family state, and no others.
    3. Its log density is that of its parts as kernels compute them: hyperparameters and sticks from the prior object,
       family, weights, and the points with their margin factors, also with the latents summed out.
    4. If the model has labels: at any scores of the rows its target decodes the y of largest factor, and probabilities
       are the softmax of the log factors; both as kernels see y and as a posterior predicts.

    A prior over partitions without sticks has no program, so that 2 and 3 are left out.

    Raises
    ------
    AssertionError    naming the part that disagrees.
    """
    check_program(model, X, y, lengths, seed)
    if coding_of(model) is not None:
        check_target(model, X, y, seed)
