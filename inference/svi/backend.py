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
    """Mean-field variational inference of the truncated model: a local optimum of a lower bound of its log evidence.

    Parameters
    ----------
    num_steps : largest number of sweeps over all points, or the number of minibatch steps
    batch_size : None: coordinate ascent on all points, whose ELBO never falls. Else the number of points that are drawn
        for each stochastic step; the recorded ELBO is then a noisy estimate from the batch. With several sequences it
        is a number of sequences, with a single one the length of a block of steps
    tolerance : coordinate ascent stops when the ELBO rises by less than this many nats per point in a step; None: it
        makes all steps. Later rises are slow, or jumps after a plateau, and hardly change predictions
    num_restarts : number of runs from different seeds; the one with the highest final ELBO is kept
    delay, forgetting : stochastic steps start from coordinate ascent on about 5,000 rows; step t then has size
        (t + delay + rows / batch rows)^-forgetting, delay >= 0, forgetting in (0.5, 1]. A block of a source that is
        smaller than the largest block takes a proportionally smaller step
    num_full_steps : the largest number of sweeps over all points at the end of a stochastic fit to a tensor (a fit to a
        source of rows has none). Unless `tolerance` is None, they stop after a sweep that raises the ELBO by less than
        0.01 nats per point, since predictions hardly change after that
    rule : "gibbs": the expected loss, so that hyperplanes are learnt with their uncertainty. "averaging": the loss of
        the expected score, as first published, for InfiniteSVM, latent features, tasks and topics, and any convex loss
        with a conjugate, `CrammerSinger` too. Its hyperplanes are those of an SVM, a mean without a spread; the trace
        is then minus the objective of Zhu, Chen & Xing, which is not a bound of the evidence. At the end of a fit the
        dual of the classifiers is solved to 1e-9, or to what a fixed number of passes reach;
        `posterior.samples["duality_gap"]` [1] bounds their distance from the optimum given all else, as a fraction of
        their objective (after stochastic steps alone there is none). For InfiniteSVM this rule takes no batch_size and
        no source of rows
    num_jobs : processes that the restarts run in, as in `Gibbs`; None: one for each core, if that saves time
    seed, progress : of the random stream; whether to show a bar (None: on a terminal)

    X may also be a source of rows (`rows_of`: arrays on disk, Parquet and Arrow files, functions), or a torch
    DataLoader of batches (X [n, D], y [n]) or (X [n, D],); for models of sequences, batches are (X, lengths) with whole
    sequences or (X,) with one. The source is read once for the labels, then one block in each step, and from the start
    again after the last block. A block has `batch_size` rows (None: 4,096), or as many as a DataLoader or a function
    gives. Defaults that come from the data, and the start of the fit, use the first 100,000 rows, so the order of the
    rows should be random. Values by row in the posterior, such as `assignments`, are those of these first rows, so that
    memory does not grow with the number of rows; `map_rows(posterior.assign, source, path)` gives those of all. For
    mixtures each rank of a `group` may have a source of its own: a step sees a block of each.

    If rows times components exceed 2^24 (134 MB), responsibilities are not kept, except with
    rule="averaging" or coupled label sets: each step computes them again, chunk by chunk, and the posterior has the
    `assignments` alone.

    For authors of kernels: states have `total_weight`, the number of rows or steps by which the tolerance is
    multiplied, and modules have `stream(backend, model, source) -> (kernel, resolved model, its data)`.

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
        own = self.replace(num_full_steps=0)  # so that more steps may follow
        endless = dataclasses.replace(own.schedule(), num_jobs=1, stop=lambda chain: False, backend=own.identity())
        return kernel, model, data, endless

    def least_steps(self, schedule: Schedule) -> int:
        return self.num_steps if self.batch_size or self.tolerance is None else 0

    def may_grow(self) -> tuple[str, ...]:
        # a fit cannot return to stochastic steps after its full sweeps
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
        # after stochastic steps, whose values are estimates
        first, least = (self.num_steps, SETTLED) if self.batch_size else (0, self.tolerance)
        if len(chain.values) < first + 2:
            return False
        rise, weight = chain.values[-1] - chain.values[-2], chain.state.total_weight
        # once a sweep raises the bound by so little, it tries unions: while one is accepted, the next may be too
        united = rise <= SETTLED * weight and getattr(chain.state, "may_merge", False)
        return rise <= least * weight and not united


SHORT_FITS.append(SVI(num_steps=30, progress=False).fit)
