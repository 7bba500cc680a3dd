"""The base class of posteriors: draws, trace, files, and conversion to ArviZ."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
import torch

from ...models.arrays import tensor_of
from ...models.config import from_plain, to_plain
from ...models.domains import Whole, shown
from ...models.ranks import Ranks, meeting
from ..protocol import Model
from ..running.files import require_entries, write_file
from ..running.plain import plain as as_plain
from ..running.shards import Shard, Table, read_shards, write_shards
from ..structures import Draw, structure_of
from .diagnosis import Diagnosis, diagnose
from .draws import AnyDraw, axes_of, names_of, tables_of
from .html import posterior_html
from .shapes import require_samples
from .trace import Trace


class Posterior:
    """A fitted model.

    Attributes
    ----------
    model : the model with every data-dependent default resolved
    backend : the backend that computed it
    samples : dict of Tensors with a leading axis of S draws (chains one after another; S = 1 for SVI, SmallVariance)
    num_draws : int list, draws of each chain
    trace : Trace
    metadata : dict of plain data that is saved with the posterior, for you to fill
    shard : in a fit among ranks, the rows of this rank, to which samples by row, such as assignments, belong; None: all
    """

    record: ClassVar[type[Any]] = AnyDraw  # declares the entries of a draw

    def __init__(
        self,
        model: Model,
        backend: Any,
        samples: Draw,
        num_draws: list[int],
        trace: Trace,
        metadata: dict[str, Any] | None = None,
        shard: Shard | None = None,
    ) -> None:
        self.model: Any = model
        self.backend = backend
        self.samples = samples
        self.num_draws = num_draws
        self.trace = trace
        self.metadata = dict(metadata or {})
        self.shard = shard

    def draw(self, index: int) -> Draw:
        """Draw number `index` of 0..S-1: its tensors [...] by name."""
        return {name: value[index] for name, value in self.samples.items()}

    def draws(self) -> Iterator[Draw]:
        """All draws, one after another."""
        return (self.draw(index) for index in range(sum(self.num_draws)))

    def replace(self, **parts: Any) -> Self:
        """The same posterior with other parts, by the names of the attributes."""
        own = {name: getattr(self, name) for name in [*_PARTS, "shard"]}
        return type(self)(**own | parts)

    def gather(self, group: Any = None) -> Self:
        """The posterior with the rows of all ranks, in the order of the ranks. Every rank returns it.

        Parameters
        ----------
        group : that of the fit, whose ranks all make this call; None: all ranks

        Raises
        ------
        ValueError    if the group has another number of ranks than the fit.
        """
        if self.shard is None:
            return self
        with self._meeting(group) as those:
            rows = {name: torch.cat(those.objects(self.samples[name]), 1) for name in self._tables(self.shard)}
        return self.replace(samples=self.samples | rows, shard=None)

    @contextmanager
    def _meeting(self, group: Any) -> Iterator[Ranks]:
        """A context in which the ranks of the fit take part; None: all ranks."""
        number = 1 if self.shard is None else self.shard.num_ranks
        with meeting(torch.distributed.group.WORLD if group is None else group) as those:
            if those.size != number:
                raise ValueError(f"group has {those.size} ranks; expected the {number} of the fit.")
            yield those

    def _tables(self, shard: Shard) -> dict[str, str]:
        """The names of samples [S, N, ...] that are split among ranks, with the name of their axis N."""
        axes = tables_of(self.record)
        return {name: axes[name] for name in sorted(axes.keys() & self.samples.keys()) if axes[name] in shard.sizes}

    def __repr__(self) -> str:
        facts = [f"{sum(self.num_draws)} draws", *self.facts()]
        facts.append(f"{self.trace.name} {self.trace.best:.6g}")
        return f"Posterior({type(self.model).__name__} by {type(self.backend).__name__}: {', '.join(facts)})"

    def _repr_html_(self) -> str:
        return posterior_html(self)

    def facts(self) -> list[str]:
        """Facts about the structure for `repr`."""
        return []

    def save(self, path: str | os.PathLike[str], group: Any = None) -> None:
        """Write tensors and plain data to `path`, atomically: a safetensors file with a digest of its bytes.

        After a fit among ranks all ranks make this call, in a folder that all of them see: the first writes `path`, and
        each writes a file of its rows beside it. Once a rank returns, all these files are complete.

        Parameters
        ----------
        group : as in `gather`

        Raises
        ------
        OSError       if the file cannot be written to its end, as on a full disk; `path` is then as it was, and all
                      ranks of a fit raise.
        ValueError    if the model or `metadata` holds anything else, such as a function for a feature map, if no file
                      can be written there, or if the group has another number of ranks than the fit.
        """
        if not isinstance(self.metadata, dict):
            raise ValueError(f"metadata is {shown(self.metadata)}; expected a dict of plain data.")
        plain = {"model": to_plain(self.model), "backend": to_plain(self.backend), "trace": vars(self.trace)}
        own = {name: getattr(self, name) for name in _PARTS}
        if self.shard is not None:
            plain["metadata"] = as_plain(self.metadata, "metadata")
            tables = self._tables(self.shard)
            own["samples"] = self.samples | {name: Table(self.samples[name], 1, axis) for name, axis in tables.items()}
        if self.shard is None:
            write_file(path, "posterior", own | plain)
            return
        with self._meeting(group) as those:
            write_shards(path, "posterior", own | plain, self.shard, those.objects)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: Any = None) -> Any:
        """Read a saved posterior, in the class of its model's structure; never runs code from the file.

        The posterior of a fit among ranks has the rows of all ranks.

        The digest detects accidents, such as a truncated copy. It is not a signature: a forged file is refused if its
        parts do not fit together, but its predictions may be anything.

        Parameters
        ----------
        device : where the tensors go; None: where they were

        Raises
        ------
        FileNotFoundError    if there is no such file, or one of its shards is missing.
        OSError              if it cannot be read.
        ValueError           if it was changed, is of another schema, has parts that do not go together, or needs a
                             class that is not imported.
        """
        content = read_shards(path, "posterior", device)
        require_entries(content, "content", _PARTS)
        model, backend = from_plain(content["model"]), from_plain(content["backend"])
        if not hasattr(model, "data_type") or not hasattr(backend, "fit"):
            raise ValueError(f"The file has {shown(model)} by {shown(backend)}, which are no model and backend.")
        kind: type[Posterior] = structure_of(model).posterior
        samples, num_draws, trace = content["samples"], content["num_draws"], Trace.read(content["trace"])
        require_samples(samples, num_draws, names_of(kind.record), axes_of(kind.record))
        trace.require_chains(len(num_draws))
        posterior = kind(model, backend, samples, num_draws, trace, content["metadata"])
        try:
            model.checked()
            backend.checked()
            posterior.rehearse()
        except Exception as error:  # whatever user code raises on parts that are not its own
            raise ValueError(
                f"The parts of the file do not go together: {type(error).__name__}: {shown(str(error))}. "
                "It was not written by regbayes, or by one with other parts."
            ) from error
        return posterior

    def rehearse(self) -> None:
        """Raise if the first draw and the model are inconsistent, by predictions for no rows."""

    def diagnose(self) -> Diagnosis:
        """Whether the chains agree, by quantities that do not depend on component labels, and what to do if not."""
        return diagnose(self)

    def of_chains(self, chains: Iterable[int]) -> Self:
        """The same posterior with the draws of some chains alone, counted from 0: one of `diagnose().groups`, say.

        Raises
        ------
        ValueError    unless each is a chain, and there is one.
        """
        number = len(self.num_draws)
        try:
            chosen = [Whole(0, number - 1).read(chain) for chain in chains]
        except (TypeError, ValueError):
            chosen = []
        if not chosen or len(set(chosen)) < len(chosen):
            raise ValueError(f"chains is {shown(chains)}; expected some of 0 to {number - 1}, each once, such as [0].")
        if number == 1:  # the trace may have several restarts
            return self
        draws = torch.arange(sum(self.num_draws)).split(self.num_draws)
        index = torch.cat([draws[chain] for chain in chosen])
        samples = {name: value[index.to(value.device)] for name, value in self.samples.items()}
        trace = dataclasses.replace(self.trace, values=self.trace.values[chosen], seconds=self.trace.seconds[chosen])
        num_draws = [self.num_draws[chain] for chain in chosen]
        return self.replace(samples=samples, num_draws=num_draws, trace=trace)

    def log_likelihood(self, X: Any) -> Any:
        """log likelihood [S, N] of each row under each draw."""
        raise NotImplementedError(f"{type(self).__name__} states no density of rows: leave X out.")

    def to_arviz(self, X: Any = None, **options: Any) -> Any:
        """Label-free summaries of one number for each draw, as arviz InferenceData (0.x) or DataTree (1.x).

        Parameters
        ----------
        X : rows of the fit, whose `log_likelihood` is then a group, for `arviz.loo` and `arviz.waic`
        options : of `log_likelihood`, such as y, or lengths of sequences
        """
        try:
            import arviz
        except ImportError as error:
            raise ImportError('to_arviz needs arviz: pip install "regbayes[arviz]".') from error
        if len(set(self.num_draws)) != 1:
            raise ValueError(f"The chains have {self.num_draws} draws, but arviz needs equal numbers. Resume the fit.")
        shape = (len(self.num_draws), self.num_draws[0])
        kept = {name: value for name, value in structure_of(self.model).summaries(self).items() if value.ndim == 1}
        groups: dict[str, Any] = {
            "posterior": {name: np.asarray(value.cpu()).reshape(shape) for name, value in kept.items()}
        }
        if X is not None:
            found = tensor_of(self.log_likelihood(X, **options))
            groups["log_likelihood"] = {"X": np.asarray(found.cpu()).reshape(*shape, -1)}
        if int(arviz.__version__.split(".")[0]) >= 1:
            return arviz.from_dict(groups)
        return arviz.from_dict(**groups)


_PARTS: dict[str, type] = {
    "model": dict,
    "backend": dict,
    "samples": dict,
    "num_draws": list,
    "trace": dict,
    "metadata": dict,
}
