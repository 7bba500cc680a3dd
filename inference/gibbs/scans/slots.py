"""Slots for components, and the loop over the points, for scans that visit one point at a time.

Each component is in a slot; some slots are free. A point that opens a component takes a free slot; if it leaves a
component of its own, the new one uses the same slot. Everything is in double precision: log predictives are differences
of large numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ....models import host
from ....models.compiled import is_compiled, placed
from ....models.data import Data
from ....models.distributions.sampling import draw_categorical, uniforms
from ....models.mixture import Mixture
from ....models.sequence import Sequences, StateSpace
from ...compiled.decorators import entry_of
from ...distributed.collectives import own_stream
from ..prepared import Prepared
from ..state import PartitionState
from .founders import Founders

Visit = tuple[int, int, int, bool]  # position to go on from, slots opened and closed (or -1), whether to call `build`


M = TypeVar("M", bound=Mixture | StateSpace)
S = TypeVar("S", bound=PartitionState)


def double(data: Data | Sequences, model: M) -> tuple[Prepared, M]:
    """The points, and the model with its likelihood, in double precision."""
    points = Prepared.of(data.points, model.likelihood).exact
    if points.family is model.likelihood:
        return points, model
    return points, cast(M, model.replace(likelihood=points.family))


class Slots(ABC):
    """The variables of one scan: components in slots 0..capacity-1, at least one of them free. Changed in place.

    Attributes
    ----------
    labels [N] : slot of each point;  sizes [capacity] : points in a slot, 0: free;  counts [capacity] : those with an x
    observed : the points with an x;  points : all N; features and targets are 0 where x is missing
    weights [capacity, P, C];  log_margin [N, capacity] : log phi(y_n | eta_k), [N, 0] without classifiers
    founders : the source of classifiers for new components
    """

    sizes: Tensor
    counts: Tensor

    def __init__(
        self,
        labels: Tensor,
        weights: Tensor,
        model: Mixture | StateSpace,
        observed: Prepared,
        points: Data,
        founders: Founders,
    ) -> None:
        """Put component k into slot k, and add some free slots."""
        self.labels, self.weights, self.model = labels.clone(), weights.double(), model
        self.observed, self.points, self.founders = observed, points, founders
        self.has_classifiers = points.targets.shape[1] > 0
        self.log_margin = self.weights.new_zeros(len(labels), 0)
        if self.has_classifiers:
            self.log_margin = founders.log_margin(self.weights, model)
        self.extend(4 + len(weights) // 4)

    # -- defined by subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    def count(self, capacity: int) -> None:
        """Compute everything that depends on the assignments, for `capacity` slots."""

    @abstractmethod
    def logits(self, n: int, log_predictive: Tensor) -> Tensor:
        """Log weights [capacity] of point n, from log p(x_n | the others in each slot); one free slot is a new one."""

    @abstractmethod
    def move(self, n: int, own: int, chosen: int) -> None:
        """Move point n from slot `own` to slot `chosen`."""

    @abstractmethod
    def kernels(self) -> Any:
        """The module with the compiled `scan` and `fill_logits`."""

    @abstractmethod
    def arrays(self) -> Any:
        """The named tuple of arrays that `scan` and `fill_logits` take."""

    def urn(self, normalizers: np.ndarray) -> np.ndarray:
        """The log weight of a component by its number of points, [N + 1], from the terms of its likelihood."""
        return normalizers

    def row(self, n: int) -> int:
        """The position of point n among the points with an x; -1 if it has none."""
        return n

    def members(self) -> Tensor:
        """The slots of the points with an x."""
        return self.labels

    # -- shared by all scans -------------------------------------------------------------------------------------------

    def extend(self, more: int) -> None:
        """Add at least `more` free slots."""
        more += -(len(self.weights) + more) % 8  # vector instructions take eight at a time
        self.weights = torch.cat([self.weights, self.weights.new_zeros(more, *self.weights.shape[1:])])
        if self.has_classifiers:
            self.log_margin = pad(self.log_margin, (0, more))
        self.count(len(self.weights))

    def settle(self, n: int, opened: int, closed: int, generator: torch.Generator) -> None:
        """Update classifiers after point n opened or closed a component."""
        if not self.has_classifiers:
            return
        if opened == closed:
            self.founders.exchange(n, self.weights[opened], self.log_margin[:, opened], generator)
        elif opened >= 0:
            self.weights[opened], self.log_margin[:, opened] = self.founders.found(n, generator)
        else:
            self.founders.receive(self.weights[closed], self.log_margin[:, closed])
            self.log_margin[:, closed] = 0.0

    def replaced(self, state: S) -> S:
        """The state with assignments 0..K-1, classifiers and reservoir as they are now in the slots."""
        occupied, reserved = self.sizes > 0, self.founders.reserved
        return replace(
            state,
            assignments=(occupied.cumsum(0) - 1)[self.labels],
            weights=self.weights[occupied].to(state.weights),
            reservoir=None if reserved is None else reserved.to(state.weights),
        )


def visit_all(visitor: Compiled | Tensors, generator: torch.Generator, *, shuffle: bool, num_rounds: int = 1) -> None:
    """Visit every point `num_rounds` times, in random order or in the order of the rows; the slots change in place.

    Compiled code gets the order [N] in pieces, because Ctrl-C waits for it to return.
    """
    slots, position = visitor.slots, 0
    stream, num_data, on = own_stream(generator), len(slots.labels), slots.labels.device
    rows = partial(torch.randperm, generator=stream) if shuffle else torch.arange
    order = torch.cat([rows(num_data, device=on) for _ in range(num_rounds)])
    levels = uniforms((len(order),), stream)
    while position < len(order):
        capacity = len(slots.sizes)
        piece = steps_at_once(capacity * visitor.width)
        position, opened, closed, stale = visitor.visit(position, order[: position + piece], levels)
        if slots.sizes.all():  # at least one must be free
            slots.extend(capacity)
        if opened + closed > -2:
            slots.settle(int(order[position - 1]), opened, closed, generator)
        if stale or len(slots.sizes) > capacity:
            visitor.build()


def steps_at_once(num_sums: int) -> int:
    """How many points compiled code visits before it checks for Ctrl-C, if each visit reads `num_sums` numbers."""
    return max(1, _MOST_WORK // num_sums)


def point_logits(n: int, slots: Slots, *, compiled: bool | None) -> Tensor:
    """Log weights [capacity] of point n."""
    return visitor_of(slots, compiled).logits(n)


def visitor_of(slots: Slots, compiled: bool | None) -> Compiled | Tensors:
    """The code that visits points [N]: `compiled` or tensor code; None: compiled where the likelihood has a form."""
    if compiled is None:
        compiled = host.on_cpu(slots.labels) and is_compiled(slots.model.likelihood)
    return Compiled(slots) if compiled else Tensors(slots)


class Compiled:
    """Visits by compiled code, for likelihoods with a compiled form."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.kernels = slots, slots.kernels()
        self.rows, normalizers, self.width = slots.observed.compiled
        self.urn = slots.urn(normalizers)
        self.build()

    def build(self) -> None:
        """Compute the likelihood's state of each slot from the assignments."""
        slots, labels = self.slots, self.slots.members()
        num_slots, one_by_one = len(slots.sizes) + 1, goes_row_by_row(type(self.rows), slots.observed)
        if one_by_one:
            table = np.repeat(self.rows.components, num_slots, 1)
        else:
            table = self.rows.summed(slots.model.likelihood, slots.observed, labels, num_slots)
        self.state = placed(self.rows, table)
        self.scratch = np.empty((len(table) + 3, num_slots - 1))
        if one_by_one:
            self.entry(self.kernels.fill)(self.state, labels.numpy(), 1.0)

    def entry(self, function: Any) -> Any:
        """A compiled function, specialized for the compiled form of this likelihood."""
        return entry_of(function, self.rows)

    def logits(self, n: int) -> Tensor:
        """Log weights [capacity] of point n."""
        logits = torch.empty(len(self.slots.sizes), dtype=torch.float64)
        self.entry(self.kernels.fill_logits)(self.state, self.slots.arrays(), self.urn, n, logits.numpy())
        return logits

    def visit(self, position: int, order: Tensor, levels: Tensor) -> Visit:
        """Visit order[position:] until classifiers must be updated or the component states built anew."""
        arrays = self.slots.arrays()
        given = arrays, self.urn, position, order.numpy(), levels.numpy()
        visit: Visit = self.entry(self.kernels.scan)(self.state, self.scratch, *given)
        return visit


def goes_row_by_row(form: Any, data: Data) -> bool:
    """Whether adding the rows of X to components one by one is fast."""
    return not hasattr(form, "summed") or data.X.shape[1] < form.wide()


class Tensors:
    """Visits by tensor code, for any likelihood and device, with hyperparameters chi [capacity, S]; these are slow."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.likelihood = slots, slots.model.likelihood
        self.build()

    def build(self) -> None:
        """Compute the likelihood's hyperparameters of each slot from the assignments."""
        sums = self.likelihood.summed_statistics(self.slots.observed.X, self.slots.members(), len(self.slots.sizes))
        self.chi = self.likelihood.prior() + sums
        self.width = len(self.chi[0])

    def logits(self, n: int) -> Tensor:
        """Log weights [capacity] of point n."""
        slots, row = self.slots, self.slots.row(n)
        if row < 0:
            return slots.logits(n, self.chi.new_zeros(len(self.chi)))
        x, chi, own = slots.observed.X[row : row + 1], self.chi.clone(), slots.labels[n]
        chi[own] -= self.likelihood.statistics(x).squeeze(0)
        if slots.counts[own] == 1:
            chi[own] = self.likelihood.prior()
        return slots.logits(n, self.likelihood.log_predictive(x, chi).squeeze(0))

    def visit(self, position: int, order: Tensor, levels: Tensor) -> Visit:
        """Visit order[position:] until a component opened or closed."""
        slots = self.slots
        for index in range(position, len(order)):
            n = int(order[index])
            own, chosen = int(slots.labels[n]), int(draw_categorical(self.logits(n), levels[index]))
            opened = chosen if slots.sizes[chosen] == 0 else -1
            closed = own if slots.sizes[own] == 1 and chosen != own else -1
            if opened >= 0 and closed >= 0:  # from its own component to a new one: the slot is used again
                opened = chosen = own
            if chosen != own:
                slots.move(n, own, chosen)
                self._move(slots.row(n), own, chosen)
            if opened + closed > -2:
                return index + 1, opened, closed, False
        return len(order), -1, -1, False

    def _move(self, row: int, own: int, chosen: int) -> None:
        if row < 0:
            return
        statistics = self.likelihood.statistics(self.slots.observed.X[row : row + 1]).squeeze(0)
        self.chi[own] -= statistics
        if self.slots.counts[own] == 0:
            self.chi[own] = self.likelihood.prior()
        self.chi[chosen] += statistics


_MOST_WORK = 2**24  # sums of statistics that one call of compiled code reads: tenths of a second
