"""Variational inference for a truncated mixture of margin classifiers: coordinate ascent, or stochastic steps.

A sweep sets the global factors to their optimum given the responsibilities, then the responsibilities to theirs
(`factors`): the bound never falls. Where rows are many, sums over them stand for their responsibilities
(`partition_sums`). A stochastic step moves natural parameters towards the optimum of a minibatch (Hoffman et al. 2013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ....models.data import Data
from ....models.mixture import Mixture
from ....models.priors.sticks import best_order, log_labelled_prior, log_stick_weights
from ...classifiers.natural import BothSides, OwnSide
from ...distributed.collectives import own_stream
from ...running.engine import Draw
from ...seeding import draw_rows, far_apart
from ..factors import MERGE_ROUNDS, SETTLED, family_of, move, pairs, prior_classifiers, see
from ..steps import Minibatch, Steps
from ..stream import stream_points
from ..unions import is_promising
from .factors import (
    VariationalPartition,
    assignment_logits,
    expected_prior,
    kl,
    union,
    update_components,
    update_factors,
    update_prior,
    update_responsibilities,
    update_sticks,
)
from .sums import Sums, slices

P = TypeVar("P", bound=VariationalPartition)


def init(model: Mixture, data: Data, generator: torch.Generator) -> VariationalPartition:
    """`seeded`, with the pseudo-observations there."""
    return seeded(model, data, generator, lambda blank, rows: see(blank, rows, model))


def seeded(
    model: Mixture,
    data: Data,
    generator: torch.Generator,
    seen: Callable[[VariationalPartition, Data], OwnSide | BothSides] | None = None,
) -> VariationalPartition:
    """Responsibilities from seeds that are far apart, largest component first; classifiers at their prior.

    seen(state with them, rows) is what these expect of rows; without, all responsibilities are kept and no more.
    """
    family, q = family_of(model), model.prior.initial(data.features)
    seeds = data.X[far_apart(family, data.X, model.truncation, generator, data.weights)]
    chi, prior = family.prior() + family.statistics(seeds), model.prior.expect(q, model.truncation)
    blank = VariationalPartition(
        hyperparameters=chi,
        responsibilities=data.features.new_empty(0, model.truncation),
        weights=data.weights,
        sticks=torch.stack([prior.a, prior.b]),
        q=q,
        bound=q.new_tensor(-torch.inf),
        **prior_classifiers(model, data),
    )
    sums = Sums(model, data, True if seen is None else None)
    for rows in slices(data, model):
        some = data.rows(rows)
        r = torch.softmax(family.log_predictive(some.X, chi), 1)
        sums.add(rows, some, r, None if seen is None else seen(blank, some))
    state = replace(blank, **sums.fields())
    state = state.permuted(state.sizes.argsort(descending=True))
    return update_components(update_sticks(state, model), data, model)


# -- full batch: coordinate ascent -------------------------------------------------------------------------------------


def sweep(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """Sticks, h, family, classifiers, then responsibilities; each block maximizes the bound given the others."""
    first = state.num_data != data.num_data  # the first full sweep after stochastic steps
    if first:
        state = update_responsibilities(state, data, model)
    before = state.bound
    if first or state.may_merge:  # later on, sizes hardly change
        state = reorder(state, model)
    state = ascend(state, data, model)
    if state.may_merge and state.bound - before <= SETTLED * state.sizes.sum():
        state = merge(state, data, model)
    return state


def ascend(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """One round of the block updates."""
    return update_responsibilities(update_factors(state, data, model), data, model)


def merge(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """The first of the most promising pairs of components whose union raises the bound, or the state as it is.

    Coordinate ascent hardly ever empties a component that has points, so it would keep all that it started from
    (Bryant & Sudderth 2012; Hughes & Sudderth 2013). A union is tried if it is promising, and given up once its last
    rise, repeated for the rounds that are left, would not take it there.
    """
    for kept, absorbed in pairs(state, model):
        if not is_promising(state, data, model, kept, absorbed):
            continue
        merged = union(state, data, model, kept, absorbed)
        for left in reversed(range(MERGE_ROUNDS)):
            before, keep = merged.bound, None if left == 0 else False
            merged = update_responsibilities(update_factors(merged, data, model), data, model, keep=keep)
            if left < MERGE_ROUNDS - 1 and merged.bound + left * (merged.bound - before) <= state.bound:
                break
        else:
            return merged
    return replace(state, may_merge=False)


def unions(state: P, model: Mixture) -> Iterator[P]:
    """The most promising pairs of components, the points of the second with the first."""
    for kept, absorbed in pairs(state, model):
        yield _union(state, kept, absorbed)


def _union(state: P, kept: int, absorbed: int) -> P:
    r = state.responsibilities.clone()
    r[:, kept] += r[:, absorbed]
    r[:, absorbed] = 0
    return replace(state, responsibilities=r)


def reorder(state: P, model: Mixture) -> P:
    """Components in their best order, if that raises the bound.

    Its terms of the sticks, at their best q(v), are log p(z) of the expected counts with E a and E b of q(h), and a
    constant. With a discount, the largest component in the first place is not always best.
    """
    prior = expected_prior(state, model)
    order = best_order(state.sizes, prior.a, prior.b)
    sizes = torch.stack([state.sizes, state.sizes[order]])
    if torch.equal(*sizes):
        return state
    now, best = log_labelled_prior(sizes, prior.a, prior.b)
    return state.permuted(order) if best > now else state


# -- minibatches: stochastic natural gradients -------------------------------------------------------------------------


def first_rows(data: Data, num_rows: int, generator: torch.Generator) -> Data:
    """Rows from which a stochastic fit starts."""
    order = torch.randperm(data.num_data, generator=own_stream(generator), device=data.X.device)
    return data.rows(order[:num_rows])


def extrapolate(
    state: VariationalPartition, rows: Data, model: Mixture, num_data: int, num_units: float
) -> VariationalPartition:
    """Factors as if the rows were points like them that count `num_units` in all: where stochastic steps start."""
    return update_factors(state.scaled(num_units / rows.total_weight), rows, model).without_rows()


def minibatch(data: Data, size: int, generator: torch.Generator) -> Minibatch[Data]:
    """`size` rows, drawn with replacement as often as they count; in the batch each counts once."""
    if data.weights is not None:
        chosen = draw_rows(data.weights, size, own_stream(generator))
        return Minibatch(replace(data.rows(chosen), weights=None), data.total_weight / size)
    like: dict[str, Any] = {"generator": own_stream(generator), "device": data.X.device}
    return Minibatch(data.rows(torch.randint(data.num_data, (size,), **like)), data.num_data / size)


def stochastic_sweep(
    state: VariationalPartition, batch: Minibatch[Data], model: Mixture, rho: float
) -> VariationalPartition:
    """Natural parameters move by rho towards the optimum of a batch that stands for all points.

    q(h) asks no rows: it is at its optimum given the sticks before they move, or its mean over batches would depend on
    how much these differ. The recorded bound is the batch's estimate at the factors from before the step.
    """
    penalty = kl(state, model)
    local = update_prior(update_responsibilities(state, batch.data, model, penalty), model)
    target = update_components(update_sticks(local.scaled(batch.scale), model), batch.data, model)
    return replace(
        move(local, target, model, rho),
        sticks=torch.lerp(local.sticks, target.sticks, rho),
        bound=batch.scale * (local.bound + penalty) - penalty,
    )


def assign(state: VariationalPartition, data: Data, model: Mixture) -> Tensor:
    """The most probable component [N] of each row."""
    return assignment_logits(state, data, model).argmax(1)


# -- what the backend asks ---------------------------------------------------------------------------------------------


def summary(state: VariationalPartition, data: Data, model: Mixture) -> Draw:
    """What the posterior keeps: of rows that are too many no responsibilities, but their components."""
    a, b = state.sticks
    mixture = log_stick_weights(a / (a + b)).to(state.mean)
    if state.num_dropped:
        points = getattr(data, "points", data)  # of label sets, what their mixture sees
        labels = torch.empty(points.num_data, dtype=torch.long, device=points.X.device)
        for rows in slices(points, model):
            labels[rows] = assign(state, points.rows(rows), model)
        kept = {"assignments": labels}
    else:
        kept = {"assignments": state.responsibilities.argmax(1), "responsibilities": state.responsibilities}
    return {
        **kept,
        "hyperparameters": state.hyperparameters,
        "log_mixture": torch.cat([mixture, mixture.new_tensor([-torch.inf])]),
        "weights": state.mean,
        "precision_tril": state.precision_tril,
        **expected_prior(state, model).hyper,
    }


STEPS = Steps(
    state=VariationalPartition,
    init=init,
    sweep=sweep,
    complete=update_responsibilities,
    draw=summary,
    first=first_rows,
    count=lambda data: data.total_weight,
    extrapolate=extrapolate,
    minibatch=minibatch,
    stochastic_sweep=stochastic_sweep,
    read=stream_points,
    assign=assign,
)
