"""A sweep over an infinite hidden Markov model: three scans of the states around one draw of everything else.

    target(z, beta, eta) = p(z | beta) p(beta) prod_k m(X_k) G(eta_k) prod_t exp(h(eta_{z_t}^T a_t))

    "direct"    each step in turn, rows and the family's parameters integrated out        infinite model
    "beam"      all steps of a sequence at once, given rows, slices and fresh states       infinite model
    "blocked"   all steps of a sequence at once, given T rows                              T states

A state is (z, beta, alpha, gamma, eta); rows, parameters of the family, tables and augmentation variables are drawn
where a step needs them and then dropped. m is the marginal of a state's steps, G the law of a hyperplane without
points, h its gain (`hyperplanes`); a model whose states do not repel has neither of these two.

Sources: Teh et al. (2006) for "direct" and the tables; Van Gael et al. (2008) for "beam"; Fox et al. (2011) for
"blocked" and the stickiness; Nguyen, Phung, Le & Bui; math/discriminative-clustering, sections 9 to 11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ...models.compiled import is_compiled
from ...models.distributions.sampling import log_dirichlet, uniforms
from ...models.likelihoods.base import Parameters
from ...models.scores import scores
from ...models.sequence import Sequences, StateSpace
from ..classifiers.scored import classifiers_of
from ..distributed.collectives import own_stream
from ..markov.paths import sample_paths
from .hyperplanes import give_back, renew_reservoir
from .moves.labelled_states import LabelledSequences
from .moves.repelling_split_merge import split_merge_repelling
from .moves.split_merge import num_moves
from .scans import direct
from .scans.slice import draw_fresh
from .sequence_prior import break_rest, draw_prior, relabel, row_posterior
from .sequence_summary import hyperparameters
from .state import SequenceState, scan_law

Scan = Callable[[SequenceState, Sequences, StateSpace, torch.Generator], SequenceState]


def sweep(
    state: SequenceState,
    data: Sequences,
    model: StateSpace,
    generator: torch.Generator,
    step: int = 0,
    *,
    scan: str,
    births: str = "exact",
    num_warmup: int = 0,
    num_split_merge: int = 0,
) -> SequenceState:
    """One sweep; each line leaves the target invariant (except for births from the "prior", the paper's scan).

    "auto" is "direct" where that is compiled, else "beam".
    """
    if scan == "auto":
        compiled = data.X.device.type == "cpu" and is_compiled(model.likelihood)
        scan = "direct" if compiled else "beam"
    law = scan_law(model.prior, model.truncation, scan)
    for _ in range(num_moves(num_split_merge, step, num_warmup) if model.repels else 0):
        state = split_merge_repelling(state, data, model, generator, law=law, places=LabelledSequences)
    state = SCANS[scan](state, data, model, generator)
    state = replace(state, weights=draw_weights(state, data, model, generator))
    if state.reservoir is not None:
        features, grows = data.points.features, step < num_warmup
        reservoir = renew_reservoir(state.reservoir, features, model, generator, births=births, grows=grows)
        state = replace(state, reservoir=reservoir)
    state = draw_prior(state, data, generator, law=law)
    return relabel(state, generator) if scan == "blocked" else state


def blocked_scan(state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator) -> SequenceState:
    """All of T states at once: rows pi_j ~ Dirichlet(alpha b_j + n_j), then whole paths."""
    T = len(state.weights)
    log_rows = log_dirichlet(row_posterior(state, data, model)[:, :T], generator)
    table = emissions(_draw_parameters(state, data, model, generator), state.weights, data, model)
    levels = uniforms((data.num_data,), own_stream(generator))
    return replace(state, states=sample_paths(log_rows[T], log_rows[:T], table, data.lengths, levels))


def beam_scan(state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator) -> SequenceState:
    """All states of the infinite model at once, given a slice below the weight of every step.

    u_t ~ U(0, pi_{z_{t-1} z_t});  what the rows leave to states not yet seen is broken into new states until it is
    below every slice;  then whole paths among the steps with pi_jk > u_t, which all weigh 1.
    """
    K = len(state.weights)
    log_rows = log_dirichlet(row_posterior(state, data, model), generator)
    slices, levels = uniforms((2, data.num_data), own_stream(generator))
    before = torch.where(data.starts, K, torch.cat([state.states.new_full((1,), K), state.states[:-1]]))
    log_slices = log_rows[before, state.states] + torch.log1p(-slices)
    lowest, base = log_slices.min(), state.base
    while log_rows[:, -1].max() > lowest:
        num_new = max(1, len(base) - 1 - K)  # as many again: few passes, and at most twice the states that it takes
        log_rows, base = break_rest(log_rows, base, num_new, state, model, generator)
    parameters, weights, reserved = _draw_parameters(state, data, model, generator), state.weights, state.reservoir
    if num_new := len(base) - 1 - K:
        fresh, planes, reserved = draw_fresh(num_new, state, data.points.features, model, generator)
        parameters = {name: torch.cat([value, fresh[name]]) for name, value in parameters.items()}
        weights = torch.cat([weights, planes])
    table, log_steps = emissions(parameters, weights, data, model), log_rows[:, :-1]
    paths = sample_paths(log_steps[-1], log_steps[:-1], table, data.lengths, levels, log_slices)
    labels, states = torch.unique(paths, return_inverse=True)
    unseen = torch.ones(len(weights), dtype=torch.bool, device=labels.device).index_fill(0, labels, False)
    if state.reservoir is not None and reserved is not None:
        size = len(state.weights) + len(state.reservoir) - len(labels)
        reserved = give_back(reserved, weights[unseen], size)
    kept = torch.cat([base[labels], base[-1:] + base[:-1][unseen].sum()])
    return replace(state, states=states, weights=weights[labels], base=kept, reservoir=reserved)


SCANS: dict[str, Scan] = {"direct": direct.scan, "beam": beam_scan, "blocked": blocked_scan}


def emissions(parameters: Parameters, weights: Tensor, data: Sequences, model: StateSpace) -> Tensor:
    """log p(x_t | theta_k) + h(eta_k^T a_t) [N, K] under weights [K, P, C]; 0 at missing steps."""
    points = data.points
    margin = model.log_margin(scores(points.features, weights), points.targets.unsqueeze(1))
    return data.spread(model.likelihood.log_density(points.X, parameters) + margin)


def draw_weights(state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator) -> Tensor:
    """Hyperplanes [K, P, C] given the states."""
    labels, num_states = state.states[data.steps], len(state.weights)
    return classifiers_of(model, data.points, labels, num_states).draw(state.weights, generator)


def _draw_parameters(
    state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator
) -> Parameters:
    return model.likelihood.draw(hyperparameters(state, data, model), generator)
