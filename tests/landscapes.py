"""Small problems whose components repel or follow one another, and the objective of all their partitions."""

from __future__ import annotations

import torch
from tiny_optima import partition_values, path_values
from torch import Tensor

from regbayes.inference.small_variance import repelling
from regbayes.inference.small_variance.landscape import Landscape
from regbayes.inference.small_variance.sequence import SequenceLandscape
from regbayes.inference.small_variance.state import RepellingDescent
from regbayes.models import SphericalGaussian

FAMILY = SphericalGaussian(loc=0.0, variance=1.0, prior_variance=10.0)


def tiny(seed: int, num_data: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[0.0, 0.0], [3.0, 1.0]], dtype=torch.float64)
    return centers[torch.arange(num_data) % 2] + torch.randn(num_data, 2, generator=generator, dtype=torch.float64)


def landscape_of(model, inputs: Tensor, lengths=None, scale: float = 1.0) -> Landscape:
    model, data = model.prepare(inputs, None, lengths)
    return SequenceLandscape.over(model, data, scale) if lengths else Landscape.of(model, data, scale)


def state_at(labels, landscape: Landscape, penalty: float, transition_penalty: float = 0.4, weight: float = 0.0):
    """The best centres and hyperplanes at these labels."""
    labels = torch.tensor(labels)
    K, X = int(labels.max()) + 1, landscape.problem.X
    numbers = (X.new_tensor(value) for value in (penalty, transition_penalty, weight, 0.0))
    state = RepellingDescent(labels, X.new_zeros(K, X.shape[1]), landscape.empty.repeat(K, 1, 1), *numbers)
    return repelling.refit(state, landscape, 100)


def brute_force(landscape: Landscape, penalty: float, transition_penalty: float = 0.4, weight: float = 0.0):
    """J of every partition or path in increasing order, at the best centres and hyperplanes."""
    problem = landscape.problem
    if isinstance(landscape, SequenceLandscape):
        prices = penalty, transition_penalty, weight
        return sorted(path_values(problem.model, landscape.sequences, prices, problem.scale))
    return sorted(partition_values(problem.model, problem.data, penalty, problem.scale))
