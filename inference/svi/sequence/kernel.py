"""Variational inference for the truncated infinite hidden Markov models: coordinate ascent, or stochastic steps.

A sweep sets rows, family and hyperplanes to their optimum given the paths, then the paths to theirs
(`factors`): the bound never falls. Minibatches are in `steps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ....models.sequence import Sequences, StateSpace
from ...distributed.collectives import all_sum
from ...posterior.draws import SequenceDraw, drawn
from ...running.engine import Draw
from ...seeding import far_apart
from ..allocations import Allocations
from ..factors import family_of, pairs, prior_classifiers
from ..rules import NATURAL
from ..steps import Steps, StepsByRule, Stochastic
from ..stream import stream_sequences
from .factors import VariationalSequence, observe, update_components, update_factors, update_paths
from .rows import hierarchy_bound, start_rows, update_rows
from .steps import extrapolate, first_steps, minibatch, stochastic_sweep


def init(model: StateSpace, data: Sequences, generator: torch.Generator) -> VariationalSequence:
    """Steps on their own, from seeds that are far apart, largest state first; hyperplanes at their prior."""
    T, family = model.truncation, family_of(model)
    seeds = data.X[far_apart(family, data.X, T, generator)]
    chi = family.prior() + family.statistics(seeds)
    predictive = family.log_predictive(data.X, chi).softmax(1)
    predictive = predictive[:, all_sum(predictive.sum(0)).argsort(descending=True)]
    responsibilities = predictive.new_full((data.num_data, T), 1 / T).index_copy(0, data.steps, predictive)
    counts = all_sum(_independent_counts(responsibilities.double(), data.starts))
    state = VariationalSequence(
        hyperparameters=chi,
        responsibilities=responsibilities,
        entropy=all_sum(torch.special.entr(responsibilities.double()).sum()),
        bound=counts.new_tensor(-torch.inf),
        **start_rows(counts, model.prior),
        **prior_classifiers(model, data.points),
    )
    return observe(update_components(update_rows(state, model.prior), data, model), data, model)


def unions(state: VariationalSequence, data: Sequences, model: StateSpace) -> Iterator[VariationalSequence]:
    """The most promising pairs of states, the steps of the second with the first."""
    for kept, absorbed in pairs(state, model):
        into = torch.eye(model.truncation, dtype=torch.float64, device=state.counts.device)
        into[absorbed] = into[kept]
        counts = torch.block_diag(into, into.new_ones(1, 1)).T @ state.counts @ into
        r = state.responsibilities @ into.to(state.responsibilities)
        yield observe(replace(state, responsibilities=r, counts=counts), data, model)


def reorder(state: VariationalSequence, model: StateSpace) -> VariationalSequence:
    """States by decreasing number of visits, if that raises the bound: sticks expect large states first."""
    order = state.counts.sum(0).argsort(descending=True, stable=True)
    if torch.equal(order, torch.arange(len(order), device=order.device)):
        return state
    as_is, permuted = (update_rows(version, model.prior) for version in (state, state.permuted(order)))
    return permuted if hierarchy_bound(permuted, model.prior) > hierarchy_bound(as_is, model.prior) else as_is


PATHS = Allocations(update_factors, update_paths, reorder, unions)
sweep, ascend = PATHS.sweep, PATHS.ascend


# -- what the backend asks ---------------------------------------------------------------------------------------------


def summary(state: VariationalSequence, data: Sequences, model: StateSpace) -> Draw:
    """What the posterior keeps."""
    r = state.responsibilities
    unseen = state.rows.new_full((model.truncation + 1, 1), -torch.inf)
    log_rows = torch.cat([(state.rows / state.rows.sum(1, keepdim=True)).log(), unseen], 1).to(r)
    share = (state.sizes / state.sizes.sum()).log().to(r)
    return drawn(
        SequenceDraw(
            assignments=r.argmax(1),
            responsibilities=r,
            hyperparameters=state.hyperparameters,
            log_mixture=torch.cat([share, share.new_tensor([-torch.inf])]),
            log_start=log_rows[-1],
            log_transitions=log_rows[:-1],
            weights=state.mean,
            precision_tril=state.precision_tril,
        ),
        {"concentration": state.expected_concentration, "top_concentration": state.expected_top_concentration},
    )


def _independent_counts(r: Tensor, starts: Tensor) -> Tensor:
    """Expected transitions [T + 1, T] if all steps were independent with marginals r [N, T]."""
    before = torch.where(starts[1:].unsqueeze(1), 0.0, r[:-1])
    return torch.cat([before.T @ r[1:], r[starts].sum(0, keepdim=True)])


STEPS = Steps(
    state=VariationalSequence,
    init=init,
    sweep=sweep,
    complete=update_paths,
    draw=summary,
    stochastic=Stochastic(
        first=first_steps,
        count=lambda data: len(data.lengths),
        extrapolate=extrapolate,
        minibatch=minibatch,
        sweep=stochastic_sweep,
        read=stream_sequences,
    ),
)
BY_RULE = StepsByRule(lambda backend, model: {NATURAL: STEPS}, family_of)
