"""The base class of backends: it checks and resolves a fit, runs its kernel, and wraps the draws."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypedDict, Unpack, overload

from torch import Tensor

from ..models import host
from ..models.base import with_factor
from ..models.config import Config, to_plain
from ..models.domains import Number, OneOf, read, shown
from ..models.priors import PartitionPrior
from ..models.sums import among
from ..models.warning import each_once
from .distributed.rows import streamed
from .distributed.sources import require_apart
from .distributed.together import together
from .posterior.base import Posterior
from .posterior.draws import require_record
from .posterior.trace import Trace
from .protocol import B_contra, KernelData, M_contra, Model
from .row_weights import CountedRows
from .running.agreement import warn_of_chains, warn_of_elsewhere
from .running.emptied import warn_if_one_is_left
from .running.engine import Chain, Draw, Kernel, Schedule, Sweeps, run
from .running.files import path_text
from .running.shards import shard_of
from .running.sweeps import require_room_to_fit
from .structures import lookup, structure_of

if TYPE_CHECKING:  # for the return types of `fit`
    from ..models import BNMC, MultiTaskInfiniteLatentSVM
    from ..models.latent_features import FeatureModel
    from ..models.mixture import Mixture
    from ..models.sequence import StateSpace
    from ..models.topics import TopicModel
    from .posterior import (
        FeaturePosterior,
        MultiLabelPosterior,
        PartitionPosterior,
        ProjectionPosterior,
        SequencePosterior,
        TopicPosterior,
    )


class FitOptions(TypedDict, total=False):
    """The options of `Backend.fit`."""

    lengths: Any
    sample_weight: Any
    loss_weight: Any
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: float
    resume: str | os.PathLike[str] | None
    on_interrupt: str
    group: Any


class KernelModule(Protocol[B_contra, M_contra]):
    """A module, or any object, that a backend registers for a structure, with these two functions.

    If it serves a structure in part, it also has `why_not(model) -> str`: "" for models that it serves, otherwise the
    rest of a sentence after "has no ... backend". If its fits may be split among ranks, it has `alone(backend, model)
    -> str`: "" if they may, otherwise which fit to take instead, as the end of a sentence.
    """

    def kernel(self, backend: B_contra, model: M_contra) -> Kernel:
        """The algorithm for this model, with the backend's options."""

    def check(self, backend: B_contra, model: M_contra) -> None:
        """Raise ValueError on options without meaning here, NotImplementedError on a model that it cannot serve."""


class Backend(Config):
    """A way to compute posteriors.

    A subclass has its options as fields, a `schedule`, and `results`. Its table `kernels` says which models it serves:
    each `register` adds the kernel of one more structure. Its `kind` says what a fit gives, and what can be checked:

    "draws"        draws whose distribution tends to the posterior
    "bound"        one state, whose value never falls and stays below the log evidence
    "objective"    one state, whose value never rises
    "estimate"     anything else: its value is noisy, or approaches nothing that is exact
    """

    kernels: ClassVar[ChainMap[type[Any], KernelModule[Any, Any]]] = (
        ChainMap()
    )  # by data type; a subclass inherits those of its bases
    value_name: ClassVar[str] = "value"
    kind: ClassVar[str] = "draws"  # what a fit gives, see above
    weighs: ClassVar[bool] = False  # whether its kernels use weights; if not, a row of weight 3 becomes 3 rows
    needs: ClassVar[str] = ""  # method that a prior over partitions must define for it besides `urn`, such as "sticks"
    resumable: ClassVar[bool] = True  # whether a chain can be continued from its state alone, so from a file
    seed: int
    progress: bool | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kernels = cls.kernels.new_child()

    @property
    def loss_weighing(self) -> tuple[type[Any], ...]:
        """The types of data whose kernels can weigh the loss of a row separately."""
        return ()

    @classmethod
    def register(cls, data_type: type[Any], module: KernelModule[Any, Any]) -> None:
        """Use the kernel of a module for models with this `data_type`, or one derived from it."""
        cls.kernels[data_type] = module

    @classmethod
    def serves(cls, model: Model) -> bool:
        """Whether this backend has a kernel for a model."""
        module = lookup(cls.kernels, model)
        return module is not None and not _why_not(module, model) and not _lack(cls.needs, model)

    @classmethod
    def module_of(cls, model: Model) -> Any:
        """The module with the kernel for a model.

        Raises
        ------
        NotImplementedError    if this backend has none (names those that have).
        """
        module, which = lookup(cls.kernels, model), f"{type(model).__name__} has no {cls.__name__} backend"
        why_not = _why_not(module, model)
        if module is None or why_not:
            able = ", ".join(other.__name__ for other in _subclasses(Backend) if other.serves(model))
            raise NotImplementedError(f"{which}{why_not}; it has: {able or 'none'}.")
        if lack := _lack(cls.needs, model):
            raise NotImplementedError(f"{which}: {lack}.")
        return module

    def kernel(self, model: Model) -> Kernel:
        """The kernel for this model, with this backend's options."""
        kernel: Kernel = self.module_of(model).kernel(self, model)
        return kernel

    def schedule(self) -> Schedule:
        """Length, chains and stopping rule of a fit; `fit` adds the seed, the progress bar and files."""
        raise NotImplementedError

    def resolve(self, model: Model, data: KernelData) -> Self:
        """A copy with defaults computed from a resolved model and its data; a posterior keeps it."""
        return self

    def results(self, sweeps: Sweeps, chains: list[Chain]) -> list[list[Draw]]:
        """The draws that the posterior keeps, for each chain."""
        return [chain.draws for chain in chains]

    def traced(self, chains: list[Chain]) -> list[Chain]:
        """The chains whose values are in the posterior's trace."""
        return chains

    def elsewhere(self, sweeps: Sweeps) -> Sweeps | None:
        """A short chain from another start, with which the chain of a fit is compared; None: no comparison."""
        return None

    def truncation_of(self, model: Model) -> str:
        """The name of the model's argument with the number of components; "" if a state may have any number."""
        return next((name for name in ("truncation", "num_topics") if hasattr(model, name)), "")

    def least_steps(self, schedule: Schedule) -> int:
        """The least number of steps of a chain, whatever stops it."""
        return schedule.num_steps if schedule.stop is Schedule.stop else 0

    def may_grow(self) -> tuple[str, ...]:
        """Names of the options that a resumed fit may have larger than the fit that wrote its checkpoint."""
        return ()

    def identity(self) -> dict[str, Any]:
        """The options that a resumed fit must share, and the class, as plain data."""
        described: dict[str, Any] = to_plain(self)
        others = {*self.may_grow(), "num_jobs", "progress"}
        return described | {"params": {key: value for key, value in described["params"].items() if key not in others}}

    def admit(self, model: Model) -> Model:
        """The model with its arguments checked; raises unless this backend serves it."""
        if not isinstance(model, Config) or not hasattr(model, "data_type"):
            raise ValueError(f"model is {shown(model)}; expected an object such as DPM() or InfiniteSVM().")
        model = model.checked()
        factored = with_factor(model)  # kernels use the parts of the model
        self.module_of(factored).check(self, factored)
        return model

    @overload
    def fit(self, model: Mixture, X: Any, y: Any = None, **options: Unpack[FitOptions]) -> PartitionPosterior:
        """The fit of a mixture."""
        ...

    @overload
    def fit(self, model: StateSpace, X: Any, y: Any = None, **options: Unpack[FitOptions]) -> SequencePosterior:
        """The fit of sequences."""
        ...

    @overload
    def fit(self, model: BNMC, X: Any, y: Any = None, **options: Unpack[FitOptions]) -> MultiLabelPosterior:
        """The fit of label sets."""
        ...

    @overload
    def fit(self, model: FeatureModel, X: Any, y: Any = None, **options: Unpack[FitOptions]) -> FeaturePosterior:
        """The fit of latent features."""
        ...

    @overload
    def fit(
        self, model: MultiTaskInfiniteLatentSVM, X: Any, y: Any = None, **options: Unpack[FitOptions]
    ) -> ProjectionPosterior:
        """The fit of many tasks."""
        ...

    @overload
    def fit(self, model: TopicModel, X: Any, y: Any = None, **options: Unpack[FitOptions]) -> TopicPosterior:
        """The fit of topics."""
        ...

    @overload
    def fit(self, model: Model, X: Any, y: Any = None, **options: Unpack[FitOptions]) -> Any:
        """The fit of any other model."""
        ...

    def fit(
        self,
        model: Model,
        X: Any,
        y: Any = None,
        *,
        lengths: Any = None,
        sample_weight: Any = None,
        loss_weight: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        resume: str | os.PathLike[str] | None = None,
        on_interrupt: str = "return",
        group: Any = None,
    ) -> Any:
        """The posterior of `model` given X [N, D] and targets y [N] or [N, C].

        Parameters
        ----------
        model : a model of `regbayes.models`; it is not changed
        X, y : torch tensors (device and dtype are kept) or anything numpy-like; for `SVI` and `SmallVariance` X may be
            a source of rows that need not fit into memory, `rows_of(...)` or a torch DataLoader, with y in its blocks.
            Models without targets (`DPM`, `DDPM`, `LatentFeatureModel`, `LDA`) do not read y
        lengths : rows of each sequence, one after another in X, for the models of sequences; None: one sequence
        sample_weight : how many times each row counts [N], at least 0; a row of weight 0 is left out, and gets its
            component at the end. Only whole numbers for backends that draw the component of each row (Gibbs, NUTS,
            Autoguide) and for documents (`LDA`, `MedLDA`). Not for sequences (`IHMM`, `DIH`), tasks
            (`MultiTaskInfiniteLatentSVM`) and a source of rows
        loss_weight : how many times the loss of each row counts [N], at least 0, in addition to its sample weight:
            factors phi(y_n | f_n)^c_n. Only for `SVI(rule="gibbs")` of mixtures with classifiers
        checkpoint : file that the chains are written to, whole or not at all: after the first step that ends
            `checkpoint_every` seconds or more after the last writing, and at the end, also after Ctrl-C. With a source
            of rows it holds their number and a digest of the first ones; all passes must have the same order
        checkpoint_every : seconds; 0: after every step
        resume : a checkpoint to continue from, of the same fit or of a shorter one (see `may_grow`); the result is the
            same, bit for bit, as that of one long run
        on_interrupt : what Ctrl-C does: "return" what was drawn until then, with a `FitInterrupted` warning, or
            "raise" KeyboardInterrupt, for fits inside a search or a loop, which should then end as well
        group : a process group of torch.distributed, such as `dist.group.WORLD`, whose ranks all make this call, each
            with rows of its own and their weights; they are fitted as one data set, the rows of one rank after those of
            another. The posterior of each rank has all components, and the assignments of its rows (`gather` gives
            those of all). A checkpoint is in a folder that all of them see, with a file of the rows of each rank beside
            it; any number of ranks, or one process, can continue from it. None (as `group.WORLD` is before
            `init_process_group()`): X holds all rows

        Raises
        ------
        KeyboardInterrupt      on Ctrl-C if `on_interrupt` says so, or if there is nothing to return.
        NotImplementedError    if this backend has no kernel for the model (names those that have).
        FileNotFoundError      if `resume` names no file.
        RankLost               if a rank of the group ends (names it), or does not answer within its timeout.
        ValueError             on bad data or options, before any work.
        """
        backend, every = self.checked(), read("checkpoint_every", checkpoint_every, Number(least=0.0))
        on_interrupt = read("on_interrupt", on_interrupt, OneOf("return", "raise"))
        model = given = backend.admit(model)
        files: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume}
        parts = {name: part for name, part in model.get_params(deep=False).items() if name in _FROM_DATA}
        weights = sample_weight, loss_weight
        if group is None:
            self.require_files(X, **files)
        whose_rows = among(None) if group is None else together(group, backend, model, X, y, lengths, weights, **files)
        with host.usual_torch(), each_once(), whose_rows:
            rows = CountedRows.of(backend, model, X, y, *weights)
            X, y, options = (X, y, {}) if rows is None else (rows.X, rows.y, rows.options)
            kernel, model, data, schedule = backend.prepare(model, X, y, lengths, **options)
            resolved = backend.resolve(model, data)
            require_room_to_fit(resolved, model, data, schedule)
            whose: dict[str, Any] = {"value_name": self.value_name, "seed": backend.seed, "progress": self.progress}
            files |= {"checkpoint_every": every, "on_interrupt": on_interrupt}
            identity = schedule.backend or backend.identity()
            schedule = replace(schedule, **whose, **files, backend=identity, parts=parts)
            posterior = resolved.finish(model, data, schedule, kernel)
        found = posterior if rows is None else rows.completed(posterior)
        whole = found.trace.values.shape[1] >= self.least_steps(schedule)  # not ended early by Ctrl-C
        if whole and group is None and streamed(X) is None and "assignments" in found.samples:
            warn_if_one_is_left(found.samples["assignments"][-1], given, X, lengths, options.get("weights"))
        return found

    def require_files(self, X: Any, checkpoint: Any, resume: Any) -> None:
        """Raise unless a fit to X can write `checkpoint` and read `resume`, paths or None."""
        for name, path in (("checkpoint", checkpoint), ("resume", resume)):
            if path is not None:
                path_text(name, path)
        if not self.resumable and (checkpoint is not None or resume is not None):
            raise ValueError(
                f"{type(self).__name__} writes no checkpoints: leave checkpoint and resume out, or use Gibbs or SVI."
            )
        source = None if checkpoint is None and resume is None else streamed(X)
        if source is not None and not source.in_order:
            raise ValueError(
                f"X comes from {source.name}, whose order may change, so that a fit cannot be resumed. Leave "
                "checkpoint and resume out, or pass rows that come in one order, as rows_of(...) gives them."
            )
        if source is not None and checkpoint is not None:
            require_apart("checkpoint", Path(os.path.realpath(checkpoint)), source)
        if resume is not None and not os.path.exists(resume):
            raise FileNotFoundError(f"resume is {os.fspath(resume)!r}, but there is no such file.")

    def prepare(
        self, model: Model, X: Any, y: Any, lengths: Any, **weights: Tensor
    ) -> tuple[Kernel, Model, KernelData, Schedule]:
        """The kernel, the resolved model, its data and the schedule of a fit to X [N, D] and y [N].

        `weights` [N] is passed to the model's `prepare`, if rows have weights; `loss_weights` [N] goes to the data
        alone.
        """
        if not isinstance(X, Tensor) and (source := streamed(X)) is not None:
            raise ValueError(
                f"X comes from {source.name}, which {type(self).__name__} cannot read: pass its rows, or use SVI()."
            )
        losses = weights.pop("loss_weights", None)
        resolved, data = model.prepare(X, y, lengths, **weights)
        data = data if losses is None else replace(data, loss_weights=losses)
        backend = self.resolve(resolved, data)
        return backend.kernel(resolved), resolved, data, backend.schedule()

    def finish(self, model: Model, data: KernelData, schedule: Schedule, kernel: Kernel) -> Any:
        """Run the kernel of a resolved model on its data, and wrap the draws."""
        sweeps = Sweeps(kernel, model, data, schedule)
        with host.one_thread():
            chains = run(sweeps)
            drawn = self.results(sweeps, chains)
        if any(drawn):
            kernel.warn([draw for chain in drawn for draw in chain], model)
        else:  # interrupted in the warm-up: return its last state
            drawn = [[sweeps.finished(chains[-1].state)]]
        structure = structure_of(model)
        kind: type[Posterior] = structure.posterior
        require_record(next(draw for chain in drawn for draw in chain), kind.record, type(self).__name__)
        samples = structure.stack([draw for chain in drawn for draw in chain])
        trace = Trace.of(self.value_name, self.kind, self.traced(chains))
        posterior = kind(model, self, samples, [len(chain) for chain in drawn], trace, shard=shard_of(data, "num_kept"))
        warn_of_chains(posterior)
        if (short := self.elsewhere(sweeps)) is not None and not sweeps.unfinished(chains[0]):
            with host.one_thread():
                warn_of_elsewhere(posterior, chains[0], sweeps, short)
        return posterior


_FROM_DATA = "likelihood", "feature_map", "preprocessing"  # parts of a model whose defaults are computed from the rows


def _why_not(module: Any, model: Model) -> str:
    find = getattr(module, "why_not", None)
    return find(model) if find else ""


def _lack(method: str, model: Model) -> str:
    prior = getattr(model, "prior", None)
    if not method or not isinstance(prior, PartitionPrior):
        return ""
    return prior.lacks(method, getattr(model, "without_sticks", ""))


def _subclasses(cls: type[Backend]) -> Iterator[type[Backend]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)
