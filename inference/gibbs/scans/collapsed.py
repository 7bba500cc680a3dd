"""The collapsed scan: each point's component is drawn given all others, the likelihood's parameters integrated out.

    z_n = k      with weight  urn(n_k) p(x_n | the others in k) phi(y_n | eta_k)
    z_n = new    with weight  urn_new(K) p(x_n) I(x_n, y_n),     I = integral of phi(y_n | eta) N(eta; 0, nu^2 I)

n_k and K count without n; urn and urn_new are those of the prior, n_k and alpha for a Dirichlet process. If n was alone
in its component, that component is deleted with its classifier. A new component draws its classifier from N(eta; 0,
nu^2 I) phi(y_n | eta) / I, because I integrated it out. The augmentation variables are integrated out too, so they must
be drawn anew before the classifiers are. The scan is exact for the infinite model (Neal 2000, algorithm 3;
docs/derivations/mixtures, "Collapsed scan"; docs/derivations/priors, "Sticks and urns").

Where components repel, the factor is exp(h(f)) and I is an average over the hyperplanes of a reservoir, from which a
new component takes its own. If n is alone in a component, that component's hyperplane is one of those to choose from
(Neal 2000, algorithm 8; docs/derivations/repelling, "Collapsed and slice scans").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....models import host
from ....models.compiled import compiled_form, is_compiled, placed
from ....models.data import Data
from ....models.distributions.sampling import uniforms
from ....models.mixture import Mixture
from ...distributed.collectives import own_stream
from ..state import PartitionState
from .founders import Founders, Marginal, Reserved
from .slots import Compiled, Slots, double, goes_row_by_row, point_logits, steps_at_once, visit_all, visitor_of


def scan(
    state: PartitionState,
    data: Data,
    model: Mixture,
    generator: torch.Generator,
    *,
    shuffle: bool = True,
    compiled: bool | None = None,
) -> PartitionState:
    """Visit every point once, in random order or in the order of the rows.

    `compiled` chooses the code; by default it is compiled on the CPU for likelihoods with a compiled form, tensor code
    for any other likelihood or device. Returns a state with assignments in 0..K-1, all components occupied, and their
    weights [K, P, C].
    """
    slots = PartitionSlots(state, data, model)
    visit_all(visitor_of(slots, compiled), generator, shuffle=shuffle)
    return slots.replaced(state)


def scan_with_moves(
    state: PartitionState, data: Data, model: Mixture, generator: torch.Generator, *, num_moves: int
) -> PartitionState:
    """Make compiled split-merge proposals, then visit every point once, or several times if rows are few."""
    slots = PartitionSlots(state, data, model)
    visitor, stream, num_data = Compiled(slots), own_stream(generator), data.num_data
    if num_moves:
        order = torch.randperm(num_data, generator=stream)
        split_merge(visitor, order, uniforms((num_moves, num_data + 3), stream))
    visit_all(visitor, generator, shuffle=True, num_rounds=rounds_of(data))
    return slots.replaced(state)


def split_merge(visitor: Compiled, order: Tensor, levels: Tensor) -> None:
    """Make split-merge proposals with N + 3 uniform numbers each, levels [M, N + 3]; points are added in `order`."""
    from ..moves import _numba_split_merge  # compiles or loads machine code: only where a scan needs it

    slots, num_rows, position = visitor.slots, len(visitor.state.components), 0
    scratch, side = np.empty((num_rows + 1, 4)), np.empty(len(order), np.bool_)
    sides = placed(visitor.state, np.empty((num_rows, 4)))
    piece, propose = steps_at_once(4 * len(order) * visitor.width), visitor.entry(_numba_split_merge.split_merge)
    while position < len(levels):
        given = slots.arrays(), visitor.urn, order.numpy(), levels[: position + piece].numpy()
        position, full = propose(visitor.state, sides, scratch, side, *given, position)
        if full:
            slots.extend(len(slots.sizes))
            visitor.build()


def assignment_logits(
    n: int, state: PartitionState, data: Data, model: Mixture, *, compiled: bool | None = None
) -> Tensor:
    """Log weights [K + 1] of point n for the K components and a new one, up to a constant.

    A component that n is alone in has weight 0, unless components repel: n could then open a component with its
    hyperplane. `compiled` chooses the code, by default that of `scan`.
    """
    return point_logits(n, PartitionSlots(state, data, model), compiled=compiled)[: len(state.weights) + 1]


def moves_are_compiled(data: Data, model: Mixture) -> bool:
    """Whether the compiled scan can make split-merge proposals."""
    family, has_classifiers = model.likelihood, data.points.targets.shape[1] > 0
    return (
        host.on_cpu(data.X)
        and is_compiled(family)
        and not has_classifiers
        and goes_row_by_row(compiled_form(family), data)
    )


def rounds_of(data: Data) -> int:
    """The number of rounds that cost less than the rest of a sweep: several if rows are few.

    It may depend on the data only: if it depended on the state, the chain would be biased.
    """
    return max(1, min(_MOST_ROUNDS, _LITTLE_WORK // (data.num_data * data.X.shape[1])))


class PartitionSlots(Slots):
    """Slots of a partition: sizes [capacity] are the numbers of points, and a new component takes the first free slot.

    Attributes
    ----------
    log_sizes [N + 1] : log weight of a component by its number of points, without n
    log_opening [min(N, capacity) + 1] : log weight of a new component by the number K of the others
    """

    def __init__(self, state: PartitionState, data: Data, model: Mixture) -> None:
        exact, model = double(data, model)
        reservoir, room = state.reservoir, len(state.weights)
        founders: Founders = Marginal(exact, model) if reservoir is None else Reserved(reservoir, exact, model, room)
        self.prior, self.hyper = model.prior, state.hyper
        super().__init__(state.assignments, state.weights, model, exact, exact, founders)

    def count(self, capacity: int) -> None:
        self.sizes = self.counts = torch.bincount(self.labels, minlength=capacity)
        # up to `capacity` components only: a prior may compute these in every sweep
        log_sizes, log_opening = self.prior.urn(self.hyper, len(self.labels), min(capacity, len(self.labels)))
        self.log_sizes, self.log_opening = log_sizes, log_opening.contiguous()
        self.seen: Any = None  # the arrays for compiled code, until the tensors change

    def logits(self, n: int, log_predictive: Tensor) -> Tensor:
        counts, own, founders = self.sizes.clone(), self.labels[n], self.founders
        counts[own] -= 1
        log_opening = self.log_opening[(counts > 0).sum()]
        logits = torch.where(counts > 0, self.log_sizes[counts], -torch.inf)
        log_new = log_opening + founders.log_new(n)
        if counts[own] == 0:
            logits[own] = log_opening + founders.log_alone[0]
            log_new = log_new + founders.log_alone[1]
        if self.has_classifiers:
            logits = logits + self.log_margin[n]
        logits[(self.sizes == 0).to(torch.uint8).argmax()] = log_new
        return logits + log_predictive

    def move(self, n: int, own: int, chosen: int) -> None:
        self.sizes[own] -= 1
        self.sizes[chosen] += 1
        self.labels[n] = chosen

    def kernels(self) -> Any:
        from . import _numba_collapsed  # compiles or loads machine code: only where a scan needs it

        return _numba_collapsed

    def arrays(self) -> Any:
        if self.seen is None:
            founders = self.founders
            tables = self.labels, self.sizes, self.log_opening, self.log_margin, founders.gains
            classifiers = founders.size, self.weights.numpy(), founders.weights.numpy()
            self.seen = self.kernels().Partition(*(table.numpy() for table in tables), *classifiers)
        return self.seen

    def urn(self, normalizers: np.ndarray) -> np.ndarray:
        urn: np.ndarray = self.log_sizes.numpy() + normalizers
        urn[0] = normalizers[0]  # `log_opening` is added for a new component
        return urn


_MOST_ROUNDS = 4
_LITTLE_WORK = 2**10  # entries of X
