"""Variational inference for a truncated mixture of margin classifiers: coordinate ascent, or stochastic steps.

A sweep sets the global factors to their optimum given the responsibilities, then the responsibilities to theirs
(`factors`): the bound never falls. Where rows are many, sums over them stand for their responsibilities
(`sums`). A stochastic step moves natural parameters towards the optimum of a minibatch (Hoffman et al. 2013).
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
from ...posterior.draws import PartitionDraw, drawn
from ...protocol import KernelData
from ...running.engine import Draw
from ...seeding import draw_rows, far_apart
from ..allocations import Allocations, estimated
from ..factors import family_of, move, pairs, prior_classifiers, see
from ..steps import D, M, Minibatch, S, Steps, Stochastic
from ..stream import Stream, stream_points
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


def promising(state: VariationalPartition, data: Data, model: Mixture) -> Iterator[VariationalPartition]:
    """The unions of pairs of components that might raise the bound, by their sums."""
    for kept, absorbed in pairs(state, model):
        if is_promising(state, data, model, kept, absorbed):
            yield union(state, data, model, kept, absorbed)


def unions(state: P, data: object, model: Mixture) -> Iterator[P]:
    """The most promising pairs of components, the points of the second with the first; of kept responsibilities."""
    for kept, absorbed in pairs(state, model):
        r = state.responsibilities.clone()
        r[:, kept] += r[:, absorbed]
        r[:, absorbed] = 0
        yield replace(state, responsibilities=r)


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


POINTS = Allocations(update_factors, update_responsibilities, reorder, promising)
sweep, ascend, merge = POINTS.sweep, POINTS.ascend, POINTS.merge


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
        bound=estimated(local, batch.scale, penalty),
    )


def assign(state: VariationalPartition, data: Data, model: Mixture) -> Tensor:
    """The most probable component [N] of each row."""
    return assignment_logits(state, data, model).argmax(1)


# -- what the backend asks ---------------------------------------------------------------------------------------------


def summary(state: VariationalPartition, data: KernelData, model: Mixture) -> Draw:
    """What the posterior keeps: of rows that are too many no responsibilities, but their components."""
    a, b = state.sticks
    mixture = log_stick_weights(a / (a + b)).to(state.mean)
    if state.num_dropped:
        points: Any = getattr(data, "points", data)  # of label sets, what their mixture sees
        labels = torch.empty(points.num_data, dtype=torch.long, device=points.X.device)
        for rows in slices(points, model):
            labels[rows] = assign(state, points.rows(rows), model)
    else:
        labels = state.responsibilities.argmax(1)
    kept = PartitionDraw(
        assignments=labels,
        hyperparameters=state.hyperparameters,
        log_mixture=torch.cat([mixture, mixture.new_tensor([-torch.inf])]),
        weights=state.mean,
        precision_tril=state.precision_tril,
    )
    if not state.num_dropped:
        kept["responsibilities"] = state.responsibilities
    return drawn(kept, expected_prior(state, model).hyper)


def by_rows(
    extrapolate: Callable[[S, D, M, int, float], S],
    sweep: Callable[[S, Minibatch[D], M, float], S],
    read: Callable[..., tuple[M, Stream[D]]],
    assign: Callable[[S, D, M], Tensor] | None = None,
) -> Stochastic[S, D, M]:
    """Stochastic steps on single rows, drawn as often as they count; `assign` gives the component [n] of each."""

    def count(rows: Any) -> float:
        total: float = rows.total_weight
        return total

    first: Callable[..., Any] = first_rows
    draw: Callable[..., Any] = minibatch
    return Stochastic(first, count, extrapolate, draw, sweep, read, assign)


STEPS = Steps(
    state=VariationalPartition,
    init=init,
    sweep=sweep,
    complete=update_responsibilities,
    draw=summary,
    stochastic=by_rows(extrapolate, stochastic_sweep, stream_points, assign),
)
