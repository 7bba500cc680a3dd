"""Passes over blocks of rows in place of ranks: a function of the rows that are here, which are never all here.

A block is to such a function what a rank is. The ranks of a group wait for a sum over all of them; a block leaves its
part of it, and makes room for the next one. So the function runs again from its beginning once the sum is known, and
ends in the pass after its last sum: S sums take S + 1 passes, in the memory of one block. Where ranks have blocks each,
these are numbered one rank's after the other's, and at the end of a pass the ranks add what their blocks have said.
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
    """The sums that a function has asked for: those that are known, and the next one as far as blocks have added to
    it."""

    known: list[Tensor] = field(default_factory=list)  # sums of the passes before
    part: Tensor | None = None  # of the next sum, from the blocks so far
    join: Callable[[Tensor, Tensor], Tensor] = torch.add  # of the parts
    parts: list[list[_Tape]] = field(default_factory=list)  # of the functions that it called by `each`
    found: tuple[Any, Tensor] | None = None  # what it gave, the same for all blocks, with what is left then
    asked: int = 0  # sums on this block so far
    called: int = 0  # calls of `each` on this block so far

    def waiting(self) -> list[_Tape]:
        """The tapes of all functions that wait for a sum."""
        inner = [part.waiting() for parts in self.parts for part in parts if part.found is None]
        return [*([] if self.part is None else [self]), *chain.from_iterable(inner)]


class Blocks(Ranks):
    """Blocks in the place of ranks: `all_sum` and its kin ask this object. One block is in memory at a time."""

    def __init__(self, own: int, generator: torch.Generator) -> None:
        self.first, size = span(own)
        self.__dict__.update(size=size, number=self.first)
        self.generator, self.tape = generator, _Tape()

    def begin(self, place: int) -> None:
        """Begin the function on the block at this place, from 0, among those of this rank."""
        self.__dict__["number"] = self.first + place
        self.tape.asked = self.tape.called = 0

    def turn(self) -> None:
        """End a pass: all blocks have added to the sums that functions wait for, so these are known now."""
        waiting = self.tape.waiting()
        added = [tape for tape in waiting if tape.join is torch.add]
        for tape, total in zip(added, all_sums(*(_part(tape) for tape in added)) if added else [], strict=True):
            tape.known.append(total)
        for tape in waiting:
            if tape.join is not torch.add:
                tape.known.append(all_largest(_part(tape)))
            tape.part = None

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum [...] over all blocks; ends the function where it is not known yet."""
        return self._asked(tensor, torch.add)

    def largest(self, tensor: Tensor) -> Tensor:
        """The largest entries [...] over all blocks; ends the function as `sum` does."""
        return self._asked(tensor, torch.maximum)

    def each(self, works: list[Callable[[], R]]) -> list[R]:
        """What functions give that do not depend on the block, nor on one another: their sums are of the same passes,
        and what has been found is not computed again."""
        told()  # each function begins and ends with nothing that waits
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
    """What `work` gives of each of so many blocks [B], with sums over all of them where it asks for `all_sum`.

    `blocks` gives them anew in each pass, the same ones in the same order. `work` draws from the generator alone. Each
    rank has so many blocks of its own.

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
    """A block has added its part to a sum that is not known yet; the function begins again in the next pass."""
