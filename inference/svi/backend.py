"""The options of variational inference; kernels are in the files of their structures."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from ..backend import Backend
from ..engine import Chain, Draw, Kernel, Schedule
from ..options import require_counts
from ..protocol import KernelData, Model


@dataclass(eq=False)
class SVI(Backend):
    """Mean-field variational inference of the truncated model; a lower bound of its log evidence, a local optimum.

    States of its kernels have `num_data`, the rows or steps by which the tolerance is multiplied. Their modules also
    offer `stream(backend, model, loader) -> (kernel, resolved model, its data)`.

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

    X may also be a torch DataLoader of batches (X [n, D], y [n]) or (X [n, D],); for the models of sequences of
    (X, lengths) or (X,): whole sequences, or one. It is read once for the labels and for the defaults that come from
    the data (from its first 100,000 rows), then one batch a step, and once at the end for the assignments, in the order
    of that last pass.

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

    value_name: ClassVar[str] = "ELBO"

    def prepare(self, model: Model, X: Any, y: Any, lengths: Any) -> tuple[Kernel, Model, KernelData, Schedule]:
        """As `Backend.prepare`; X [N, D] may also be a DataLoader."""
        if not isinstance(X, DataLoader):
            return super().prepare(model, X, y, lengths)
        if y is not None or lengths is not None:
            raise ValueError("y and lengths come with the batches of a DataLoader: leave them out.")
        kernel, model, data = self.module_of(model).stream(self, model, X)
        endless = dataclasses.replace(
            self.schedule(), num_steps=self.num_steps, stop=lambda chain: False, repeatable=False
        )
        return kernel, model, data, endless

    def check(self) -> None:
        require_counts(self, num_steps=1, num_restarts=1, num_full_steps=0, seed=0)
        if self.batch_size is not None:
            require_counts(self, batch_size=1)
        if not (self.delay >= 0 and 0.5 < self.forgetting <= 1):
            raise ValueError(
                f"delay is {self.delay!r} and forgetting {self.forgetting!r}; "
                "expected delay >= 0 and 0.5 < forgetting <= 1."
            )

    def schedule(self) -> Schedule:
        full = self.num_full_steps if self.batch_size else 0
        return Schedule(
            num_steps=self.num_steps + full,
            num_chains=self.num_restarts,
            stop=self._stop,
        )

    def results(self, kernel: Kernel, model: Model, data: KernelData, chains: list[Chain]) -> list[list[Draw]]:
        best = max(chains, key=lambda chain: chain.values[-1] if chain.values else -torch.inf)
        return [[kernel.draw(kernel.finish(best.state, data, model), data, model)]]

    def _stop(self, chain: Chain) -> bool:
        if self.batch_size or len(chain.values) < 2:
            return False
        return chain.values[-1] - chain.values[-2] <= self.tolerance * chain.state.num_data
