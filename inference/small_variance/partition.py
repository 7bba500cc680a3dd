"""The kernels of partitions: DP-means with classifiers, or with hyperplanes where components repel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor

from ...models.base import coding_of
from ...models.data import Data
from ...models.mixture import Mixture
from ...models.sparse import entries_sum
from ...models.sums import among
from ..classifiers.duals import joint_hinge
from ..distributed.collectives import all_count, on_all, span
from ..distributed.passes import over_blocks
from ..distributed.picked import sampled_rows
from ..distributed.sources import RowSource
from ..distributed.stream import Stream, stacked, stream_points
from ..running.engine import Draw, Kernel
from . import descent, repelling
from .backend import SmallVariance
from .landscape import Landscape
from .penalty import MOST_ROWS, Wanted, joint_penalty, keeping_penalty, single_penalty
from .problem import Problem, require_divergence
from .restarts import PricedRestarts, kernel_of
from .state import Descent


def check(backend: SmallVariance, model: Mixture) -> None:
    """Raise on a family without a small-variance limit."""
    require_divergence(model)


splits_sources = True  # ranks may have a source of rows each


def takes_labels(model: Mixture) -> bool:
    """Whether a descent may start from labels."""
    return not model.repels


def auto_scale(model: Mixture) -> float:
    """More than 1 where components have classifiers of classes: labels decide less which component a row has."""
    coding = coding_of(model)
    return 3.0 if takes_labels(model) and coding is not None and coding.has_classes else 1.0


def alone(backend: SmallVariance, model: Mixture) -> str:
    """Ranks may have rows each, except where the descent starts from labels, or solves a joint dual to its gap."""
    if joint_hinge(model.loss) is not None:
        return "take loss=Hinge()"
    return "leave init out" if isinstance(backend.init, Tensor) else ""


def kernel(backend: SmallVariance, model: Mixture) -> Kernel:
    """The descent for a resolved model."""
    if takes_labels(model):
        return kernel_of(Descent, partial(MixtureRestarts.of, backend))
    return repelling.kernel(backend, Landscape.of)


def stream(backend: SmallVariance, model: Mixture, source: RowSource) -> tuple[Kernel, Mixture, Any]:
    """The descent, the resolved model and its data, of rows that a source has: few are fitted as a tensor."""
    why = "its components repel" if not takes_labels(model) else alone(backend, model)
    if why:
        raise NotImplementedError(f"SmallVariance of {type(model).__name__} reads no source of rows: {why}; or SVI().")
    model, found = stream_points(source, _BLOCK, model, _FEW)
    if found.num_data <= _FEW:
        return kernel(backend.resolve(model, found.first), model), model, found.first
    return kernel_of(Descent, partial(StreamedRestarts.over, backend.resolve(model, found))), model, found


@dataclass(frozen=True, eq=False)
class MixtureRestarts(PricedRestarts[Problem, Descent]):
    """Restarts of DP-means with classifiers: from one component, from those that the penalty comes from or from labels;
    then from scattered components."""

    @classmethod
    def of(cls, backend: SmallVariance, model: Mixture, data: Data) -> Self:
        """Those of a resolved model."""
        return cls(backend, Problem.of(model, data, backend.scale))

    @property
    def single(self) -> bool:
        """Whether a component opens only where that pays for one point alone."""
        return self.backend.creation == "single"

    @cached_property
    def labelled(self) -> Descent:
        """The components of the labels [N] that a descent starts from."""
        labels, N = torch.as_tensor(self.backend.init), self.problem.data.num_data
        if labels.shape != (N,):
            raise ValueError(f"init has shape {tuple(labels.shape)}; expected [{N}], a label for each row.")
        return descent.of_labels(self.problem, labels.to(self.problem.data.X.device))

    @cached_property
    def wanted(self) -> Wanted:
        """As many components as are wanted, drawn from the seed of the fit, and their penalty."""
        return joint_penalty(self.problem, self.backend.num_components, self.seeded())

    def natural_penalty(self, generator: torch.Generator) -> float:
        if isinstance(self.backend.init, Tensor):
            return keeping_penalty(self.problem, self.labelled, generator)
        return single_penalty(self.problem, self.backend.num_components) if self.single else self.wanted.penalty

    def first(self, generator: torch.Generator) -> Descent:
        if isinstance(self.backend.init, Tensor):
            return descent.at_penalty(self.labelled, self.penalty, self.problem)
        return self.begun()(self.problem)

    def begun(self) -> Callable[[Problem], Descent]:
        """One component with all points of a problem; or those that the penalty comes from, where they cost less."""
        penalty = self.penalty
        if self.single or self.backend.penalty is not None:
            return lambda problem: descent.init(problem, penalty)
        _, centers, weights = self.wanted
        return lambda problem: descent.nearer(problem, penalty, centers, weights)

    def scattered(self, generator: torch.Generator) -> Descent:
        return descent.scattered(self.problem, self.penalty, 2 * self.backend.num_components, generator)

    def sweep(self, state: Descent, generator: torch.Generator) -> Descent:
        return self.swept(state, self.problem, generator)

    def swept(self, state: Descent, problem: Problem, generator: torch.Generator) -> Descent:
        """One sweep over the rows of a problem."""
        tolerance, merge = self.backend.tolerance, self.backend.merge
        return descent.sweep(state, problem, generator, tolerance=tolerance, merge=merge, single=self.single)

    def draw(self, state: Descent) -> Draw:
        return state.draw(self.problem.model, self.problem.data.weights)


@dataclass(frozen=True, eq=False)
class StreamedRestarts(MixtureRestarts):
    """The same over the blocks of a source, in as many passes as there are sums; the problem is that of a sample."""

    stream: Stream[Data]
    start: int  # of the rows of this rank among those of all

    @classmethod
    def over(cls, backend: SmallVariance, model: Mixture, found: Stream[Data]) -> Self:
        """Those of a resolved model, with the rows that its penalty comes from, drawn by the generator of the fit."""
        seeded = torch.Generator(found.X.device).manual_seed(backend.seed)
        chosen, (start, _) = sampled_rows(found.num_own, MOST_ROWS, seeded), span(found.num_own)
        parts, found.marks = on_all(lambda: _picked(found, chosen - start))
        tables = zip(*((part.X, part.features, part.targets) for part in parts), strict=True)
        sample = Problem.of(model, Data(*(stacked(list(table)) for table in tables)), backend.scale)
        return cls(backend, sample, found, start)

    @cached_property
    def wanted(self) -> Wanted:
        """As of all rows, from those of the sample."""
        generator = self.seeded()
        sampled_rows(self.stream.num_own, MOST_ROWS, generator)  # as far as the sample came
        ratio = self.stream.num_data / all_count(self.problem.num_data)
        return joint_penalty(self.problem, self.backend.num_components, generator, ratio)

    def first(self, generator: torch.Generator) -> Descent:
        """The same, in a pass."""
        begun = self.begun()  # before the passes, which are over other rows
        return self._passed(lambda problem, rows: begun(problem), generator)

    def scattered(self, generator: torch.Generator) -> Descent:
        """Components around rows at random."""
        penalty, most = self.penalty, 2 * self.backend.num_components
        return self._passed(lambda problem, rows: descent.scattered(problem, penalty, most, generator), generator)

    def sweep(self, state: Descent, generator: torch.Generator) -> Descent:
        """One sweep, in passes."""

        def swept(problem: Problem, rows: slice) -> Descent:
            nothing = problem.X.new_zeros(problem.data.targets.shape)  # duals are of few rows alone
            own = replace(state, assignments=state.assignments[rows].long(), duals=nothing)
            return self.swept(own, problem, generator)

        return self._passed(swept, generator)

    def draw(self, state: Descent) -> Draw:
        """What a Posterior keeps of a state: labels of the first rows."""
        found = state.draw(self.problem.model, None)
        return found | {"assignments": state.assignments[: self.stream.num_kept].long()}

    def _passed(self, work: Callable[[Problem, slice], Descent], generator: torch.Generator) -> Descent:
        """The state that a step comes to, of all rows."""

        first, total = self.start, self.stream.num_data

        def own(block: tuple[slice, Data]) -> Descent:
            rows, data = block
            placed = data.placed(first + rows.start, total)
            state = work(Problem.of(self.problem.model, placed, self.backend.scale), rows)
            return replace(state, assignments=state.assignments.int(), duals=state.duals[:0])

        found = over_blocks(self._blocks, len(self.stream.marks), own, generator)
        return replace(found[0], assignments=torch.cat([state.assignments for state in found]))

    def _blocks(self) -> Iterator[tuple[slice, Data]]:
        """All blocks, with the place of their rows."""
        start, place = 0, -1
        for place, data in enumerate(self.stream.each()):
            if place == len(self.stream.marks) or _mark(data) != self.stream.marks[place]:
                break
            yield slice(start, start + data.num_data), data
            start += data.num_data
        if start != self.stream.num_own:
            raise ValueError(
                f"{self.stream.source.name} gives other rows in block {place} of a later pass. SmallVariance needs the "
                "same rows in the same order in every pass: do not shuffle them, or use SVI()."
            )


def _picked(found: Stream[Data], chosen: Tensor) -> tuple[list[Data], list[tuple[int, float]]]:
    """Of each block those of the rows with some numbers [M], in increasing order, and its mark."""
    parts, marks, start = list[Data](), list[tuple[int, float]](), 0
    with among(None):  # ranks may have more blocks or fewer
        for data in found.each():
            first, last = torch.searchsorted(chosen, torch.tensor([start, start + data.num_data]))
            parts.append(data.rows(chosen[first:last] - start))
            marks.append(_mark(data))
            start += data.num_data
    return parts, marks


def _mark(data: Data) -> tuple[int, float]:
    """The number of rows of a block, and a sum that their order and their targets change: so it is known again."""
    sums = entries_sum(data.X, lambda X: X).double() + data.targets.nan_to_num().sum(1)
    return data.num_data, float(sums @ torch.arange(1.0, 1 + data.num_data).to(sums))


_FEW = 10_000  # rows of a source that are fitted as a tensor
_BLOCK = 2**16  # rows
