"""The kernel of all structures whose points or steps are allocated to components: the climb, and a stochastic step.

A sweep sets the global factors to their optimum given the allocations, then these to theirs: the bound never falls.
What differs is an `Allocations`: responsibilities that are independent given the components (`partition`), or a Markov
chain's by forward-backward (`sequence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from torch import Tensor

from ..protocol import KernelData
from .factors import MERGE_ROUNDS, SETTLED, Variational

S = TypeVar("S", bound=Variational)
D = TypeVar("D", bound=KernelData)
M = TypeVar("M")


@dataclass(frozen=True)
class Allocations(Generic[S, D, M]):
    """What a kind of allocations says, each of (state, data, model)."""

    update_factors: Callable[[S, D, M], S]  # all factors but the allocations
    allocate: Callable[[S, D, M], S]  # the allocations, and the bound there
    reorder: Callable[[S, M], S]  # components in their best order
    unions: Callable[[S, D, M], Iterable[S]]  # pairs of components as one, those first that may gain most

    def sweep(self, state: S, data: D, model: M) -> S:
        """All factors, then the allocations; components are reordered and merged where the bound rises."""
        first = state.num_data != data.num_data  # the first full sweep after stochastic steps
        if first:
            state = self.allocate(state, data, model)
        before = state.bound
        if first or state.may_merge:  # later on, sizes hardly change
            state = self.reorder(state, model)
        state = self.ascend(state, data, model)
        if state.may_merge and state.bound - before <= SETTLED * state.sizes.sum():
            state = self.merge(state, data, model)
        return state

    def ascend(self, state: S, data: D, model: M) -> S:
        """One round of the block updates."""
        return self.allocate(self.update_factors(state, data, model), data, model)

    def merge(self, state: S, data: D, model: M) -> S:
        """The first of the most promising unions that raises the bound, or the state as it is.

        Coordinate ascent hardly ever empties a component that has points, so it would keep all that it started from
        (Bryant & Sudderth 2012; Hughes & Sudderth 2013). A union is given up once its last rise, repeated for the
        rounds that are left, would not take it there.
        """
        for union in self.unions(state, data, model):
            for left in reversed(range(MERGE_ROUNDS)):
                before, union = union.bound, self.ascend(union, data, model)
                late = left < MERGE_ROUNDS - 1  # the first round makes good what the union itself has lost
                if late and union.bound + left * (union.bound - before) <= state.bound:
                    break
            else:
                return union
        return replace(state, may_merge=False)


def estimated(local: Variational, scale: float, penalty: Tensor) -> Tensor:
    """The bound [] of all data, by that of a minibatch that stands for them; global factors cost `penalty`."""
    return scale * (local.bound + penalty) - penalty
