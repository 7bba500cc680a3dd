"""Scans of all steps of sequences at once: whole paths are drawn given the rows of the transition matrix.

Sources: Van Gael et al. (2008) for "beam"; Fox et al. (2011) for "blocked" and the stickiness.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ....models import host
from ....models.distributions.sampling import log_dirichlet, uniforms
from ....models.likelihoods.base import Parameters
from ....models.sequence import Sequences, StateSpace
from ...distributed.collectives import all_largest, own_stream
from ...markov.paths import sample_paths
from ..rows import break_rest, own_moves, row_posterior
from ..state import SequenceState
from .components import assignment_logits, with_hyperparameters
from .slice import draw_fresh, settled


def blocked_scan(state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator) -> SequenceState:
    """Draw the rows pi_j ~ Dirichlet(alpha b_j + n_j) of T states, then whole paths."""
    T = len(state.weights)
    moves, chi = with_hyperparameters(own_moves(state, data), state, data, model)
    log_rows = log_dirichlet(row_posterior(state, moves, model.prior)[:, :T], generator)
    table = emissions(model.likelihood.draw(chi, generator), state.weights, data, model)
    levels = uniforms((data.num_data,), own_stream(generator))
    states = sample_paths(log_rows[T], log_rows[:T], table, data.lengths, levels, in_place=True)
    return replace(state, assignments=states)


def beam_scan(state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator) -> SequenceState:
    """Draw whole paths of the infinite model, given a slice below the weight of every transition.

    The slices are u_t ~ U(0, pi_{z_{t-1} z_t}). The rows' weight of unseen states is broken into new states until the
    rest is below every slice. Then paths are drawn among the transitions with pi_jk > u_t, which all have weight 1.
    """
    K, own = len(state.weights), state.assignments
    moves, chi = with_hyperparameters(own_moves(state, data), state, data, model)
    log_rows = log_dirichlet(row_posterior(state, moves, model.prior), generator)
    slices, levels = uniforms((2, data.num_data), own_stream(generator))
    before = torch.where(data.starts, K, torch.cat([own.new_full((1,), K), own[:-1]]))
    log_slices = log_rows[before, own] + torch.log1p(-slices)
    lowest, base = -all_largest(-log_slices.amin()), state.base
    least = 1 if host.on_cpu(base) else _AT_ONCE
    while log_rows[:, -1].max() > lowest:
        # doubling needs few passes and at most twice the states required; extra states change no law
        num_new = max(least, len(base) - 1 - K)
        log_rows, base = break_rest(log_rows, base, num_new, state, model.prior, generator)
    parameters, weights, reserved = model.likelihood.draw(chi, generator), state.weights, state.reservoir
    if num_new := len(base) - 1 - K:
        fresh, planes, reserved = draw_fresh(num_new, state, data.points.features, model, generator)
        parameters = {name: torch.cat([value, fresh[name]]) for name, value in parameters.items()}
        weights = torch.cat([weights, planes])
    table, log_steps = emissions(parameters, weights, data, model), log_rows[:, :-1]
    paths = sample_paths(log_steps[-1], log_steps[:-1], table, data.lengths, levels, log_slices, in_place=True)
    moved, labels, unseen = settled(state, paths, weights, reserved)
    return replace(moved, base=torch.cat([base[labels], base[-1:] + torch.where(unseen, base[:-1], 0.0).sum()]))


def emissions(parameters: Parameters, weights: Tensor, data: Sequences, model: StateSpace) -> Tensor:
    """log p(x_t | theta_k) + h(eta_k^T a_t) [N, K] with weights [K, P, C]; 0 at missing steps."""
    return data.spread(assignment_logits(data.points, parameters, weights, model))


_AT_ONCE = 8  # new states per pass on a device, where the host waits after each pass
