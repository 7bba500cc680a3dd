"""The kernels of partitions: DP-means with classifiers, or with hyperplanes where components repel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Self

import torch
from torch import Tensor

from ...models.data import Data
from ...models.mixture import Mixture
from ..classifiers.duals import joint_hinge
from ..running.engine import Draw, Kernel
from . import descent, repelling
from .backend import SmallVariance
from .landscape import Landscape
from .penalty import joint_penalty, keeping_penalty, single_penalty
from .problem import Problem, require_divergence
from .restarts import PricedRestarts, kernel_of
from .state import Descent


def check(backend: SmallVariance, model: Mixture) -> None:
    """Raise on a family without a small-variance limit."""
    require_divergence(model)


def takes_labels(model: Mixture) -> bool:
    """Whether a descent may start from labels."""
    return not model.repels


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


@dataclass(frozen=True, eq=False)
class MixtureRestarts(PricedRestarts[Problem, Descent]):
    """Restarts of DP-means with classifiers: from one component or from labels, then from scattered components."""

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

    def natural_penalty(self, generator: torch.Generator) -> float:
        if isinstance(self.backend.init, Tensor):
            return keeping_penalty(self.problem, self.labelled, generator)
        if self.single:
            return single_penalty(self.problem, self.backend.num_components)
        return joint_penalty(self.problem, self.backend.num_components, generator)

    def first(self, generator: torch.Generator) -> Descent:
        if isinstance(self.backend.init, Tensor):
            return descent.at_penalty(self.labelled, self.penalty, self.problem)
        return descent.init(self.problem, self.penalty)

    def scattered(self, generator: torch.Generator) -> Descent:
        return descent.scattered(self.problem, self.penalty, 2 * self.backend.num_components, generator)

    def sweep(self, state: Descent, generator: torch.Generator) -> Descent:
        tolerance, merge = self.backend.tolerance, self.backend.merge
        return descent.sweep(state, self.problem, generator, tolerance=tolerance, merge=merge, single=self.single)

    def draw(self, state: Descent) -> Draw:
        return state.draw(self.problem.model, self.problem.data.weights)
