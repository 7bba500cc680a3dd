"""The kernels of partitions: DP-means with classifiers, or with hyperplanes where components repel."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from ...models.data import Data
from ...models.mixture import Mixture
from ..running.engine import Draw, Kernel
from . import descent, repelling
from .backend import SmallVariance
from .landscape import Landscape
from .penalty import joint_penalty, keeping_penalty, single_penalty
from .problem import Problem, require_divergence
from .state import Descent


def check(backend: SmallVariance, model: Mixture) -> None:
    """Raise on a family without a small-variance limit."""
    require_divergence(model)


def takes_labels(model: Mixture) -> bool:
    """Whether a descent may start from labels."""
    return not model.repels


def kernel(backend: SmallVariance, model: Mixture) -> Kernel:
    """The descent for a resolved model."""
    if model.repels:
        return repelling.kernel(backend, lambda data: Landscape.of(model, data, backend.scale), repelling.draw)
    single = backend.creation == "single"

    @cache
    def problem(data: Data) -> Problem:
        """The coordinates of the data, computed once in a fit."""
        return Problem.of(model, data, backend.scale)

    @cache
    def labelled(data: Data) -> Descent:
        """The components of the labels that a descent starts from, fitted once in a fit."""
        return descent.of_labels(problem(data), _labels(backend, data))

    @cache
    def penalty(data: Data) -> float:
        """The same one for all restarts, whose objectives are compared."""
        if backend.penalty is not None:
            return backend.penalty
        generator = torch.Generator(data.X.device).manual_seed(backend.seed)
        if isinstance(backend.init, Tensor):
            return keeping_penalty(problem(data), labelled(data), generator)
        if single:
            return single_penalty(problem(data), backend.num_components)
        return joint_penalty(problem(data), backend.num_components, generator)

    def init(model: Mixture, data: Data, generator: torch.Generator) -> Descent:
        if backend.is_first(generator):
            if isinstance(backend.init, Tensor):
                return descent.at_penalty(labelled(data), penalty(data), problem(data))
            return descent.init(problem(data), penalty(data))
        return descent.scattered(problem(data), penalty(data), 2 * backend.num_components, generator)

    def sweep(state: Descent, data: Data, model: Mixture, generator: torch.Generator, step: int) -> Descent:
        tolerance, merge = backend.tolerance, backend.merge
        return descent.sweep(state, problem(data), generator, tolerance=tolerance, merge=merge, single=single)

    return Kernel(Descent, init, sweep, value=lambda state, data, model: state.objective, draw=draw)


def _labels(backend: SmallVariance, data: Data) -> Tensor:
    """The labels [N] that a descent starts from, on the device of the data."""
    labels = torch.as_tensor(backend.init)
    if labels.shape != (data.num_data,):
        raise ValueError(f"init has shape {tuple(labels.shape)}; expected [{data.num_data}], a label for each row.")
    return labels.to(data.X.device)


def draw(state: Descent, data: Data, model: Mixture) -> Draw:
    """What a Posterior keeps of a state."""
    centers = state.centers
    return {
        "assignments": state.assignments,
        "centers": centers,
        "weights": state.weights,
        "log_mixture": torch.cat([state.log_shares(data.weights), centers.new_full((1,), -torch.inf)]),
        "penalty": state.penalty,
        **model.prior.start(centers),
    }
