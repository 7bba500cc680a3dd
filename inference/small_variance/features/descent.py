"""BP-means with a margin: descent on the small-variance objective F of latent features.

No step raises F (`problem`). Bits depend on the labels; those of new rows follow from their entries alone.

Sources: Broderick, Kulis & Jordan (2013) for BP-means; docs/derivations/latent-features, "Small-variance limit", for
the margin.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...distributed.collectives import own_draws
from ..restarts import changed_little
from .births import add_by_labels, open_feature
from .bits import move_bits
from .fit import refit
from .moves import shift_features, simplify
from .problem import FeatureDescent, FeatureProblem


def scattered(problem: FeatureProblem, penalty: float, num_features: int, generator: torch.Generator) -> FeatureDescent:
    """A state with up to `num_features` features of random bits."""
    state, (N, device) = problem.start(penalty), (problem.data.num_data, problem.data.X.device)
    number = int(torch.randint(1, num_features + 1, (), generator=generator, device=device))
    bits = own_draws(N, lambda n, stream: torch.randint(2, (n, number), generator=stream, device=device), generator)
    for column in bits.T:
        state = state.joined(column, torch.zeros_like(problem.data.X[0]))
    return refit(state, problem)


def sweep(
    state: FeatureDescent,
    problem: FeatureProblem,
    generator: torch.Generator,
    *,
    tolerance: float = 1e-3,
    merge: bool = True,
    single: bool = False,
) -> FeatureDescent:
    """Update bits, loadings and classifiers, then open features.

    A settled state also tries features that the labels suggest, removals and merges, and shifts of rows (`moves`). With
    K features, at most K / 4 open in a sweep, but at least one may. After a sweep in which none opened, sweeps try
    again only once they have settled.
    """
    before, state = state, move_bits(state, problem, generator)
    moved = problem.moved_later(before, state)
    state = refit(state, problem, thorough=before.settled)
    if before.grows or before.settled:
        state = _grown(state, problem, generator, single)
        if before.settled:
            found, state = state, add_by_labels(state, problem, generator)
            if merge:
                state = simplify(state, problem, generator)
            state = shift_features(state, problem, generator)
            state = replace(refit(state, problem, thorough=True), grows=state.grows or state is not found)
        if state.num_features == before.num_features:
            moved = problem.moved_later(before, state)
    settled = state.num_features == before.num_features
    if settled:
        number = problem.data.total_weight * max(1, state.num_features)
        settled = changed_little(before, state, tolerance, moved() / number)
    return replace(state, settled=settled, converged=settled and before.settled)


def _grown(state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator, single: bool) -> FeatureDescent:
    """Open features one after another, with all bits, loadings and classifiers updated after each."""
    for _ in range(max(1, state.num_features // 4)):
        state = open_feature(state, problem, generator, single=single)
        if not state.grows:
            break
        state = refit(move_bits(state, problem, generator), problem)
    return state
