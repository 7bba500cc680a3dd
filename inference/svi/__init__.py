"""Variational inference: coordinate ascent on the evidence bound, or stochastic natural gradients on minibatches."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from ..backend import Backend
from ..engine import Chain, Draw, Kernel, Schedule
from ..posterior import Posterior
from . import partition, sequence, sequence_steps
from .stream import NUM_FIRST, Stream

__all__ = ["SVI"]


@dataclass(eq=False)
class SVI(Backend):
    """Mean-field variational inference of the truncated model; a lower bound of its log evidence, a local optimum.

    Parameters
    ----------
    num_steps : sweeps over all points, or minibatch steps
    batch_size : None for coordinate ascent on all points, whose ELBO never falls; else points drawn for each stochastic
        step, whose recorded ELBO is a noisy estimate from the batch. Of several sequences: sequences drawn for each
        step; of a single one: steps in the block that is drawn
    tolerance : coordinate ascent stops when the ELBO rises by less than this many nats per point
    num_restarts : seeds to start from; the highest final ELBO is kept
    delay, forgetting : stochastic steps start from coordinate ascent on about 5,000 rows; step t then has size
        (t + delay + rows / batch rows)^-forgetting, delay >= 0, forgetting in (0.5, 1]
    num_full_steps : sweeps over all points that finish a stochastic fit of a tensor (a DataLoader gets none)
    seed, progress : of the random stream; whether to show a bar (None: on a terminal)

    References
    ----------
    Blei & Jordan (2006); Hoffman et al. (2013); math/dp-mixtures, section 6; math/discriminative-clustering,
    sections 6 and 12.
    """

    num_steps: int = 200
    batch_size: int | None = None
    tolerance: float = 1e-5
    num_restarts: int = 1
    delay: float = 1.0
    forgetting: float = 0.7
    num_full_steps: int = 10
    seed: int = 0
    progress: bool | None = None

    structures: ClassVar[tuple[str, ...]] = ("partition", "sequence")
    value_name: ClassVar[str] = "ELBO"

    def fit(
        self,
        model: Any,
        X: Any,
        y: Any = None,
        *,
        lengths: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> Posterior:
        """As `Backend.fit`; X may also be a torch DataLoader of (X, y) or (X,) batches.

        A loader is read once for the labels and for the defaults that come from the data (from its first 100,000 rows),
        then one batch a step, and once at the end for the assignments, which are in the order of that last pass.
        """
        if not isinstance(X, DataLoader):
            return super().fit(model, X, y, lengths=lengths, checkpoint=checkpoint, resume=resume)
        if lengths is not None or getattr(model, "structure", None) == "sequence":
            raise ValueError("A DataLoader has no sequences: pass a tensor X with its lengths.")
        if checkpoint or resume:
            raise ValueError("A fit from a DataLoader cannot be resumed: its order is not ours. Pass tensors instead.")
        self.admit(model)
        stream = Stream.of(X, model)
        endless = dataclasses.replace(self.schedule(), num_steps=self.num_steps, stop=lambda chain: False)
        return self.finish(stream.model, stream, endless)

    def check(self, model: Any) -> None:
        one = torch.ones(1, 2)
        model.loss.expected_log_factor(one, one, one)  # a loss without expectation raises NotImplementedError
        self.require_counts(num_steps=1, num_restarts=1, num_full_steps=0, seed=0)
        if self.batch_size is not None:
            self.require_counts(batch_size=1)
        if not (self.delay >= 0 and 0.5 < self.forgetting <= 1):
            raise ValueError(
                f"delay is {self.delay!r} and forgetting {self.forgetting!r}; "
                "expected delay >= 0 and 0.5 < forgetting <= 1."
            )

    def kernel(self, model: Any) -> Kernel:
        is_sequence = model.structure == "sequence"
        return Kernel(
            state=sequence.SequenceState if is_sequence else partition.PartitionState,
            init=partial(_init_sequence if is_sequence else _init, backend=self),
            sweep=partial(_step_sequence if is_sequence else _step, backend=self),
            value=lambda state, data, model: state.bound,
            draw=sequence.summary if is_sequence else partition.summary,
        )

    def schedule(self) -> Schedule:
        full = self.num_full_steps if self.batch_size else 0
        return Schedule(
            num_steps=self.num_steps + full,
            num_chains=self.num_restarts,
            stop=self._stop,
            value_name=self.value_name,
            seed=self.seed,
            progress=self.progress,
        )

    def results(self, kernel: Kernel, model: Any, data: Any, chains: list[Chain]) -> list[list[Draw]]:
        state = max(chains, key=lambda chain: chain.values[-1] if chain.values else -torch.inf).state
        if isinstance(data, Stream):
            parts = [partition.update_responsibilities(state, batch, model) for batch in data.once()]
            state = dataclasses.replace(state, responsibilities=torch.cat([part.responsibilities for part in parts]))
        elif len(state.responsibilities) != data.num_data:  # stopped among the stochastic steps
            is_sequence = model.structure == "sequence"
            update = sequence.update_paths if is_sequence else partition.update_responsibilities
            state = update(state, data, model)
        draw = kernel.draw(state, data, model)
        self.warn_if_full([draw], model)
        return [[draw]]

    def _stop(self, chain: Chain) -> bool:
        if self.batch_size or len(chain.values) < 2:
            return False
        return chain.values[-1] - chain.values[-2] <= self.tolerance * len(chain.state.responsibilities)


def _init(model: Any, data: Any, generator: torch.Generator, *, backend: SVI) -> partition.PartitionState:
    """Stochastic steps start from coordinate ascent on some rows, which also settles how many components there are."""
    if isinstance(data, Stream):
        rows = data.first
    elif backend.batch_size:
        order = torch.randperm(data.num_data, generator=generator, device=data.X.device)
        rows = data.rows(order[:NUM_FIRST])
    else:
        return partition.init(model, data, generator)
    state = partition.init(model, rows, generator)
    for _ in range(_FIRST_SWEEPS):
        state = partition.sweep(state, rows, model, generator)
    return partition.extrapolate(state, rows, model, data.num_data)


def _step(
    state: partition.PartitionState, data: Any, model: Any, generator: torch.Generator, *, backend: SVI
) -> partition.PartitionState:
    if isinstance(data, Stream):
        batch = data.next()
    elif backend.batch_size and state.step < backend.num_steps:
        like = {"generator": generator, "device": data.X.device}
        batch = data.rows(torch.randint(data.num_data, (backend.batch_size,), **like))
    else:
        return partition.sweep(state, data, model, generator)
    # the first rows count as the batches that they would make
    delay = backend.delay + min(NUM_FIRST, data.num_data) / batch.num_data
    options = {"num_data": data.num_data, "delay": delay, "forgetting": backend.forgetting}
    return partition.stochastic_sweep(state, batch, model, **options)


def _init_sequence(model: Any, data: Any, generator: torch.Generator, *, backend: SVI) -> sequence.SequenceState:
    if not backend.batch_size:
        return sequence.init(model, data, generator)
    first = sequence_steps.first_steps(data, NUM_FIRST, generator)
    state = sequence.init(model, first, generator)
    for _ in range(_FIRST_SWEEPS):
        before = state.bound
        state = sequence.sweep(state, first, model, generator)
        if state.bound - before <= backend.tolerance * first.num_data:
            break
    return sequence_steps.extrapolate(state, first, model, data)


def _step_sequence(
    state: sequence.SequenceState, data: Any, model: Any, generator: torch.Generator, *, backend: SVI
) -> sequence.SequenceState:
    if not backend.batch_size or state.step >= backend.num_steps:
        return sequence.sweep(state, data, model, generator)
    batch = sequence_steps.minibatch(data, backend.batch_size, generator)
    delay = backend.delay + batch.scale * min(1.0, NUM_FIRST / data.num_data)
    return sequence_steps.stochastic_sweep(state, batch, model, delay=delay, forgetting=backend.forgetting)


_FIRST_SWEEPS = 50
