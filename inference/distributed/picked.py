"""Access to single rows by their numbers, where the rows of all ranks are numbered rank after rank.

The numbers are the same on every rank. With one process they are indices. If the `span` of this rank's rows is known,
it is passed on, which saves an exchange.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models import host
from ...models.distributions.sampling import uniforms
from ...models.sparse import Rows
from ...models.sums import all_count, all_rows, all_sum, all_sums, apart, ranks, span
from .collectives import own_draws

Span = tuple[int, int] | None
"""The number of this rank's first row among all rows, and the number of all rows; None: not known."""


def taken(table: Rows, index: Tensor, at: Span = None) -> Rows:
    """The rows [M, ...] with numbers `index` [M], on every rank, of a table that has this rank's rows [n, ...]."""
    if ranks() is None:
        return table[index]
    place, own = _places(index, len(table), at)
    mine = table[place]
    mine = mine.to_dense() if mine.is_sparse else mine
    found = mine.new_zeros(len(index), *mine.shape[1:])
    found[own] = mine
    return all_sum(found)


def own_of(index: Tensor, number: int, at: Span = None) -> Tensor:
    """The indices among this rank's `number` rows of those rows with numbers `index` [M] that are here."""
    return index if ranks() is None else _places(index, number, at)[0]


def top(values: Tensor, count: int, at: Span = None) -> Tensor:
    """The numbers [M] of the rows with the largest values, from the values [n] of this rank's rows.

    Of equal values those of the first rows count as larger.
    """
    return tops(values.unsqueeze(1), [count], at)[0]


def tops(values: Tensor, counts: list[int], at: Span = None) -> list[Tensor]:
    """`top` for each column of values [n, S], with a count for each column."""
    columns = list(zip(values.T, counts, strict=True))
    if ranks() is None or not columns:
        return [_largest(column, count) for column, count in columns]
    start, _ = span(len(values)) if at is None else at
    told = list[Tensor]()
    for column, count in columns:
        best = _largest(column, min(count, len(column)))
        spare = 0, count - len(best)  # every rank fills `count` entries, padded at the end
        told += [apart(pad(column[best], spare, value=-torch.inf)), apart(pad(best + start, spare))]
    found = [part.flatten() for part in all_sums(*told)]
    largest, numbers = found[::2], found[1::2]
    return [own[_largest(each, count)] for each, own, count in zip(largest, numbers, counts, strict=True)]


def _largest(values: Tensor, count: int) -> Tensor:
    """The indices [count] of the largest values [n] in falling order, equal ones in rising order of their indices."""
    best = values.topk(count)
    if not count:
        return best.indices
    least, index = best.values[-1], best.indices
    if not host.on_cpu(values) or int((values >= least).sum()) > count:  # a GPU would have to wait for the number
        above, equal = values > least, values == least
        chosen = above | (equal & (equal.cumsum(0) <= count - above.sum()))
        index = chosen.byte().topk(count).indices
    index = index.sort().values
    return index[values[index].sort(descending=True, stable=True).indices]


def draw_rows(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The numbers [count] of rows drawn independently in proportion to `weights` [n]."""
    ends, number = weights.double().cumsum(0), len(weights)
    levels = uniforms((count,), generator).to(ends)
    if ranks() is None:
        return torch.searchsorted(ends, levels * ends[-1]).clamp(max=number - 1)
    _, total = span(number)
    masses = all_rows(ends[-1:] if number else ends.new_zeros(1)).cumsum(0)
    before = masses[_rank() - 1] if _rank() else masses.new_zeros(())
    below = torch.searchsorted(before + ends, levels * masses[-1])
    return all_sum(below).clamp(max=total - 1)


def sampled_rows(number: int, most: int, generator: torch.Generator) -> Tensor:
    """The numbers [M] of at most `most` random rows among those of all ranks [N]; `number` rows are here."""
    if most >= (total := all_count(number)):
        return torch.arange(total, device=generator.device)
    device = generator.device
    drawn = own_draws(
        number, lambda n, stream: torch.rand(n, generator=stream, dtype=torch.float32, device=device), generator
    )
    return top(drawn, most).sort().values


def in_turns(change: Callable[[], object], shared: list[Tensor]) -> None:
    """Call `change` on one rank after another; it changes tensors [...] that all ranks share, in place."""
    those = ranks()
    for number in range(1 if those is None else those.size):
        before = torch.cat([part.flatten() for part in shared])
        if _rank() == number:
            change()
        if those is not None:
            now = before + all_sum(torch.cat([part.flatten() for part in shared]) - before)
            for part, own in zip(shared, now.split([part.numel() for part in shared]), strict=True):
                part.copy_(own.view_as(part))


def _places(index: Tensor, number: int, at: Span) -> tuple[Tensor, Tensor]:
    """The indices here [M'] of those rows with numbers `index` [M] that are here, and which ones these are [M]."""
    start, _ = span(number) if at is None else at
    own = (index >= start) & (index < start + number)
    return index[own] - start, own


def _rank() -> int:
    those = ranks()
    return 0 if those is None else those.number
