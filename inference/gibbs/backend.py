"""The options of Gibbs sampling; kernels are in the files of their structures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...models.domains import Count, Labels, Natural, OneOf, Seed, Whole
from ..backend import Backend
from ..protocol import KernelData, Model
from ..running.engine import Schedule, Sweeps
from ..running.sweeps import FURTHER


@dataclass(eq=False)
class Gibbs(Backend):
    """Draws from the exact posterior by Gibbs sampling, with split-merge proposals.

    Parameters
    ----------
    num_samples : draws kept of each chain
    num_warmup : sweeps before the first draw is kept
    num_chains : independent chains, which `diagnose` of their posterior compares; None: one. Fits of `DPM`, `DDPM`,
        `IHMM` and `DIH` then also sweep a short chain from another start, about a fifth as long, and drop it; a
        `ChainsDisagree` warning says if it ended elsewhere (with at least 100 sweeps of warm-up and 100 draws)
    thinning : sweeps for each draw that is kept
    scan : how the assignments are drawn.
        "collapsed": each point in turn, the family's parameters integrated out; infinite model, mixes best. If rows are
        few and there are no classifiers, a sweep makes up to four scans, since they cost less than the rest of it
        "slice": all points at once; infinite model
        "blocked": all points at once; `model.truncation` components, some of which may be empty
        "auto": "collapsed" if it is compiled (on a CPU, for built-in families; for others it is many times as slow)
        or if the prior serves no other, else "slice"
        For sequences: "direct" (each step in turn), "beam" (all steps at once, infinite model), "blocked" (all at once,
        `model.truncation` states) and "auto" ("direct" if it is compiled, else "beam").
        For topics: "collapsed" (each token in turn, compiled on a CPU), "blocked" (given topics, all documents at once)
        and "auto" ("collapsed" on a CPU, else "blocked").
        For latent features: "collapsed" (each row in turn, infinite model; compiled on a CPU for built-in losses, some
        sixty times as slow for others), "slice" (each feature in turn, infinite model; with many columns it hardly ever
        opens a new feature), "blocked" (each feature in turn, `model.truncation` of them) and "auto" (the first of
        these that the prior serves and that is not slow)
    split_merge : split-merge proposals before each scan of the warm-up (before every second one if components repel),
        and before every tenth scan after it; before every scan if they are compiled (collapsed scans without
        classifiers). Sequences have them if states repel
    num_generative : sweeps of a simpler model at the start of a chain, before the warm-up. If components repel: four
        times as many without hyperplanes, then twice as many in which the power of the margin factors rises to 1. For
        sequences: as a mixture without time. For topics: without the margin
    births : if components repel, where new components of an infinite model take their hyperplanes from. "exact": as
        good as draws from the distribution of the hyperplane of a component without points; "prior": draws from the
        prior, as in the paper; this leaves no distribution invariant and opens far too many components
    init : "one" (all points in one component), "random" (in `model.truncation` components), a Tensor [N] of labels, or
        "auto": for points and sequences the first chain starts as with "one", each other chain in some number of
        components around rows far apart, so that `diagnose` compares chains from different places; for label sets in
        the components in which variational inference settles; else as with "one".
        For topics: a Tensor [M], the topic of each token in the order of `TopicData`; else each token starts at a
        random topic. For latent features: "one" (features opened one after another, at most `model.truncation`), or
        "random" (that many, bits at random)
    seed : of the random generator; the same seed, device and dtype give the same draws
    num_jobs : processes that the chains run in, each on its own core; the draws do not depend on it. None: one for each
        core, if that saves time (with data on a GPU, one process)
    progress : whether to show a bar; None: on a terminal only
    """

    num_samples: Count = 500
    num_warmup: Natural = 200
    num_chains: Count | None = None
    thinning: Count = 1
    scan: Annotated[str, OneOf("auto", "collapsed", "slice", "blocked", "direct", "beam")] = "auto"
    split_merge: Annotated[int, Whole(0, 10**6)] = 2
    num_generative: Annotated[int, Whole(0, 10**6)] = 10
    births: Annotated[str, OneOf("exact", "prior")] = "exact"
    init: Annotated[str | Tensor, Labels("auto", "one", "random")] = "auto"
    seed: Seed = 0
    num_jobs: Count | None = None
    progress: bool | None = None

    value_name: ClassVar[str] = "log joint"

    def truncation_of(self, model: Model) -> str:
        holds_all = getattr(self.module_of(model), "holds_all", None)  # absent if every scan is truncated
        every = self.scan == "blocked" or (holds_all is not None and holds_all(self, model))
        return super().truncation_of(model) if every else ""

    def may_grow(self) -> tuple[str, ...]:
        return "num_samples", "num_chains"

    def require_scan(self, model: Model, *scans: str) -> None:
        """Raise ValueError unless `scan` is one of those that the structure has."""
        if self.scan not in scans:
            known = ", ".join(map(repr, scans))
            raise ValueError(f"scan is {self.scan!r}; for {type(model).__name__} it must be one of {known}.")

    def require_labels(self, data: KernelData, capacity: float, other: str) -> None:
        """Raise ValueError unless labels [N] given for a start fit the data, and are at most `capacity` different ones.

        `other` is a scan that takes any number of labels.
        """
        if not isinstance(self.init, Tensor):
            return
        if self.init.shape != (data.num_data,):
            shape = tuple(self.init.shape)
            raise ValueError(f"init has shape {shape}; expected [{data.num_data}], a label for each row.")
        num_labels = len(torch.unique(self.init))
        if num_labels > capacity:
            raise ValueError(
                f"init has {num_labels} labels, but the model is truncated at {capacity} components. "
                f"Use truncation={num_labels} or more, or scan={other!r}."
            )

    def schedule(self) -> Schedule:
        warmup, thinning = self.num_warmup, self.thinning
        return Schedule(
            num_steps=warmup + self.num_samples * thinning,
            num_chains=self.num_chains or 1,
            num_jobs=self.num_jobs,
            keep=lambda step: step >= warmup and (step - warmup + 1) % thinning == 0,
        )

    def elsewhere(self, sweeps: Sweeps) -> Sweeps | None:
        few, labelled = min(self.num_warmup, self.num_samples) < _LEAST_SWEEPS, getattr(sweeps.model, "coding", None)
        if self.num_chains is not None or few or labelled is not None:  # classes: predictions matter, not clusters
            return None
        short = self.replace(num_warmup=self.num_warmup // 2, num_samples=max(_LEAST_DRAWS, self.num_samples // 10))
        kernel, whose = short.kernel(sweeps.model), sweeps.schedule
        if kernel.init_further is None:
            return None
        schedule = replace(
            short.schedule(),
            seed=whose.seed + FURTHER,
            value_name=whose.value_name,
            progress=whose.progress,
            on_interrupt="raise",
        )
        return Sweeps(replace(kernel, init=kernel.init_further), sweeps.model, sweeps.data, schedule)


_LEAST_SWEEPS, _LEAST_DRAWS = 100, 50  # with fewer, chains cannot be compared
