"""Gibbs sampling: exact in the limit of many sweeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..backend import Backend
from ..engine import Chain, Draw, Kernel, Schedule
from . import partition, sequence
from .state import PartitionState, SequenceState

__all__ = ["Gibbs"]


@dataclass(eq=False)
class Gibbs(Backend):
    """Draws from the exact posterior by Gibbs sampling, with split-merge proposals.

    Parameters
    ----------
    num_samples : draws kept of each chain
    num_warmup : sweeps before the first draw is kept
    num_chains : independent chains, one after another
    thinning : sweeps for each draw that is kept
    scan : how the assignments are drawn.
        "collapsed": each point in turn, the family's parameters integrated out; infinite model, mixes best
        "slice": all points at once; infinite model
        "blocked": all points at once; model truncated at `model.truncation` components
        "auto": "collapsed" where it is compiled (built-in families on a CPU), else "slice"
        and for sequences "direct" (each step in turn), "beam" (all steps at once, infinite model), "blocked" (all steps
        at once, truncated model) and "auto" ("direct" where it is compiled, else "beam")
    split_merge : split-merge proposals before each scan; none where components repel, nor for sequences
    num_generative : sweeps that a chain starts with: without hyperplanes where components repel, and as a mixture
        without time for sequences
    births : where components repel, the hyperplanes that new components of an infinite model choose from. "exact": as
        good as draws from the law of a component without points; "prior": draws from the prior, as in the paper, which
        leave no distribution invariant and open far too many components
    init : "one" (all points in one component), "random" (in `model.truncation` components), or a Tensor [N] of labels
    seed : of the random generator; the same seed, device and dtype give the same draws
    progress : whether to show a bar; None: on a terminal only
    """

    num_samples: int = 500
    num_warmup: int = 200
    num_chains: int = 1
    thinning: int = 1
    scan: str = "auto"
    split_merge: int = 2
    num_generative: int = 10
    births: str = "exact"
    init: str | Tensor = "one"
    seed: int = 0
    progress: bool | None = None

    structures: ClassVar[tuple[str, ...]] = ("partition", "sequence")
    value_name: ClassVar[str] = "log joint"

    def check(self, model: Any) -> None:
        self.require_counts(num_samples=1, num_warmup=0, num_chains=1, thinning=1, seed=0)
        self.require_counts(split_merge=0, num_generative=0)
        if self.scan not in _SCANS[model.structure]:
            known = ", ".join(map(repr, _SCANS[model.structure]))
            raise ValueError(f"scan is {self.scan!r}; for {type(model).__name__} expected one of {known}.")
        if self.births not in ("exact", "prior"):
            raise ValueError(f"births is {self.births!r}; expected 'exact' or 'prior'.")
        if not isinstance(self.init, Tensor) and self.init not in ("one", "random"):
            raise ValueError(f"init is {self.init!r}; expected 'one', 'random' or a Tensor of labels.")

    def kernel(self, model: Any) -> Kernel:
        truncated = self.scan == "blocked"
        if model.structure == "sequence":
            return Kernel(
                state=SequenceState,
                init=self._init_sequence,
                sweep=partial(sequence.sweep, scan=self.scan, births=self.births),
                value=partial(sequence.log_joint, truncated=truncated),
                draw=partial(sequence.draw, truncated=truncated),
            )
        return Kernel(
            state=PartitionState,
            init=partial(self._init, truncated=truncated),
            sweep=partial(partition.sweep, scan=self.scan, num_split_merge=self.split_merge, births=self.births),
            value=partial(partition.log_joint, truncated=truncated),
            draw=partial(partition.draw, truncated=truncated),
        )

    def schedule(self) -> Schedule:
        warmup, thinning = self.num_warmup, self.thinning
        return Schedule(
            num_steps=warmup + self.num_samples * thinning,
            num_chains=self.num_chains,
            keep=lambda step: step >= warmup and (step - warmup + 1) % thinning == 0,
            value_name=self.value_name,
            seed=self.seed,
            progress=self.progress,
        )

    def results(self, kernel: Kernel, model: Any, data: Any, chains: list[Chain]) -> list[list[Draw]]:
        if self.scan == "blocked":
            kept = [draw for chain in chains for draw in chain.draws]
            self.warn_if_full(kept, model, f", or with scan={_INFINITE[model.structure]!r}")
        return [chain.draws for chain in chains]

    def _init(self, model: Any, data: Any, generator: torch.Generator, *, truncated: bool) -> PartitionState:
        if isinstance(self.init, Tensor):
            self._check_labels(self.init, model, data, truncated=truncated)
        if model.repels:
            options: dict[str, Any] = {"start": self.init, "scan": self.scan, "num_sweeps": self.num_generative}
            return partition.init_generatively(model, data, generator, **options)
        return partition.init(model, data, generator, start=self.init, truncated=truncated)

    def _init_sequence(self, model: Any, data: Any, generator: torch.Generator) -> SequenceState:
        if isinstance(self.init, Tensor):
            self._check_labels(self.init, model, data, truncated=self.scan == "blocked")
        options: dict[str, Any] = {"start": self.init, "scan": self.scan, "num_sweeps": self.num_generative}
        return sequence.init(model, data, generator, **options)

    def _check_labels(self, labels: Tensor, model: Any, data: Any, *, truncated: bool) -> None:
        """Labels given for a start: one for each row, and no more than there are components."""
        if labels.shape != (data.num_data,):
            raise ValueError(f"init has shape {tuple(labels.shape)}; expected [{data.num_data}], a label for each row.")
        num_labels = len(torch.unique(labels))
        if truncated and num_labels > model.truncation:
            raise ValueError(
                f"init has {num_labels} labels, but the model is truncated at {model.truncation} components. "
                f"Use truncation={num_labels} or more, or scan={_INFINITE[model.structure]!r}."
            )


_INFINITE = {"partition": "slice", "sequence": "beam"}
_SCANS = {
    "partition": ("auto", "collapsed", "slice", "blocked"),
    "sequence": ("auto", "direct", "beam", "blocked"),
}
