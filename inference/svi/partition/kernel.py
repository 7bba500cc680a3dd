"""Variational inference for a truncated mixture of margin classifiers: coordinate ascent, or stochastic steps.

The updates are those of `factors` and `allocations`, with independent points. This file adds minibatches of rows and
the draw that a posterior keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ....models import host
from ....models.bnmc import BNMC
from ....models.data import Data, RowData
from ....models.likelihoods.exponential_family import ExponentialFamily
from ....models.mixture import Mixture
from ....models.priors.sticks import log_stick_weights
from ...distributed.picked import draw_rows, own_of
from ...distributed.stream import Stream, stream_points
from ...posterior.draws import PartitionDraw, drawn
from ...running.engine import Draw
from ..allocations import Climb, extrapolate, pairs, start, stochastic_sweep
from ..factors import Placed, allocate, best_places, chunks, family_of, joined, see, union, update_factors
from ..steps import M, Minibatch, S, Steps, Stochastic
from ..sums import Sums
from .factors import VariationalPartition, expected_prior
from .unions import is_promising

P = TypeVar("P", bound=VariationalPartition)
R = TypeVar("R", bound=RowData)

init = partial(start, VariationalPartition)
seeded = partial(start, VariationalPartition, observes=False)


def promising(state: VariationalPartition, data: Data, model: Mixture) -> Iterator[VariationalPartition]:
    """The unions of pairs of components that might raise the bound, judged by sums over points; then of whole chains.

    Where several components share what one could have, each union of two may lower the bound, though that of all
    raises it.
    """
    tried, links = pairs(state, model), list[list[int]]()
    promise = host.answers((is_promising(state, data, model, *pair) for pair in tried), state.sizes)
    for pair, promises in zip(tried, promise, strict=True):
        if promises:
            links.append(pair)
            yield union(state, data, model, *pair)
    for kept, *absorbed in chained(links):
        if len(absorbed) > 1:
            yield union(state, data, model, kept, *absorbed)


def chained(links: list[list[int]]) -> list[list[int]]:
    """The groups of numbers that pairs link to one another, directly or by others."""
    groups = list[set[int]]()
    for pair in links:
        linked = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in linked] + [set(pair).union(*linked)]
    return [sorted(group) for group in groups]


def unions(state: P, data: object, model: Mixture | BNMC) -> Iterator[P]:
    """The unions of the most promising pairs, for states that keep responsibilities."""
    for kept, absorbed in pairs(state, model):
        yield replace(state, responsibilities=joined(state.responsibilities, kept, absorbed))


POINTS = Climb(update_factors, allocate, promising)
sweep, ascend, merge = POINTS.sweep, POINTS.ascend, POINTS.merge


def assign(state: VariationalPartition, data: Data, model: Mixture) -> Tensor:
    """The most probable component [N] of each row."""
    return best_places(state, data, model, see(state.classifiers, data, model)).argmax(1)


def summary(state: VariationalPartition, data: Placed | Stream[Any], model: Mixture) -> Draw:
    """The draw that the posterior keeps; with too many rows for responsibilities, their most probable components."""
    a, b = state.sticks
    mixture = log_stick_weights(a / (a + b)).to(state.mean)
    if state.num_dropped:
        assert not isinstance(data, Stream)  # nothing is dropped from a stream, since nothing is kept
        labels = torch.cat([assign(state, some, model) for _, some in chunks(True, data, model)])
    else:
        labels = state.responsibilities.argmax(1)
    kept = PartitionDraw(
        assignments=labels,
        hyperparameters=state.hyperparameters,
        log_mixture=torch.cat([mixture, mixture.new_tensor([-torch.inf])]),
        weights=state.mean,
        precision_tril=state.precision_tril,
        sticks=state.sticks,
        prior_factor=state.q,
        num_seen=torch.tensor([float(cast(Data, data).total_weight)], dtype=torch.float64),
    )
    if not state.num_dropped:
        kept["responsibilities"] = state.responsibilities
    return drawn(kept, expected_prior(state, model).hyper)


def restored_fields(kept: Draw, data: Data, family: ExponentialFamily, truncation: int) -> dict[str, Any]:
    """The fields of a partition in a draw, without rows and classifiers."""
    return {
        **Sums(family, data.rows(slice(0, 0)), truncation, keep=True).fields(),
        "hyperparameters": kept["hyperparameters"],
        "sticks": kept["sticks"],
        "q": kept["prior_factor"],
        "bound": kept["sticks"].new_zeros(()),
    }


def restored_partition(kept: Draw, data: Data, model: Mixture) -> VariationalPartition:
    """Restore the state, without rows, from the draw that was made of it."""
    fields = restored_fields(kept, data, family_of(model), model.truncation)
    return VariationalPartition(**fields, mean=kept["weights"], precision_tril=kept["precision_tril"])


# -- minibatches of rows, for all structures ---------------------------------------------------------------------------


def first_rows(data: R, num_rows: int, generator: torch.Generator) -> R:
    """The rows on which a stochastic fit starts."""
    if (number := data.span[1]) <= num_rows:
        return data
    chosen = torch.randperm(number, generator=generator, device=data.targets.device)[:num_rows]
    return data.rows(own_of(chosen.sort().values, data.num_data))


def minibatch(data: R, size: int, generator: torch.Generator) -> Minibatch[R]:
    """Draw `size` rows with replacement, in proportion to their weights; in the batch each counts once."""
    if data.weights is None:
        number = data.span[1]
        chosen = torch.randint(number, (size,), generator=generator, device=data.targets.device)
        rows: R = data.rows(own_of(chosen, data.num_data, data.span))
        return Minibatch(rows.counting(size), number / size)
    batch: Any = data.rows(own_of(draw_rows(data.weights, size, generator), data.num_data))
    return Minibatch(replace(batch, weights=None).counting(size), data.total_weight / size)


def by_rows(
    extrapolate: Callable[[S, R, M, int, float], S],
    sweep: Callable[[S, Minibatch[R], M, float], S],
    read: Callable[..., tuple[M, Stream[R]]],
    assign: Callable[[S, R, M], Tensor] | None = None,
    climb: Callable[[S, R, M], S] | None = None,
) -> Stochastic[S, R, M]:
    """Stochastic steps on rows drawn in proportion to their weights; `assign` gives the component [n] of each."""
    return Stochastic(first_rows, attrgetter("total_weight"), extrapolate, minibatch, sweep, read, assign, climb)


STEPS = Steps(
    state=VariationalPartition,
    init=init,
    sweep=sweep,
    complete=allocate,
    draw=summary,
    stochastic=by_rows(extrapolate, stochastic_sweep, stream_points, assign),
)
