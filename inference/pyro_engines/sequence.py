"""State sequences in Pyro's engines: conversion of the sites of a program to a draw of the posterior.

Paths are summed out of the program, and drawn given its transition rows and emissions as the blocked Gibbs scan does. A
draw has the same entries as one of that scan.
"""

from __future__ import annotations

import torch

from ...models.distributions.sampling import log_dirichlet, uniforms
from ...models.likelihoods import ExponentialFamily
from ...models.priors.laws import Truncated
from ...models.priors.sticks import log_stick_weights
from ...models.sequence import Sequences, StateSpace
from ..distributed.collectives import own_stream
from ..gibbs import sequence
from ..gibbs.rows import count_moves, row_posterior
from ..gibbs.scans.components import hyperparameters
from ..gibbs.scans.paths import emissions
from ..gibbs.state import SequenceState
from ..markov.paths import sample_paths
from ..running.engine import Draw
from . import partition
from .partition import Latents

warn = partition.warn


def check(backend: object, model: StateSpace) -> None:
    """Raise on a likelihood without a conjugate prior, which the posterior of sequences requires."""
    if not isinstance(model.likelihood, ExponentialFamily):
        raise NotImplementedError(
            f"{type(model.likelihood).__name__} is no ExponentialFamily, which the draws of {type(model).__name__} "
            "need. Use one such as DiagonalGaussian()."
        )


def start(model: StateSpace, data: Sequences, generator: torch.Generator) -> Latents:
    """States like the components of a mixture, and equal transition probabilities [T + 1, T]."""
    T = model.truncation
    rows = data.X.new_full((T + 1, T), 1 / T)
    return partition.start(model, data.points, generator) | {"transitions": rows}


def with_assignments(latents: Latents, model: StateSpace, data: Sequences, generator: torch.Generator) -> SequenceState:
    """The state at these latents, with paths drawn given them."""
    latents = {name: value.detach() for name, value in latents.items()}
    base = log_stick_weights(latents.pop("sticks").double()).exp()
    rows = latents.pop("transitions")
    log_rows = rows.clamp(min=torch.finfo(rows.dtype).tiny).double().log()
    weights, fixed = latents.pop("weights"), model.prior.start(data.X)
    hyper = {name: latents.pop(name, own).double() for name, own in fixed.items()}
    table, levels = emissions(latents, weights, data, model), uniforms((data.num_data,), own_stream(generator))
    states = sample_paths(log_rows[-1], log_rows[:-1], table, data.lengths, levels)
    return SequenceState(states, weights, hyper, base=torch.cat([base, base.new_zeros(1)]))


to_gibbs = with_assignments  # the sites have no paths, with which the blocked scan starts


def from_gibbs(state: SequenceState, model: StateSpace, data: Sequences, generator: torch.Generator) -> Latents:
    """Values of all sites at a state; transition rows and parameters are drawn given it."""
    T, base = len(state.weights), state.base[:-1]
    rows = log_dirichlet(row_posterior(state, count_moves(state, data), model.prior)[:, :T], generator).exp()
    rest = base.flip(0).cumsum(0).flip(0)
    chi = hyperparameters(state, data, model)
    return {
        "sticks": partition.within(base[:-1] / rest[:-1].clamp(min=torch.finfo(base.dtype).tiny), data.X),
        "transitions": partition.within(rows, data.X),
        "weights": state.weights,
        **partition.free_hyper(state.hyper, model, data.X),
        **model.likelihood.draw(chi, generator),
    }


def draw(state: SequenceState, data: Sequences, model: StateSpace) -> Draw:
    """The draw that the posterior keeps of a state."""
    return sequence.draw(state, data, model, law=Truncated(model.prior, model.truncation))
