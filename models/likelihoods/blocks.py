"""Blocks of columns that share the latent features, each with a likelihood of its own: heterogeneous inputs."""

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
from .parts import Parts, ending, require_width, with_ends


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
        blocks = self._blocks({}, X, observed)
        return self.replace(parts=[(part.resolve(x, weights, seen), x.shape[1]) for part, _, x, seen in blocks])

    def check(self, X: Tensor, observed: Tensor | None = None) -> None:
        require_width(self.parts, X.shape[1])
        for part, _, x, seen in self._blocks({}, X, observed):
            part.check(x, seen)

    def hyperpriors(self, like: Tensor) -> dict[str, Gamma | None]:
        return with_ends(part.hyperpriors(like) for part, _ in self.parts)

    def start(self, like: Tensor) -> Hyper:
        return with_ends(part.start(like) for part, _ in self.parts)

    def evidence(
        self, X: Tensor, mean: Tensor, square: Tensor, loadings: Tensor, counted: Tensor
    ) -> dict[str, tuple[Tensor, Tensor]]:
        blocks = self._blocks({}, X, mean, square, loadings[:-1].unsqueeze(0), counted.expand_as(X))
        return with_ends(
            part.evidence(x, m, s, torch.cat([own.squeeze(0), loadings[-1:]]), count)
            for part, _, x, m, s, own, count in blocks
        )

    def loading_precision(self, h: Hyper, num_columns: int) -> Tensor:
        own = (ending(h, index) for index in range(len(self.parts)))
        return torch.cat([part.loading_precision(h, width) for (part, width), h in zip(self.parts, own, strict=True)])

    def distribution(self, mean: Tensor, h: Hyper) -> dist.TorchDistribution:
        laws = [part.distribution(m, own) for part, own, m in self._blocks(h, mean)]
        return _Columns(laws, [width for _, width in self.parts])

    def log_density(self, X: Tensor, mean: Tensor, h: Hyper) -> Tensor:
        return torch.cat([part.log_density(x, m, own) for part, own, x, m in self._blocks(h, X, mean)], 1)

    def augment(self, X: Tensor, mean: Tensor, h: Hyper, generator: torch.Generator) -> PseudoObservation:
        return _joined(part.augment(x, m, own, generator) for part, own, x, m in self._blocks(h, X, mean))

    def expect(self, X: Tensor, square: Tensor, h: Hyper, mean: Tensor) -> PseudoObservation:
        return _joined(part.expect(x, s, own, m) for part, own, x, s, m in self._blocks(h, X, square, mean))

    def expected_log_density(self, X: Tensor, mean: Tensor, square: Tensor, h: Hyper) -> Tensor:
        blocks = self._blocks(h, X, mean, square)
        return torch.cat([part.expected_log_density(x, m, s, own) for part, own, x, m, s in blocks], 1)

    def divergence(self, X: Tensor, mean: Tensor) -> Tensor:
        return torch.cat([part.divergence(x, m) for part, _, x, m in self._blocks({}, X, mean)], 1)

    def majorize(self, X: Tensor, mean: Tensor) -> PseudoObservation:
        return _joined(part.majorize(x, m) for part, _, x, m in self._blocks({}, X, mean))

    def _blocks(self, h: Hyper, *arrays: Tensor | None) -> Iterator[tuple[Any, ...]]:
        """For each block: its likelihood, its hyperparameters in h, and its columns of each array [..., D] or None."""
        start = 0
        for index, (part, width) in enumerate(self.parts):
            own = (None if array is None else array[..., start : start + width] for array in arrays)
            yield part, ending(h, index), *own
            start += width


class _Columns(dist.TorchDistribution):
    """Independent entries [N, D] whose columns come from different distributions."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, laws: list[Distribution], widths: list[int]) -> None:
        self._laws, self._widths = laws, widths
        super().__init__(torch.Size((*laws[0].batch_shape[:-1], sum(widths))), validate_args=False)

    @property
    def support(self) -> Any:
        return dist.constraints.real

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:
        return torch.cat([law.sample(sample_shape) for law in self._laws], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        columns = value.split(self._widths, -1)
        return torch.cat([law.log_prob(own) for law, own in zip(self._laws, columns, strict=True)], -1)


def _joined(blocks: Any) -> PseudoObservation:
    """One pseudo-observation of all columns; precisions [1, D] if those of all blocks have one row."""
    found = list(blocks)
    same = all(len(one.precision) == 1 for one in found)
    rows = 1 if same else len(found[0].shift)
    precision = torch.cat([one.precision.expand(rows, -1) for one in found], 1)
    return PseudoObservation(precision, torch.cat([one.shift for one in found], 1))
