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
    """Raise NotImplementedError on a likelihood without a small-variance limit."""
    require_divergence(model)


splits_sources = True  # each rank may have its own source of rows


def takes_labels(model: Mixture) -> bool:
    """Whether a descent may start from given assignments."""
    return not model.repels


def auto_scale(model: Mixture) -> float:
    """More than 1 if components have classifiers of classes: else labels determine the components too much."""
    coding = coding_of(model)
    return 3.0 if takes_labels(model) and coding is not None and coding.has_classes else 1.0


def alone(backend: SmallVariance, model: Mixture) -> str:
    """What to change so that ranks can share the rows; "" if nothing.

    Starts from labels are not shared; a joint hinge is not, because its dual is solved to its gap.
    """
    if joint_hinge(model.loss) is not None:
        return "take loss=Hinge()"
    return "leave init out" if isinstance(backend.init, Tensor) else ""


def kernel(backend: SmallVariance, model: Mixture) -> Kernel:
    """The kernel of a resolved model."""
    if takes_labels(model):
        return kernel_of(Descent, partial(MixtureRestarts.of, backend))
    return repelling.kernel(backend, Landscape.of)


def stream(backend: SmallVariance, model: Mixture, source: RowSource) -> tuple[Kernel, Mixture, Any]:
    """The kernel, the resolved model and its data, for rows from a source; a few rows are fitted as a tensor."""
    why = "its components repel" if not takes_labels(model) else alone(backend, model)
    if why:
        raise NotImplementedError(f"SmallVariance of {type(model).__name__} reads no source of rows: {why}; or SVI().")
    model, found = stream_points(source, _BLOCK, model, _FEW, in_turn=False)
    if found.num_data <= _FEW:
        return kernel(backend.resolve(model, found.first), model), model, found.first
    return kernel_of(Descent, partial(StreamedRestarts.over, backend.resolve(model, found))), model, found


@dataclass(frozen=True, eq=False)
class MixtureRestarts(PricedRestarts[Problem, Descent]):
    """Restarts of DP-means with classifiers.

    The first starts from one component, from the components that the penalty comes from, or from labels; the others
    start from random components.
    """

    @classmethod
    def of(cls, backend: SmallVariance, model: Mixture, data: Data) -> Self:
        """The restarts of a resolved model."""
        return cls(backend, Problem.of(model, data, backend.scale))

    @property
    def single(self) -> bool:
        """Whether a component opens only if that pays for a single point."""
        return self.backend.creation == "single"

    @cached_property
    def labelled(self) -> Descent:
        """The state given by the labels [N] in `init`."""
        labels, N = torch.as_tensor(self.backend.init), self.problem.data.num_data
        if labels.shape != (N,):
            raise ValueError(f"init has shape {tuple(labels.shape)}; expected [{N}], a label for each row.")
        return descent.of_labels(self.problem, labels.to(self.problem.data.X.device))

    @cached_property
    def wanted(self) -> Wanted:
        """A state with the wanted number of components, drawn from the seed of the fit, and its penalty."""
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
        """A function (problem) -> state with one component, or with the components of `wanted` if they cost less."""
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
    """`MixtureRestarts` over the blocks of a source, with one pass for each sum; `problem` is that of a sample."""

    stream: Stream[Data]
    start: int  # number of this rank's first row among the rows of all ranks

    @classmethod
    def over(cls, backend: SmallVariance, model: Mixture, found: Stream[Data]) -> Self:
        """The restarts of a resolved model; the sample that gives the penalty is drawn with the fit's seed."""
        seeded = torch.Generator(found.X.device).manual_seed(backend.seed)
        chosen, (start, _) = sampled_rows(found.num_own, MOST_ROWS, seeded), span(found.num_own)
        parts, found.marks = on_all(lambda: _picked(found, chosen - start))
        tables = zip(*((part.X, part.features, part.targets) for part in parts), strict=True)
        sample = Problem.of(model, Data(*(stacked(list(table)) for table in tables)), backend.scale)
        return cls(backend, sample, found, start)

    @cached_property
    def wanted(self) -> Wanted:
        """As in `MixtureRestarts`, from the sample, scaled to all rows."""
        generator = self.seeded()
        sampled_rows(self.stream.num_own, MOST_ROWS, generator)  # as for the sample, to advance the generator
        ratio = self.stream.num_data / all_count(self.problem.num_data)
        return joint_penalty(self.problem, self.backend.num_components, generator, ratio)

    def first(self, generator: torch.Generator) -> Descent:
        """As in `MixtureRestarts`, in a pass."""
        begun = self.begun()  # before the passes, whose problems have other rows
        return self._passed(lambda problem, rows: begun(problem), generator)

    def scattered(self, generator: torch.Generator) -> Descent:
        """A state with components around random rows."""
        penalty, most = self.penalty, 2 * self.backend.num_components
        return self._passed(lambda problem, rows: descent.scattered(problem, penalty, most, generator), generator)

    def sweep(self, state: Descent, generator: torch.Generator) -> Descent:
        """One sweep, in passes."""

        def swept(problem: Problem, rows: slice) -> Descent:
            nothing = problem.X.new_zeros(problem.data.targets.shape)  # dual variables are used for few rows only
            own = replace(state, assignments=state.assignments[rows].long(), duals=nothing)
            return self.swept(own, problem, generator)

        return self._passed(swept, generator)

    def draw(self, state: Descent) -> Draw:
        """The draw that a posterior keeps of a state, with the assignments of the first rows."""
        found = state.draw(self.problem.model, None)
        return found | {"assignments": state.assignments[: self.stream.num_kept].long()}

    def _passed(self, work: Callable[[Problem, slice], Descent], generator: torch.Generator) -> Descent:
        """Run `work` on all blocks in step; return its state for all rows."""

        first, total = self.start, self.stream.num_data

        def own(block: tuple[slice, Data]) -> Descent:
            rows, data = block
            placed = data.placed(first + rows.start, total)
            state = work(Problem.of(self.problem.model, placed, self.backend.scale), rows)
            return replace(state, assignments=state.assignments.int(), duals=state.duals[:0])

        found = over_blocks(self._blocks, len(self.stream.marks), own, generator)
        return replace(found[0], assignments=torch.cat([state.assignments for state in found]))

    def _blocks(self) -> Iterator[tuple[slice, Data]]:
        """All blocks with the slices of their rows; ValueError if a block differs from the first pass."""
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
    """The rows with numbers `chosen` [M] (increasing) of each block, and the block's mark."""
    parts, marks, start = list[Data](), list[tuple[int, float]](), 0
    with among(None):  # the number of blocks may differ between ranks
        for data in found.each():
            first, last = torch.searchsorted(chosen, torch.tensor([start, start + data.num_data]))
            parts.append(data.rows(chosen[first:last] - start))
            marks.append(_mark(data))
            start += data.num_data
    return parts, marks


def _mark(data: Data) -> tuple[int, float]:
    """The number of rows of a block, and a sum that depends on their order and targets, to recognize the block."""
    sums = entries_sum(data.X, lambda X: X).double() + data.targets.nan_to_num().sum(1)
    return data.num_data, float(sums @ torch.arange(1.0, 1 + data.num_data).to(sums))


_FEW = 10_000  # sources with at most this many rows are fitted as tensors
_BLOCK = 2**16  # rows
