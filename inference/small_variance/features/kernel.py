"""The kernel of latent features: BP-means with a margin (`descent`)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ....models.latent_features import FeatureData, FeatureModel
from ...running.engine import Draw, Kernel
from ..backend import SmallVariance
from . import descent
from .penalty import natural_penalty, single_penalty
from .problem import FeatureDescent, FeatureProblem


def check(backend: SmallVariance, model: FeatureModel) -> None:
    """Every loss and linear likelihood has a small-variance limit."""


def kernel(backend: SmallVariance, model: FeatureModel) -> Kernel:
    """The descent for a resolved model."""
    single = backend.creation == "single"
    options: dict[str, Any] = {"tolerance": backend.tolerance, "merge": backend.merge, "single": single}

    @cache
    def problem(data: FeatureData) -> FeatureProblem:
        return FeatureProblem.of(model, data, backend.scale)

    @cache
    def penalty(data: FeatureData) -> float:
        """The same one for all restarts, whose objectives are compared."""
        if backend.penalty is not None:
            return backend.penalty
        generator = torch.Generator(data.X.device).manual_seed(backend.seed)
        rule = single_penalty if single else natural_penalty
        return rule(problem(data), backend.num_components, generator)

    def init(model: FeatureModel, data: FeatureData, generator: torch.Generator) -> FeatureDescent:
        """The first restart grows from nothing, the others start from random bits."""
        empty = generator.initial_seed() == backend.seed
        return descent.init(problem(data), penalty(data), backend.num_components, generator, empty=empty)

    def sweep(
        state: FeatureDescent, data: FeatureData, model: FeatureModel, generator: torch.Generator, step: int
    ) -> FeatureDescent:
        return descent.sweep(state, problem(data), generator, **options)

    return Kernel(FeatureDescent, init, sweep, value=lambda state, data, model: state.objective, draw=draw)


def draw(state: FeatureDescent, data: FeatureData, model: FeatureModel) -> Draw:
    """What a Posterior keeps of a state: in the limit a feature that exists is free, its log odds are 0."""
    K = state.num_features
    return {
        "features": state.features.to(torch.int8),
        "log_odds": data.X.new_zeros(K),
        "loadings": state.loadings,
        "weights": state.weights[:K],
        "input_weights": state.weights[K:],
        "penalty": state.penalty,
        **model.likelihood.start(data.X),
        **model.prior.start(data.X),
    }
