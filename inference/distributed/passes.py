"""Passes over blocks of rows in place of ranks, for a function of rows that are never all in memory.

To such a function a block is like a rank. The ranks of a group wait for a sum over all of them. A block instead adds
its part to the sum and ends the function, and the next block follows. Once the sum is known, the function is called
again from its beginning; it returns in the pass after its last sum. So S sums take S + 1 passes, in the memory of one
block. If ranks have several blocks each, these are numbered rank after rank, and at the end of a pass the ranks add the
parts of their blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...models.ranks import Ranks
from ...models.sums import all_largest, all_sums, among, span, told
from .collectives import on_all

B = TypeVar("B")
R = TypeVar("R")


@dataclass(eq=False)
class _Tape:
    """The sums that a function has asked for: the known ones, and the parts of the next one from the blocks so far."""

    known: list[Tensor] = field(default_factory=list)  # sums of earlier passes
    part: Tensor | None = None  # part of the next sum, from the blocks so far
    join: Callable[[Tensor, Tensor], Tensor] = torch.add  # how parts are combined
    parts: list[list[_Tape]] = field(default_factory=list)  # of the functions called by `each`
    found: tuple[Any, Tensor] | None = None  # its result, equal for all blocks, and the state of the generator
    asked: int = 0  # number of sums asked for on this block so far
    called: int = 0  # number of calls of `each` on this block so far

    def waiting(self) -> list[_Tape]:
        """The tapes of all functions that wait for a sum."""
        inner = [part.waiting() for parts in self.parts for part in parts if part.found is None]
        return [*([] if self.part is None else [self]), *chain.from_iterable(inner)]


class Blocks(Ranks):
    """Blocks in place of ranks: `all_sum` and related functions call this object. One block is in memory at a time."""

    def __init__(self, own: int, generator: torch.Generator) -> None:
        self.first, size = span(own)
        self.__dict__.update(size=size, number=self.first)
        self.generator, self.tape = generator, _Tape()

    def begin(self, place: int) -> None:
        """Start the function on the block with this index among those of this rank."""
        self.__dict__["number"] = self.first + place
        self.tape.asked = self.tape.called = 0

    def turn(self) -> None:
        """End a pass: all blocks have added to the sums that functions wait for, so the sums are now known."""
        waiting = self.tape.waiting()
        added = [tape for tape in waiting if tape.join is torch.add]
        for tape, total in zip(added, all_sums(*(_part(tape) for tape in added)) if added else [], strict=True):
            tape.known.append(total)
        for tape in waiting:
            if tape.join is not torch.add:
                tape.known.append(all_largest(_part(tape)))
            tape.part = None

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum [...] over all blocks; ends the function if it is not known yet."""
        return self._asked(tensor, torch.add)

    def largest(self, tensor: Tensor) -> Tensor:
        """The largest entries [...] over all blocks; ends the function if they are not known yet."""
        return self._asked(tensor, torch.maximum)

    def each(self, works: list[Callable[[], R]]) -> list[R]:
        """The results of functions that depend neither on the block nor on one another; their sums share passes."""
        told()  # each function starts and ends without pending sums
        tape = self.tape
        if tape.called == len(tape.parts):
            tape.parts.append([_Tape() for _ in works])
        parts = tape.parts[tape.called]
        tape.called += 1
        for part, work in zip(parts, works, strict=True):
            if part.found is not None:
                self.generator.set_state(part.found[1])
                continue
            part.asked = part.called = 0
            self.tape = part
            try:
                with among(self):
                    found = work()
                    told()
                part.found = found, self.generator.get_state()
            except _Said:
                pass
            finally:
                self.tape = tape
        results = [part.found[0] for part in parts if part.found is not None]
        if len(results) < len(parts):
            raise _Said
        return results

    def _asked(self, tensor: Tensor, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        tape = self.tape
        if not tensor.numel():
            return tensor
        tape.asked += 1
        if tape.asked <= len(tape.known):
            return tape.known[tape.asked - 1].clone()
        tape.part, tape.join = tensor.clone() if tape.part is None else join(tape.part, tensor), join
        raise _Said


def over_blocks(
    blocks: Callable[[], Iterable[B]], number: int, work: Callable[[B], R], generator: torch.Generator
) -> list[R]:
    """The results of `work` for `number` blocks [B], with sums over all blocks where it calls `all_sum`.

    `blocks` yields the same blocks in the same order in each pass. `work` draws from the generator alone. Each rank has
    `number` blocks of its own.

    Raises
    ------
    ValueError    on all ranks if `blocks` or `work` fails on one.
    """
    those, start = Blocks(number, generator), generator.get_state()

    def passed() -> list[R]:
        found = list[R]()
        with among(None):  # ranks may have more blocks or fewer
            for place, block in enumerate(blocks()):
                those.begin(place)
                generator.set_state(start)
                with suppress(_Said), among(those):
                    found.append(work(block))
        return found

    while not (found := on_all(passed, "go on")):
        those.turn()
    return found


def _part(tape: _Tape) -> Tensor:
    assert tape.part is not None
    return tape.part


class _Said(Exception):
    """A block has added its part to a sum that is not known yet; the function is called again in the next pass."""
