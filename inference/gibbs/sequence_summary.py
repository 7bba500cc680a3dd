"""What a posterior keeps of a state of an infinite hidden Markov model, and its log joint density."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.priors.laws import PathLaw
from ...models.sequence import Sequences, StateSpace
from ..classifiers.scored import classifiers_of
from ..distributed.collectives import all_sum
from ..posterior.draws import SequenceDraw, drawn
from ..structures import Draw
from .scans.components import log_evidence, posterior_hyperparameters
from .sequence_prior import log_path, row_posterior
from .state import SequenceState


def log_joint(
    state: SequenceState, data: Sequences, model: StateSpace, *, law: PathLaw, chi: Tensor | None = None
) -> Tensor:
    """log density [] of (z, beta, alpha, gamma, eta) and the data, the rest integrated out.

    `chi` [K, S] are the posterior hyperparameters of the states where they are known.

    beta counts through its sticks where there are T states. Of an infinite model whose states repel the density is
    relative, as `Scored.log_density` says.
    """
    points = data.points
    log_prior = log_path(state, data, model) + law.log_base(state.base, state.hyper)
    chi = hyperparameters(state, data, model) if chi is None else chi
    evidence = log_evidence(chi, points, model.likelihood)
    scored = classifiers_of(model, points, state.states[data.steps], len(state.weights))
    return log_prior + evidence + scored.log_density(state.weights, relative=law.alike)


def draw(state: SequenceState, data: Sequences, model: StateSpace, *, law: PathLaw) -> Draw:
    """What the posterior keeps of a state; the rows are their expectations given the states."""
    K, dtype, chi = len(state.weights), data.X.dtype, hyperparameters(state, data, model)
    expected = row_posterior(state, data, model)
    log_rows = (expected.log() - expected.sum(1, keepdim=True).log()).to(dtype)
    counts = all_sum(torch.bincount(state.states, minlength=K).double())
    share = counts / counts.sum()
    rho = model.prior.stickiness
    unseen_row = (1 - rho) * state.base  # and it may stay where it is
    unseen_row[-1] += rho
    return drawn(
        SequenceDraw(
            assignments=state.states,
            hyperparameters=chi,
            log_mixture=torch.cat([share, share.new_zeros(1)]).to(dtype).log(),
            log_start=log_rows[K],
            log_transitions=log_rows[:K],
            log_unseen_row=unseen_row.log().to(dtype),
            weights=state.weights,
            log_joint=log_joint(state, data, model, law=law, chi=chi),
        ),
        {name: value.to(dtype) for name, value in state.hyper.items()},
    )


def hyperparameters(state: SequenceState, data: Sequences, model: StateSpace) -> Tensor:
    """Posterior hyperparameters [K, S] of every state's family, from the observed steps."""
    return posterior_hyperparameters(data.points, state.states[data.steps], len(state.weights), model.likelihood)
