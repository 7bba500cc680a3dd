"""Minibatches from a source of rows, as the data of kernels.

A source is read once for its labels and the number of its rows. Its first rows are kept: the defaults and the start of
a fit come from them, and row-by-row results of the posterior are for them alone. So memory does not grow with N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ...models.arrays import as_features, as_sequences
from ...models.base import coding_of
from ...models.bnmc import BNMC
from ...models.data import Data
from ...models.label_data import LabelData
from ...models.mixture import Mixture
from ...models.numbers import as_tensor
from ...models.sequence import Sequences, StateSpace
from ...models.sparse import Rows, SparseRows
from ...models.warning import warn
from .collectives import all_count, on_all, span
from .sources import Block, RowSource


class Counted(Protocol):
    """The property that all data have."""

    @property
    def num_data(self) -> int:
        """N, the number of points, documents or steps."""


class RowsInOrder(UserWarning):
    """The first rows of a source lack labels that later rows have, or rows of one label follow one another.

    That happens where rows are sorted.
    """


B = TypeVar("B")
D = TypeVar("D", bound=Counted)
R = TypeVar("R")


@dataclass
class Stream(Generic[D]):
    """A source of N points or steps, and the first of them, from which a fit starts."""

    source: RowSource
    size: int  # rows of a block
    convert: Callable[[Block], D]
    head: list[Block]  # the first blocks, for which the posterior has row-by-row results
    first: D
    num_own: int  # points or steps of this rank's source
    num_data: int
    num_units: int  # points, or sequences
    largest: int  # sum over ranks of the largest block of each, in units
    marks: list[tuple[int, float]] = field(default_factory=list)  # of each block, if later passes must find it again
    _batches: Iterator[D] = field(default_factory=lambda: iter(()), init=False, repr=False)
    _next: int = field(default=-1, init=False, repr=False)  # the step that the next of `_batches` is for

    @property
    def X(self) -> Tensor:
        """The first rows [M, D]."""
        first: Any = self.first
        X: Tensor = first.X
        return X

    @property
    def total_weight(self) -> float:
        """N: in a stream each point counts once."""
        return float(self.num_data)

    def at(self, step: int) -> D:
        """The batch of a step: blocks in turn, from the start again after the last one."""
        if step != self._next:
            self._batches = self._endless(step)
        self._next = -1  # until it has been read
        batch = next(self._batches)
        self._next = step + 1
        return batch

    @property
    def num_kept(self) -> int:
        """The number of rows for which the posterior has entries, such as assignments: the first ones."""
        return sum(block[0].shape[0] for block in self.head)

    def sampled(self) -> Iterator[D]:
        """The blocks of the first rows."""
        return map(self.convert, self.head)

    def each(self) -> Iterator[D]:
        """All blocks, in one more pass over the source."""
        return _named(self.source, self.source.blocks(self.size), self.convert)

    def _endless(self, skipped: int) -> Iterator[D]:
        """The batches of all steps after the first `skipped`, whose blocks are read and dropped."""
        while True:
            found = number = 0
            wanted = chain(repeat(False, skipped), repeat(True))
            blocks = zip(self.source.blocks(self.size), wanted, strict=False)
            for length, batch in _named(self.source, blocks, self._read):
                found, number = found + length, number + 1
                if batch is not None:
                    yield batch
            if found != self.num_own:
                raise ValueError(
                    f"{self.source.name} gives {found} rows in a later pass, but gave {self.num_own} in the first. "
                    "Give the same rows in every pass."
                )
            skipped = max(0, skipped - number) % number

    def _read(self, given: tuple[Block, bool]) -> tuple[int, D | None]:
        """The number of rows of a block, and its batch if it is wanted."""
        block, is_wanted = given
        return block[0].shape[0], self.convert(block) if is_wanted else None


def stream_points(
    source: RowSource, size: int, model: Mixture, num_first: int, *, in_turn: bool = True
) -> tuple[Mixture, Stream[Data]]:
    """The resolved model and the stream of batches (X [n, D], y [n]) or (X [n, D], None); each rank has its own source.

    One missing label anywhere is enough for a loss that allows them. `in_turn` says that a step sees one batch.
    """
    head, X = on_all(lambda: _begin(source, size, model.as_rows))
    coding, said, total, largest, like = coding_of(model.checked()), list[Tensor](), 0, 0, X.new_zeros(0, 0)
    y = None if coding is None or head[0][1] is None else torch.cat([as_tensor("y", y) for _, y in head])

    def gist(outline: tuple[int, Any]) -> int:
        number, targets = outline
        if targets is not None and coding is not None:
            values = coding.values(targets, like.new_zeros(number, 0))
            said[:] = [_gist(torch.cat([*said, values]), coding.has_classes)]
        return number

    for number in on_all(lambda: list(_named(source, source.outline(size), gist))):
        total, largest = total + number, max(largest, number)
    if said:  # all classes, not only those of the first rows
        model = model.checked().resolve_targets(like.new_zeros(len(said[0]), 0), said[0])
        _warn_of_order(source, X.new_zeros(0) if y is None else y, model.classes, in_turn)
    some = slice(0, max(0, _NUM_DEFAULTS - span(total)[0]))  # the same rows, however ranks split them
    model = model.resolve(X[some], None if y is None else y[some])

    def convert(block: Block) -> Data:
        X, y = block
        return model.data(model.as_rows(X, num_features=model.num_features), y)

    first = model.data(X[:num_first], None if y is None else y[:num_first])
    number = all_count(total)
    return model, Stream(source, size, convert, head, first, total, number, number, all_count(largest))


def stream_sequences(
    source: RowSource, size: int, model: StateSpace, num_first: int
) -> tuple[StateSpace, Stream[Sequences]]:
    """The resolved model and the stream of batches (X [n, D], lengths) or (X [n, D], None): whole sequences, or one."""
    total, num_sequences, largest = 0, 0, 0
    for number, lengths in source.outline(size):
        num_here = 1 if lengths is None else len(lengths)
        total, num_sequences, largest = total + number, num_sequences + num_here, max(largest, num_here)
    head, X = _begin(source, size, lambda X: as_tensor("X", X), "steps")
    joined = [size for rows, lengths in head for size in as_sequences(rows, lengths)[1]]
    model, data = model.prepare(X, None, joined)
    ends = torch.tensor(joined).cumsum(0)
    first = data.sequences(list(range(1 + int((ends < num_first).sum())))) if ends[-1] > num_first else data
    sizes = total, total, num_sequences, largest
    return model, Stream(source, size, lambda block: model.data(*block), head, first, *sizes)


def stream_labels(source: RowSource, size: int, model: BNMC, num_first: int) -> tuple[BNMC, Stream[LabelData]]:
    """The resolved model and the stream of batches (X [n, D], Y [n, C]), dense or sparse."""
    head, X = _begin(source, size, lambda X: as_features(X, num_features=model.num_features))
    total, largest, missing, like = 0, 0, False, X.new_zeros(0, 0)

    def read(outline: tuple[int, Any]) -> tuple[int, bool]:
        number, y = outline
        labels = model.labels(like.new_zeros(number, 0), y)
        values = labels.values if labels.is_sparse else labels
        return number, bool(values.isnan().any())

    for number, some in _named(source, source.outline(size), read):
        total, largest, missing = total + number, max(largest, number), missing or some
    Y = stacked([model.labels(like.new_zeros(rows.shape[0], 0), y) for rows, y in head])
    model = model.resolve(X, Y)
    if missing:
        model = model.with_missing()
    first = model.data(X[:num_first], Y[:num_first])
    return model, Stream(source, size, lambda block: model.data(*block), head, first, total, total, total, largest)


def _begin(source: RowSource, size: int, read: Callable[[Any], Rows], unit: str = "rows") -> tuple[list[Block], Rows]:
    """The first blocks, and their rows [M, D] together, as `read` converts them."""
    head, inputs, total = list[Block](), list[Rows](), 0

    def read_block(block: Block) -> tuple[Block, Rows]:
        rows = read(block[0])
        if inputs and rows.shape[1:] != inputs[0].shape[1:]:
            raise ValueError(
                f"X has shape {tuple(rows.shape)}, and that of the first block is {tuple(inputs[0].shape)}; all blocks "
                "must have as many columns."
            )
        return block, rows

    for block, rows in _named(source, source.blocks(size), read_block):
        head.append(block)
        inputs.append(rows)
        total += rows.shape[0]
        if total >= _NUM_DEFAULTS:
            break
    if total < 2:
        raise ValueError(f"X gives {total} {unit} ({source.name}); it must give at least 2.")
    return head, stacked(inputs)


def _named(source: RowSource, blocks: Iterable[B], read: Callable[[B], R]) -> Iterator[R]:
    """Convert each block by `read`; errors name the block and count rows within it."""
    for place, block in enumerate(blocks):
        try:
            found = read(block)
        except ValueError as error:
            raise ValueError(f"block {place} of {source.name}: {error}") from None
        yield found


def _warn_of_order(source: RowSource, first: Tensor, classes: Tensor | None, in_turn: bool) -> None:
    """Warn if none of the first labels [M] has one of the classes [L], or if a step sees few of those that alternate.

    In random order M labels with shares p have 1 + (M - 1) (1 - sum p^2) runs of equal ones, on average.
    """
    if classes is None:
        return
    first = first.to(classes) if first.dtype == torch.bool else first
    late = classes[~torch.isin(classes, first)]
    known = first[torch.isin(first, classes)]
    shares = torch.unique(known, return_counts=True)[1] / max(1, len(known))
    expected = 1 + (len(known) - 1) * (1 - float(shares.square().sum()))
    number = 1 + int((known.diff() != 0).sum())
    if len(late):
        what = f"The first rows of {source.name}, which the fit starts from, have no label {late[0].item():g}. If rows"
    elif in_turn and number < expected / 2 and expected - number > 5 * expected**0.5:
        what = (
            f"The labels of the first {len(known)} rows of {source.name} change {number - 1} times, in random order "
            f"about {expected - 1:.0f} times. If rows"
        )
    else:
        return
    message = f"{what} are sorted in some way, shuffle them once: stochastic steps see one block after another."
    warn(message, RowsInOrder)


def _gist(y: Tensor, has_classes: bool) -> Tensor:
    """The values among y [n] that determine a target's classes or range, and NaN if a value is missing."""
    missing = y.isnan()
    known = y[~missing]
    ends = known.unique() if has_classes or not len(known) else torch.stack(known.aminmax())
    return torch.cat([ends, y[missing][:1]])


def stacked(parts: list[Rows]) -> Rows:
    """All rows [N, D] of some blocks, dense or sparse; the list is emptied, to save memory."""
    rows, width = list(parts), parts[0].shape[1]
    parts.clear()
    if isinstance(rows[0], Tensor):
        return torch.cat(rows)
    sizes = torch.cat([part.starts.diff() for part in rows])
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    columns, values = (torch.cat([getattr(part, name) for part in rows]) for name in ("columns", "values"))
    return SparseRows(starts, columns, values, width)


_NUM_DEFAULTS = 100_000  # rows for defaults: enough for means and variances
