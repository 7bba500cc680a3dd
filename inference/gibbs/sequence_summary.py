"""What a posterior keeps of a state of an infinite hidden Markov model, and its log joint density."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...models.scores import own_scores, scores
from ...models.sequence import Sequences, StateSpace
from ..collectives import all_sum
from ..structures import Draw
from .sequence_prior import log_path, row_posterior
from .state import SequenceState


def log_joint(state: SequenceState, data: Sequences, model: StateSpace, *, truncated: bool) -> Tensor:
    """log density [] of (z, beta, alpha, gamma, eta) and the data, the rest integrated out.

    beta counts through its sticks in the truncated model. In an infinite model whose states repel the density is
    relative to the law of a hyperplane without points, as in `partition.log_joint`.
    """
    points, weights = data.points, state.weights
    log_prior = log_path(state, data, model) + model.prior.log_density(state.base, state.hyper, truncated=truncated)
    log_marginal = model.likelihood.log_marginal(hyperparameters(state, data, model)).double().sum()
    found = own_scores(points.features, weights, state.states[data.steps])
    per_point = model.likelihood.log_base_measure(points.X) + model.log_margin(found, points.targets)
    if model.repels and truncated:
        per_point = per_point + model.log_rejection(scores(points.features, weights).squeeze(-1))
        square = (weights.double() / model.weight_scale).square().sum()
        log_prior = log_prior - (square + weights.numel() * math.log(2 * math.pi * model.weight_scale**2)) / 2
    return log_prior + log_marginal + all_sum(per_point.double().sum())


def draw(state: SequenceState, data: Sequences, model: StateSpace, *, truncated: bool) -> Draw:
    """What the posterior keeps of a state; the rows are their expectations given the states."""
    K, dtype = len(state.weights), data.X.dtype
    expected = row_posterior(state, data, model)
    log_rows = (expected.log() - expected.sum(1, keepdim=True).log()).to(dtype)
    counts = all_sum(torch.bincount(state.states, minlength=K).double())
    share = counts / counts.sum()
    rho = model.prior.stickiness
    unseen_row = (1 - rho) * state.base  # and it may stay where it is
    unseen_row[-1] += rho
    return {
        "assignments": state.states,
        "hyperparameters": hyperparameters(state, data, model),
        "log_mixture": torch.cat([share, share.new_zeros(1)]).to(dtype).log(),
        "log_start": log_rows[K],
        "log_transitions": log_rows[:K],
        "log_unseen_row": unseen_row.log().to(dtype),
        "weights": state.weights,
        **{name: value.to(dtype) for name, value in state.hyper.items()},
        "log_joint": log_joint(state, data, model, truncated=truncated),
    }


def hyperparameters(state: SequenceState, data: Sequences, model: StateSpace) -> Tensor:
    """Posterior hyperparameters [K, S] of every state's family, from the observed steps."""
    sums = model.likelihood.summed_statistics(data.X, state.states[data.steps], len(state.weights))
    return model.likelihood.prior() + sums
