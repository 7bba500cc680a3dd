"""How a variational fit of any structure runs: coordinate ascent, or stochastic steps on minibatches.

Stochastic steps start from coordinate ascent on some rows, which also determines the number of components. If the data
are tensors, a few full sweeps follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ...models.sums import among
from ..distributed.collectives import on_all
from ..distributed.sources import RowSource
from ..distributed.stream import Stream
from ..protocol import Model
from ..running.chains import LABELS
from ..running.engine import Draw, Kernel
from ..truncation import warn_if_nearly_full
from .backend import SVI
from .factors import Variational, loss_of
from .rules import NATURAL, RULES, Rule

NUM_FIRST = 5_000  # rows on which a stochastic fit starts


class State(Protocol):
    """The properties that all variational states have."""

    @property
    def bound(self) -> Tensor:
        """The ELBO [] float64, or its estimate from the last minibatch."""

    @property
    def num_data(self) -> int:
        """The number of rows with factors in the state."""

    @property
    def total_weight(self) -> float:
        """The sum of the weights of these rows."""


class Rows(Protocol):
    """The properties that all data have."""

    @property
    def span(self) -> tuple[int, int]:
        """The number of this rank's first row among the rows of all ranks, and the number of all rows."""

    @property
    def num_data(self) -> int:
        """N, the number of points, documents or steps."""


S = TypeVar("S", bound=State)
D = TypeVar("D", bound=Rows)
M = TypeVar("M", bound=Model)


class Minibatch(NamedTuple, Generic[D]):
    """Data that represent all data."""

    data: D
    scale: float  # number of all points, sequences or blocks, divided by the number of those here


@dataclass(frozen=True)
class Stochastic(Generic[S, D, M]):
    """The functions for stochastic steps of a structure, in addition to its coordinate ascent."""

    first: Callable[..., D]  # (data, number of rows, generator) -> about that many rows
    count: Callable[[D], float]  # sum of the weights of the points, or the number of sequences
    extrapolate: Callable[[S, D, M, int, float], S]  # (state, rows, model, num_data, num_units) -> state for all data
    minibatch: Callable[..., Minibatch[D]]  # (data, size, generator) -> minibatch
    sweep: Callable[[S, Minibatch[D], M, float], S]  # (state, minibatch, model, rho) -> state
    read: Callable[..., tuple[M, Stream[D]]]  # (source, block size, model, number of first rows)
    assign: Callable[[S, D, M], Tensor] | None = None  # (state, rows, model) -> components [n], which streams keep
    climb: Callable[[S, D, M], S] | None = None  # a sweep on the first rows; None: `Steps.sweep`


@dataclass(frozen=True)
class Steps(Generic[S, D, M]):
    """The functions of one structure under one rule, from which kernels are made."""

    state: type[S]
    init: Callable[[M, D, torch.Generator], S]
    sweep: Callable[[S, D, M], S]  # one sweep of coordinate ascent
    complete: Callable[[S, D, M], S]  # computes the responsibilities of all rows
    draw: Callable[[S, Any, M], Draw]  # the draw for the posterior, from data or a stream
    stochastic: Stochastic[S, D, M] | None = None  # None: every sweep needs all rows
    rows: str = "responsibilities"  # field of the state that `complete` fills
    warn: Callable[[list[Draw], Any], None] = warn_if_nearly_full  # warns about a truncation that is too small
    polish: Callable[[S, D, M], S] | None = None  # solves the state's dual to rounding error

    def kernel(self, backend: SVI, model: M) -> Kernel:
        """The kernel of coordinate ascent, or of stochastic steps on minibatches, with the options of `backend`."""
        return Kernel(
            state=self.state,
            init=partial(self._init, backend=backend),
            sweep=partial(self._sweep, backend=backend),
            value=lambda state, data, model: state.bound,
            draw=self.draw,
            finish=self._finish,
            warn=self.warn,
        )

    def stream(self, backend: SVI, model: M, source: RowSource) -> tuple[Kernel, M, Stream[D]]:
        """The kernel of stochastic steps on the blocks of a source, the resolved model, and the stream as its data."""
        model, stream = self._stochastic.read(source, backend.batch_size or _BLOCK, model, NUM_FIRST)
        kernel = replace(
            self.kernel(backend, model),
            init=partial(self._init_stream, backend=backend),
            sweep=partial(self._sweep_stream, backend=backend),
            finish=self._finish_stream,
            draw=self._draw_stream,
        )
        return kernel, model, stream

    @property
    def _stochastic(self) -> Stochastic[S, D, M]:
        assert self.stochastic is not None  # checked in `StepsByRule.check`
        return self.stochastic

    # -- tensors -------------------------------------------------------------------------------------------------------

    def _init(self, model: M, data: D, generator: torch.Generator, *, backend: SVI) -> S:
        if not backend.batch_size:
            return self.init(model, data, generator)
        own = self._stochastic
        first = own.first(data, NUM_FIRST, generator)
        state = self._settle(first, model, generator, backend)
        return own.extrapolate(state, first, model, data.span[1], own.count(data))

    def _sweep(self, state: S, data: D, model: M, generator: torch.Generator, step: int, *, backend: SVI) -> S:
        if not backend.batch_size or step >= backend.num_steps:
            return self.sweep(state, data, model)
        batch = self._stochastic.minibatch(data, backend.batch_size, generator)
        size = _step_size(step, batch.scale, data.span[1], backend)
        return self._stochastic.sweep(state, batch, model, size)

    def _finish(self, state: S, data: D, model: M) -> S:
        """Complete the state: after stochastic steps it holds the responsibilities of a batch; then `polish` it."""
        if state.num_data != data.num_data:
            return self.complete(state, data, model)
        return state if self.polish is None else self.polish(state, data, model)

    # -- a stream ------------------------------------------------------------------------------------------------------

    def _init_stream(self, model: M, data: Stream[D], generator: torch.Generator, *, backend: SVI) -> S:
        state = self._settle(data.first, model, generator, backend)
        return self._stochastic.extrapolate(state, data.first, model, data.num_data, data.num_units)

    def _sweep_stream(
        self, state: S, data: Stream[D], model: M, generator: torch.Generator, step: int, *, backend: SVI
    ) -> S:
        rows = on_all(lambda: data.at(step), "go on")
        units = self._stochastic.count(rows)
        size = _step_size(step, data.num_units / data.largest, data.num_data, backend)
        # in proportion to the rows, or the rows of a small last batch would have more weight than others
        size = size * min(1.0, units / data.largest)
        return self._stochastic.sweep(state, Minibatch(rows, data.num_units / units), model, size)

    def _finish_stream(self, state: S, data: Stream[D], model: M) -> S:
        if self._stochastic.assign is not None:
            return state
        parts = [getattr(self.complete(state, batch, model), self.rows) for batch in data.sampled()]
        whole: S = replace(state, **{self.rows: torch.cat(parts)})  # type: ignore[type-var]
        return whole

    def _draw_stream(self, state: S, data: Stream[D], model: M) -> Draw:
        """The draw with the components of the first rows, and without any other array of N rows."""
        found, assign = self.draw(state, data, model), self._stochastic.assign
        if assign is None:
            return found
        with among(None):  # the number of blocks may differ between ranks
            found[LABELS] = torch.cat([assign(state, batch, model) for batch in data.sampled()])
        return {name: value for name, value in found.items() if name != self.rows}

    # -- both ----------------------------------------------------------------------------------------------------------

    def _settle(self, first: D, model: M, generator: torch.Generator, backend: SVI) -> S:
        """Run coordinate ascent on the first rows until merges end and the bound settles; stochastic steps follow."""
        state, climb = self.init(model, first, generator), self._stochastic.climb or self.sweep
        for _ in range(_FIRST_SWEEPS):
            before = state.bound
            state = climb(state, first, model)
            rise, merged = state.bound - before, isinstance(state, Variational) and not state.may_merge
            if merged or rise <= (backend.tolerance or 0.0) * state.total_weight:
                break
        return state


@dataclass(frozen=True)
class StepsByRule(Generic[M]):
    """The steps of a structure under each rule that serves a model."""

    steps: Callable[[SVI, M], dict[Rule, Steps[Any, Any, M]]]
    require: Callable[[M], object] = lambda model: None  # raises unless a model has what all rules need
    splits: bool = False  # whether ranks can share the rows under the natural rule
    splits_sources: bool = False  # whether each rank can have its own source of rows

    def alone(self, backend: SVI, model: M) -> str:
        """What to change so that ranks can share the rows; "" if nothing."""
        natural = backend.rule == NATURAL.name
        if self.splits and natural:
            return ""
        return "fit on one rank, without group" if natural else f'take rule="{NATURAL.name}"'

    def check(self, backend: SVI, model: M) -> None:
        """Raise NotImplementedError, with a remedy, unless model and options have what the rule needs."""
        self.require(model)
        steps, loss = self.of(backend, model), loss_of(model)
        if loss is not None:
            RULES[backend.rule].require(loss)
        if backend.batch_size is not None and steps.stochastic is None:
            raise NotImplementedError(f"batch_size is {backend.batch_size}; {_at_once(backend, model)}")

    def kernel(self, backend: SVI, model: M) -> Kernel:
        """As `Steps.kernel`."""
        return self.of(backend, model).kernel(backend, model)

    def stream(self, backend: SVI, model: M, source: RowSource) -> tuple[Kernel, M, Stream[Any]]:
        """As `Steps.stream`."""
        steps = self.of(backend, model)
        if steps.stochastic is None:
            raise NotImplementedError(f"X comes from {source.name}; {_at_once(backend, model)}")
        return steps.stream(backend, model, source)

    def of(self, backend: SVI, model: M) -> Steps[Any, Any, M]:
        """The steps under the backend's rule; NotImplementedError if the model has none."""
        found = self.steps(backend, model).get(RULES[backend.rule])
        if found is None:
            raise NotImplementedError(
                f'{type(model).__name__} has no rule="{backend.rule}", which InfiniteSVM has: take '
                f'rule="{NATURAL.name}".'
            )
        return found


def _at_once(backend: SVI, model: object) -> str:
    named = f"SVI(rule={backend.rule!r}) of {type(model).__name__}"
    return f"{named} sees all points at once in every sweep: pass tensors and leave batch_size out."


def _step_size(step: int, num_batches: float, num_data: int, backend: SVI) -> float:
    """The step size with `num_batches` batches in all data; the first rows count as steps already made."""
    made = num_batches * min(1.0, NUM_FIRST / num_data)
    return float((step + 1 + backend.delay + made) ** -backend.forgetting)


_FIRST_SWEEPS = 50
_BLOCK = 4096  # rows of a source in a step, if batch_size is None
