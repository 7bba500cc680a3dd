"""Exchanges between ranks: sums over points, and random streams. With one process both do nothing.

Each rank holds some of the points and all of the components. `all_sum` is an all-reduce. It, and the functions of
`models.sums` and `picked` that are built on it, are the only communication between ranks: every sum over points uses
them, such as counts, statistics, Gram matrices, bounds, and defaults computed from the data. A fit's `generator` draws
the same numbers on every rank, as is right for whatever all ranks share (components, classifiers, hyperparameters).
Variables of a rank's own points (assignments, augmentation variables) are drawn from `own_stream(generator)`, or from
`own_draws` if the draws must not depend on which rank has which rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ...models.sums import Later as Later
from ...models.sums import all_any as all_any
from ...models.sums import all_count as all_count
from ...models.sums import all_largest as all_largest
from ...models.sums import all_named as all_named
from ...models.sums import all_rows as all_rows
from ...models.sums import all_sum as all_sum
from ...models.sums import all_sums as all_sums
from ...models.sums import each_rank as each_rank
from ...models.sums import largest_later as largest_later
from ...models.sums import largest_of as largest_of
from ...models.sums import ranks
from ...models.sums import span as span

T = TypeVar("T")


def own_stream(generator: torch.Generator) -> torch.Generator:
    """The random stream for a rank's own points; the shared generator seeds one stream for each rank."""
    those = ranks()
    if those is None:
        return generator
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(generator.device).manual_seed(seed + those.number)


def agreed(*flags: bool) -> list[bool]:
    """Whether any rank has set each flag, such as one for a clock or Ctrl-C; the answer is the same on all ranks."""
    return agreed_later(*flags)()


def agreed_later(*flags: bool) -> Callable[[], list[bool]]:
    """A function that returns `agreed`; it joins the next exchange of ranks."""
    found = Later(torch.tensor(flags).long())
    return lambda: found().bool().tolist()


def on_all(work: Callable[[], T], act: str = "begin") -> T:
    """The result of `work`, which must not exchange anything; if it fails on one rank, all ranks raise ValueError."""
    if (those := ranks()) is None:
        return work()
    found, failure = list[T](), ""
    try:
        found.append(work())
    except Exception as error:  # whatever a part raises on rows or files that it does not take
        failure = str(error) or repr(error)
    failed = all_any(torch.tensor(bool(failure)))  # a number alone where all is well, as before each step
    for rank, said in enumerate(those.objects(failure) if failed else []):
        if said:
            raise ValueError(f"Rank {rank} of {those.size} cannot {act}: {said}")
    return found[0]


def own_draws(
    number: int,
    draw: Callable[[int, torch.Generator], Tensor],
    generator: torch.Generator,
    at: tuple[int, int] | None = None,
) -> Tensor:
    """The entries [n, ...] for this rank's rows of a random array [N, ...] for the rows of all ranks.

    `number` is n, and `at` the rows' `span`, if known. draw(m, stream) draws m entries. If there are many rows, each
    block has a stream of its own, and a rank draws only the blocks of its rows.
    """
    start, total = span(number) if at is None else at
    stop = start + number
    if total <= _BLOCK:
        return draw(total, generator)[start:stop]
    seed, parts = int(torch.randint(2**62, (), generator=generator, device=generator.device)), list[Tensor]()
    for first in range(start - start % _BLOCK, max(start + 1, stop), _BLOCK):
        stream = torch.Generator(generator.device).manual_seed(seed + first // _BLOCK)
        parts.append(draw(min(_BLOCK, total - first), stream)[max(0, start - first) : stop - first])
    return torch.cat(parts)


def own_exponentials(like: Tensor, generator: torch.Generator, at: tuple[int, int] | None = None) -> Tensor:
    """Standard exponential numbers [n] for this rank's rows, by `own_draws`, in the precision of `like` [n]."""
    return own_draws(len(like), lambda n, stream: like.new_empty(n).exponential_(generator=stream), generator, at)


def each(works: list[Callable[[], T]]) -> list[T]:
    """The results of the functions, the same on all ranks; no function may need the result of another one."""
    those = ranks()
    return [work() for work in works] if those is None else those.each(works)


def once(work: Callable[[], T], again: Callable[[T], T] = lambda found: found) -> T:
    """The result of `work`, computed once; `again` replaces the part that depends on this rank's rows."""
    return work() if ranks() is None else again(each([work])[0])


_BLOCK = 2**16  # rows
