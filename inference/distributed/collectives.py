"""The seams for many machines: sums over points, and whose random numbers they are. On one machine both do nothing.

Each rank holds some of the points and all of the components. `all_sum` is an all-reduce, and the functions of
`models.sums` and `picked` that are made of it are the only way by which ranks hear of one another, so that everything
that is a sum over points goes through it: counts, statistics, Gram matrices, bounds, and defaults that come from the
data. A fit's `generator` draws the same numbers on every rank, which is right for whatever all ranks share (components,
classifiers, hyperparameters); what belongs to a rank's own points (assignments, augmentation variables) is drawn from
`own_stream(generator)`, or from `own_draws` where it should not matter which rank has which rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...models.sums import all_any as all_any
from ...models.sums import all_count as all_count
from ...models.sums import all_largest as all_largest
from ...models.sums import all_named as all_named
from ...models.sums import all_rows as all_rows
from ...models.sums import all_sum as all_sum
from ...models.sums import ranks, span


def own_stream(generator: torch.Generator) -> torch.Generator:
    """The stream for draws that belong to a rank's own points: of each rank another one, that the generator seeds."""
    those = ranks()
    if those is None:
        return generator
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(generator.device).manual_seed(seed + those.number)


def own_draws(number: int, draw: Callable[[int], Tensor]) -> Tensor:
    """The entries [n, ...] that belong to this rank's rows of a draw [N, ...] for the rows of all ranks, which they
    share."""
    start, total = span(number)
    return draw(total)[start : start + number]
