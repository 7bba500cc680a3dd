"""Variational inference: coordinate ascent on the evidence bound, or stochastic natural gradients on minibatches."""

from __future__ import annotations

import dataclasses
import os
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from ...models.losses import CrammerSinger
from ..backend import Backend
from ..engine import Chain, Draw, Kernel, Schedule, TruncationWarning
from ..posterior import Posterior
from . import partition
from .stream import Stream

__all__ = ["SVI"]


@dataclass(eq=False)
class SVI(Backend):
    """Mean-field variational inference of the truncated model; a lower bound of its log evidence, a local optimum.

    Parameters
    ----------
    num_steps : sweeps over all points, or minibatch steps
    batch_size : None for coordinate ascent on all points, whose ELBO never falls; else points drawn for each stochastic
        step, whose recorded ELBO is a noisy estimate from the batch
    tolerance : coordinate ascent stops when the ELBO rises by less than this share of its size
    num_restarts : seeds to start from; the highest final ELBO is kept
    delay, forgetting : step t has size (t + delay)^-forgetting, delay >= 0, forgetting in (0.5, 1]
    num_full_steps : sweeps over all points that finish a stochastic fit of a tensor (a DataLoader gets none)
    seed, progress : of the random stream; whether to show a bar (None: on a terminal)

    References
    ----------
    Blei & Jordan (2006); Hoffman et al. (2013); math/dp-mixtures, section 6.
    """

    num_steps: int = 200
    batch_size: int | None = None
    tolerance: float = 1e-6
    num_restarts: int = 1
    delay: float = 1.0
    forgetting: float = 0.7
    num_full_steps: int = 10
    seed: int = 0
    progress: bool | None = None

    structures: ClassVar[tuple[str, ...]] = ("partition",)
    value_name: ClassVar[str] = "ELBO"

    def fit(
        self,
        model: Any,
        X: Any,
        y: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> Posterior:
        """As `Backend.fit`; X may also be a torch DataLoader of (X, y) or (X,) batches.

        A loader is read once for the labels and for the defaults that come from the data (from its first 100,000 rows),
        then one batch a step, and once at the end, without shuffling by us, for the assignments of its points.
        """
        if not isinstance(X, DataLoader):
            return super().fit(model, X, y, checkpoint=checkpoint, resume=resume)
        if checkpoint or resume:
            raise ValueError("A fit from a DataLoader cannot be resumed: its order is not ours. Pass tensors instead.")
        self.check(model)
        stream = Stream.of(X, model)
        endless = dataclasses.replace(self.schedule(), num_steps=self.num_steps, stop=lambda chain: False)
        return self.finish(stream.model, stream, endless)

    def check(self, model: Any) -> None:
        if isinstance(getattr(model, "loss", None), CrammerSinger):
            model.loss.expected_log_factor(torch.zeros(()), torch.zeros(()), torch.zeros(()))
        for name in ("num_steps", "num_restarts"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be at least 1.")
        if self.batch_size is not None and not self.batch_size >= 1:
            raise ValueError(f"batch_size is {self.batch_size!r}; it must be at least 1, or None for all points.")
        if not (self.delay >= 0 and 0.5 < self.forgetting <= 1):
            raise ValueError(
                f"delay is {self.delay!r} and forgetting {self.forgetting!r}; expected delay >= 0, 0.5 < forgetting <= 1."
            )

    def kernel(self, model: Any) -> Kernel:
        return Kernel(
            state=partition.PartitionState,
            init=partition.init,
            sweep=partial(_step, backend=self),
            value=lambda state, data, model: state.bound,
            draw=partition.summary,
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
        best = max(chains, key=lambda chain: chain.values[-1] if chain.values else -torch.inf)
        if isinstance(data, Stream):
            data = data.all()
            best.state = partition.update_responsibilities(best.state, data, model)
        draw = kernel.draw(best.state, data, model)
        if len(torch.unique(draw["assignments"])) == model.truncation:
            warnings.warn(
                f"All {model.truncation} components are occupied, so the truncation binds. "
                f"Fit again with truncation={2 * model.truncation}.",
                TruncationWarning,
                stacklevel=4,
            )
        return [[draw]]

    def _stop(self, chain: Chain) -> bool:
        if self.batch_size or len(chain.values) < 2:
            return False
        return chain.values[-1] - chain.values[-2] <= self.tolerance * abs(chain.values[-1])


def _step(
    state: partition.PartitionState, data: Any, model: Any, generator: torch.Generator, *, backend: SVI
) -> partition.PartitionState:
    if isinstance(data, Stream):
        batch = data.next()
    elif backend.batch_size and state.step < backend.num_steps:
        index = torch.randint(data.num_data, (backend.batch_size,), generator=generator, device=data.X.device)
        batch = data.rows(index)
    else:
        return partition.sweep(state, data, model, generator)
    return partition.stochastic_sweep(
        state, batch, model, num_data=data.num_data, delay=backend.delay, forgetting=backend.forgetting
    )
