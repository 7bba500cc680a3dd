"""Blocks of columns, each with a likelihood of its own, which share the latent features: heterogeneous inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, Gamma

from ..losses.base import PseudoObservation
from ..priors.hyper import Hyper
from .linear import LinearLikelihood
from .parts import Parts, require_width


@dataclass(eq=False)
class Blocks(LinearLikelihood):
    """Columns 0..d_1 - 1 by the first likelihood, the next d_2 by the second, and so on.

    Parameters
    ----------
    parts : pairs (likelihood, number of its columns d_j); the numbers add up to the width of X

    Hyperparameters of block j have `_j` after their names.

    Examples
    --------
    >>> from regbayes.models import LinearBernoulli, LinearGaussian
    >>> mixed = Blocks([(LinearGaussian(), 3), (LinearBernoulli(), 2)])
    """

    parts: Annotated[Any, Parts(LinearLikelihood, "[(LinearGaussian(), 3), (LinearBernoulli(), 2)]")]

    def resolve(self, X: Tensor, weights: Tensor | None = None, observed: Tensor | None = None) -> Self:
        require_width(self.parts, X.shape[1])
        return self.replace(
            parts=[
                (part.resolve(X[:, at], weights, _columns(observed, at)), at.stop - at.start)
                for _, part, at in self._blocks()
            ]
        )

    def check(self, X: Tensor, observed: Tensor | None = None) -> None:
        require_width(self.parts, X.shape[1])
        for _, part, at in self._blocks():
            part.check(X[:, at], _columns(observed, at))

    def hyperpriors(self, like: Tensor) -> dict[str, Gamma | None]:
        return _named((end, part.hyperpriors(like)) for end, part, _ in self._blocks())

    def start(self, like: Tensor) -> Hyper:
        return _named((end, part.start(like)) for end, part, _ in self._blocks())

    def evidence(
        self, X: Tensor, mean: Tensor, square: Tensor, loadings: Tensor, counted: Tensor
    ) -> dict[str, tuple[Tensor, Tensor]]:
        counted = counted.expand_as(X)
        return _named(
            (
                end,
                part.evidence(
                    X[:, at], mean[:, at], square[:, at], torch.cat([loadings[:-1][at], loadings[-1:]]), counted[:, at]
                ),
            )
            for end, part, at in self._blocks()
        )

    def loading_precision(self, h: Hyper, num_columns: int) -> Tensor:
        return torch.cat([part.loading_precision(_own(h, end), _width(at)) for end, part, at in self._blocks()])

    def distribution(self, mean: Tensor, h: Hyper) -> dist.TorchDistribution:
        return _Columns([(at, part.distribution(mean[..., at], _own(h, end))) for end, part, at in self._blocks()])

    def log_density(self, X: Tensor, mean: Tensor, h: Hyper) -> Tensor:
        return torch.cat([part.log_density(X[:, at], mean[:, at], _own(h, end)) for end, part, at in self._blocks()], 1)

    def augment(self, X: Tensor, mean: Tensor, h: Hyper, generator: torch.Generator) -> PseudoObservation:
        return _joined(part.augment(X[:, at], mean[:, at], _own(h, end), generator) for end, part, at in self._blocks())

    def expect(self, X: Tensor, square: Tensor, h: Hyper, mean: Tensor) -> PseudoObservation:
        return _joined(
            part.expect(X[:, at], square[:, at], _own(h, end), mean[:, at]) for end, part, at in self._blocks()
        )

    def expected_log_density(self, X: Tensor, mean: Tensor, square: Tensor, h: Hyper) -> Tensor:
        return torch.cat(
            [
                part.expected_log_density(X[:, at], mean[:, at], square[:, at], _own(h, end))
                for end, part, at in self._blocks()
            ],
            1,
        )

    def divergence(self, X: Tensor, mean: Tensor) -> Tensor:
        return torch.cat([part.divergence(X[:, at], mean[:, at]) for _, part, at in self._blocks()], 1)

    def majorize(self, X: Tensor, mean: Tensor) -> PseudoObservation:
        return _joined(part.majorize(X[:, at], mean[:, at]) for _, part, at in self._blocks())

    def _blocks(self) -> Iterator[tuple[str, LinearLikelihood, slice]]:
        """(what its hyperparameters' names end in, likelihood, columns) of each block."""
        start = 0
        for index, (part, width) in enumerate(self.parts):
            yield f"_{index}", part, slice(start, start + width)
            start += width


class _Columns(dist.TorchDistribution):
    """Independent entries [N, D], columns from different distributions."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, parts: list[tuple[slice, Distribution]]) -> None:
        self._parts = parts
        shape = (*parts[0][1].batch_shape[:-1], parts[-1][0].stop)
        super().__init__(torch.Size(shape), validate_args=False)

    @property
    def support(self) -> Any:
        return dist.constraints.real

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:
        return torch.cat([part.sample(sample_shape) for _, part in self._parts], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.cat([part.log_prob(value[..., at]) for at, part in self._parts], -1)


def _width(at: slice) -> int:
    return int(at.stop - at.start)


def _columns(values: Tensor | None, at: slice) -> Tensor | None:
    return None if values is None else values[:, at]


def _own(h: Hyper, end: str) -> Hyper:
    return {name.removesuffix(end): value for name, value in h.items() if name.endswith(end)}


def _named(blocks: Any) -> dict[str, Any]:
    return {f"{name}{end}": value for end, found in blocks for name, value in found.items()}


def _joined(blocks: Any) -> PseudoObservation:
    """One pseudo-observation of all columns; precisions [1, D] if all blocks have such."""
    found = list(blocks)
    rows = max(len(one.precision) for one in found)
    precision = torch.cat([one.precision.expand(rows, -1) for one in found], 1)
    return PseudoObservation(precision, torch.cat([one.shift for one in found], 1))
