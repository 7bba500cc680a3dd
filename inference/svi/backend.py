"""The options of variational inference; kernels are in the files of their structures."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from ...models.data import Data
from ...models.domains import Count, Natural, NonNegative, Number, OneOf, Seed
from ..backend import Backend
from ..distributed.rows import streamed
from ..protocol import KernelData, Model
from ..running.emptied import SHORT_FITS
from ..running.engine import Chain, Draw, Kernel, Schedule, Sweeps
from .factors import SETTLED


@dataclass(eq=False)
class SVI(Backend):
    """Mean-field variational inference of the truncated model; a lower bound of its log evidence, a local optimum.

    States of its kernels have `total_weight`, the number of rows or steps by which the tolerance is multiplied. Their
    modules also offer `stream(backend, model, source) -> (kernel, resolved model, its data)`.

    Parameters
    ----------
    num_steps : sweeps over all points, or minibatch steps
    batch_size : None for coordinate ascent on all points, whose ELBO never falls; else points drawn for each stochastic
        step, whose recorded ELBO is a noisy estimate from the batch. Of several sequences: sequences drawn for each
        step; of a single one: steps in the block that is drawn
    tolerance : coordinate ascent stops when the ELBO rises by less than this many nats per point in a step; None:
        never. What comes later is slow, or a jump after a plateau, and hardly changes predictions
    num_restarts : seeds to start from; the highest final ELBO is kept
    delay, forgetting : stochastic steps start from coordinate ascent on about 5,000 rows; step t then has size
        (t + delay + rows / batch rows)^-forgetting, delay >= 0, forgetting in (0.5, 1]; a block of a source that
        is smaller than its largest one takes a step that is smaller in proportion
    num_full_steps : most sweeps over all points that finish a stochastic fit of a tensor (a source of rows gets none).
        Unless `tolerance` is None they stop after one that raises the ELBO by less than 0.01 nats per point, since
        predictions have settled by then
    rule : "gibbs": the expected loss, so that hyperplanes are learnt with their uncertainty. "averaging", for
        InfiniteSVM, latent features, tasks and topics, and any convex loss with a conjugate, `CrammerSinger` too: the
        loss of the expected score, as first published. Its hyperplanes are those of an SVM, a mean without a spread;
        the ELBO is then minus the objective of Zhu, Chen & Xing, which is no bound of the evidence. At the end of a fit
        the dual of its classifiers is solved to 1e-9, or as far as so many passes lead;
        `posterior.samples["duality_gap"]` [1] says how far, as a fraction of their objective, they are from the optimum
        given all else (after stochastic steps alone there is none). For InfiniteSVM there is no batch_size or
        source of rows with it
    num_jobs : processes that the restarts run in, as in `Gibbs`; None: as many as there are cores, once it pays
    seed, progress : of the random stream; whether to show a bar (None: on a terminal)

    X may also be a source of rows (`rows_of`: arrays on disk, Parquet and Arrow files, functions), or a torch
    DataLoader of batches (X [n, D], y [n]) or (X [n, D],); for the models of sequences of (X, lengths) or (X,): whole
    sequences, or one. It is read once for the labels, then a block a step, again from the start after the last: of
    `batch_size` rows (None: 4,096), or of as many as a DataLoader or a function gives. Defaults that come from the
    data, and the start of the fit, are of its first 100,000 rows: rows should come in no order that means something.
    What the posterior says row by row, such as `assignments`, is of these first rows alone, so that memory does not
    grow with their number; `map_rows(posterior.assign, source, path)` says it of all. Of mixtures each rank of
    a `group` may have a source of its own: a step sees a block of each. Nor are responsibilities kept of a tensor whose
    rows times components are more than 2^24 (134 MB), except with rule="averaging" or coupled label sets: each step
    finds them again, chunk by chunk, and the posterior has the `assignments` alone.

    References
    ----------
    Blei & Jordan (2006); Hoffman et al. (2013); Zhu, Chen & Xing (2011, 2014); mixtures.md, regbayes.md and
    sequences.md in docs/derivations.
    """

    num_steps: Count = 200
    batch_size: Count | None = None
    tolerance: NonNegative | None = 1e-3
    num_restarts: Count = 1
    delay: NonNegative = 1.0
    forgetting: Annotated[float, Number(above=0.5, most=1.0)] = 0.7
    num_full_steps: Natural = 10
    rule: Annotated[str, OneOf("gibbs", "averaging")] = "gibbs"
    seed: Seed = 0
    num_jobs: Count | None = None
    progress: bool | None = None

    value_name: ClassVar[str] = "ELBO"
    kind: ClassVar[str] = "bound"
    needs: ClassVar[str] = "sticks"
    weighs: ClassVar[bool] = True

    @property
    def loss_weighing(self) -> tuple[type[Any], ...]:
        return (Data,) if self.rule == "gibbs" else ()

    def prepare(
        self, model: Model, X: Any, y: Any, lengths: Any, **weights: Tensor
    ) -> tuple[Kernel, Model, KernelData, Schedule]:
        """As `Backend.prepare`; X [N, D] may also be a source of rows."""
        if (source := streamed(X)) is None:
            return super().prepare(model, X, y, lengths, **weights)
        if y is not None or lengths is not None:
            raise ValueError("y and lengths come with the blocks of a source of rows: leave them out.")
        kernel, model, data = self.module_of(model).stream(self, model, source)
        own = self.replace(num_full_steps=0)  # a source gets none, so that more steps may follow
        endless = dataclasses.replace(own.schedule(), num_jobs=1, stop=lambda chain: False, backend=own.identity())
        return kernel, model, data, endless

    def least_steps(self, schedule: Schedule) -> int:
        return self.num_steps if self.batch_size or self.tolerance is None else 0

    def may_grow(self) -> tuple[str, ...]:
        # stochastic steps cannot go on once full steps have begun
        return ("num_restarts",) if self.batch_size and self.num_full_steps else ("num_restarts", "num_steps")

    def schedule(self) -> Schedule:
        full = self.num_full_steps if self.batch_size else 0
        return Schedule(
            num_steps=self.num_steps + full,
            num_chains=self.num_restarts,
            num_jobs=self.num_jobs,
            stop=self._stop,
        )

    def results(self, sweeps: Sweeps, chains: list[Chain]) -> list[list[Draw]]:
        best = max(chains, key=lambda chain: chain.values[-1] if chain.values else -torch.inf)
        return [[sweeps.finished(best.state)]]

    def _stop(self, chain: Chain) -> bool:
        if self.tolerance is None:
            return False
        # values of stochastic steps are estimates
        first, least = (self.num_steps, SETTLED) if self.batch_size else (0, self.tolerance)
        if len(chain.values) < first + 2:
            return False
        return chain.values[-1] - chain.values[-2] <= least * chain.state.total_weight


SHORT_FITS.append(SVI(num_steps=30, progress=False).fit)
