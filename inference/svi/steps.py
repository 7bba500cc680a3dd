"""How a variational fit runs, whatever the structure: coordinate ascent, or stochastic steps on minibatches.

Stochastic steps start from coordinate ascent on some rows, which also settles how many components there are, and end
with a few full sweeps where the data are tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..running.engine import Draw, Kernel
from ..running.labels import LABELS
from ..truncation import warn_if_full
from .backend import SVI
from .factors import ALL_AT_ONCE, Variational, require, require_averaging
from .stream import Stream

NUM_FIRST = 5_000  # rows from which a stochastic fit starts
D = TypeVar("D")


class Minibatch(NamedTuple, Generic[D]):
    """Data that stand for all: of several sequences some, of one the block of its `owned` steps with a margin."""

    data: D
    scale: float  # points, sequences or blocks in all, for each one here
    owned: slice = slice(None)  # the steps that count, with the transition into each of them
    at_start: bool = True  # the first step starts a sequence


@dataclass(frozen=True)
class Steps:
    """The functions of one structure, of which its kernels are made; states derive from `Variational`."""

    state: type[Any]
    init: Callable[..., Any]  # (model, data, generator) -> state
    sweep: Callable[..., Any]  # (state, data, model) -> state, of coordinate ascent
    complete: Callable[..., Any]  # (state, data, model) -> state with the responsibilities of all rows
    draw: Callable[..., Draw]  # (state, data, model) -> what the posterior keeps
    first: Callable[..., Any]  # (data, number of rows, generator) -> about as many of them
    count: Callable[[Any], float]  # data -> how much the points count in all, or the number of sequences
    extrapolate: Callable[..., Any]  # (state, rows, model, num_data, num_units) -> state as if they stood for all
    minibatch: Callable[..., Minibatch[Any]]  # (data, size, generator) -> what a stochastic step sees
    stochastic_sweep: Callable[..., Any]  # (state, minibatch, model, rho) -> state
    read: Callable[..., tuple[Any, Stream[Any]]]  # (loader, model, number of rows) -> resolved model, stream
    rows: str = "responsibilities"  # field of the state that `complete` fills
    assign: Callable[..., Tensor] | None = None  # (state, data, model) -> components [n]: all that streams keep of rows
    warn: Callable[[list[Draw], Any], None] = warn_if_full  # of a truncation that binds
    averaging: Callable[[SVI], Steps] | None = None  # those of the averaging rule, where there are any
    polish: Callable[..., Any] | None = None  # (state, data, model) -> state with its dual solved to rounding

    def check(self, backend: SVI, model: Any) -> None:
        """Raise NotImplementedError unless the loss has what the rule needs, and the family is conjugate."""
        if backend.rule == "averaging":
            require_averaging(backend, model, self.averaging is not None)
        else:
            require(model)

    def kernel(self, backend: SVI, model: Any) -> Kernel:
        """Coordinate ascent, or stochastic steps on minibatches, with the options of the backend bound."""
        if backend.rule == "averaging" and self.averaging is not None:
            return self.averaging(backend)._kernel(backend)
        return self._kernel(backend)

    def _kernel(self, backend: SVI) -> Kernel:
        return Kernel(
            state=self.state,
            init=partial(self._init, backend=backend),
            sweep=partial(self._sweep, backend=backend),
            value=lambda state, data, model: state.bound,
            draw=self.draw,
            finish=self._finish,
            warn=self.warn,
        )

    def stream(self, backend: SVI, model: Any, loader: DataLoader[Any]) -> tuple[Kernel, Any, Stream[Any]]:
        """The kernel of stochastic steps on the batches of a loader, the resolved model, and the stream as its data."""
        if backend.rule == "averaging" and self.averaging is not None:
            raise NotImplementedError(f'rule="averaging" {ALL_AT_ONCE}')
        model, stream = self.read(loader, model, NUM_FIRST)
        kernel = replace(
            self._kernel(backend),
            init=partial(self._init_stream, backend=backend),
            sweep=partial(self._sweep_stream, backend=backend),
            finish=self._finish_stream,
            draw=self._draw_stream,
        )
        return kernel, model, stream

    # -- tensors -------------------------------------------------------------------------------------------------------

    def _init(self, model: Any, data: Any, generator: torch.Generator, *, backend: SVI) -> Any:
        if not backend.batch_size:
            return self.init(model, data, generator)
        first = self.first(data, NUM_FIRST, generator)
        state = self._settle(first, model, generator, backend)
        return self.extrapolate(state, first, model, data.num_data, self.count(data))

    def _sweep(self, state: Any, data: Any, model: Any, generator: torch.Generator, step: int, *, backend: SVI) -> Any:
        if not backend.batch_size or step >= backend.num_steps:
            return self.sweep(state, data, model)
        batch = self.minibatch(data, backend.batch_size, generator)
        size = self._step_size(step, batch.scale, data.num_data, backend)
        return self.stochastic_sweep(state, batch, model, size)

    def _finish(self, state: Any, data: Any, model: Any) -> Any:
        """Of a fit that was stopped among its stochastic steps, the responsibilities are not those of all rows."""
        if state.num_data != data.num_data:
            return self.complete(state, data, model)
        return state if self.polish is None else self.polish(state, data, model)

    # -- a stream ------------------------------------------------------------------------------------------------------

    def _init_stream(self, model: Any, data: Stream[Any], generator: torch.Generator, *, backend: SVI) -> Any:
        state = self._settle(data.first, model, generator, backend)
        return self.extrapolate(state, data.first, model, data.num_data, data.num_units)

    def _sweep_stream(
        self, state: Any, data: Stream[Any], model: Any, generator: torch.Generator, step: int, *, backend: SVI
    ) -> Any:
        rows = data.next()
        units = self.count(rows)
        size = self._step_size(step, data.num_units / data.largest, data.num_data, backend)
        # in proportion to its rows, or those of a small last batch would weigh more than others over an epoch
        size = size * min(1.0, units / data.largest)
        return self.stochastic_sweep(state, Minibatch(rows, data.num_units / units), model, size)

    def _finish_stream(self, state: Any, data: Stream[Any], model: Any) -> Any:
        if self.assign is not None:
            return state
        parts = [getattr(self.complete(state, batch, model), self.rows) for batch in data.once()]
        return replace(state, **{self.rows: torch.cat(parts)})

    def _draw_stream(self, state: Any, data: Stream[Any], model: Any) -> Draw:
        """Of rows no more than their components, in the order of a last pass: nothing of N x T numbers."""
        found = self.draw(state, data, model)
        if self.assign is None:
            return found
        found[LABELS] = torch.cat([self.assign(state, batch, model) for batch in data.once()])
        return {name: value for name, value in found.items() if name != self.rows}

    # -- both ----------------------------------------------------------------------------------------------------------

    def _settle(self, first: Any, model: Any, generator: torch.Generator, backend: SVI) -> Any:
        """Coordinate ascent on the first rows, no longer than components may merge: stochastic steps do the rest."""
        state = self.init(model, first, generator)
        for _ in range(_FIRST_SWEEPS):
            before = state.bound
            state = self.sweep(state, first, model)
            rise, merged = state.bound - before, isinstance(state, Variational) and not state.may_merge
            if merged or rise <= (backend.tolerance or 0.0) * state.total_weight:
                break
        return state

    def _step_size(self, step: int, num_batches: float, num_data: int, backend: SVI) -> float:
        """Of a batch, of which so many are all data; the first rows count as the batches that they would make."""
        made = num_batches * min(1.0, NUM_FIRST / num_data)
        return float((step + 1 + backend.delay + made) ** -backend.forgetting)


_FIRST_SWEEPS = 50
