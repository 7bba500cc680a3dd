"""The kernel of latent features: BP-means with a margin (`descent`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from ....models.base import coding_of
from ....models.latent_features import FeatureData, FeatureModel
from ...posterior.draws import FeatureDraw, drawn
from ...running.engine import Draw, Kernel
from ..backend import SmallVariance
from ..restarts import PricedRestarts, kernel_of
from . import descent
from .fit import refit
from .penalty import natural_penalty, single_penalty
from .problem import FeatureDescent, FeatureProblem


def check(backend: SmallVariance, model: FeatureModel) -> None:
    """Nothing to check: every loss and linear likelihood has a small-variance limit."""


def row_cost(model: FeatureModel) -> int:
    """The cost of a row, in rows of a mixture: bits are updated one after another."""
    return 16


def auto_scale(model: FeatureModel) -> float:
    """More than 1 with classifiers: otherwise bits follow noise in the labels, which new rows do not have."""
    return 30.0 if coding_of(model) is not None else 1.0


def alone(backend: SmallVariance, model: FeatureModel) -> str:
    """Return "": ranks can share the rows."""
    return ""


def kernel(backend: SmallVariance, model: FeatureModel) -> Kernel:
    """The kernel of a resolved model."""
    return kernel_of(FeatureDescent, partial(FeatureRestarts.of, backend))


@dataclass(frozen=True, eq=False)
class FeatureRestarts(PricedRestarts[FeatureProblem, FeatureDescent]):
    """Restarts of BP-means with a margin: the first starts without features, the others from random bits."""

    @classmethod
    def of(cls, backend: SmallVariance, model: FeatureModel, data: FeatureData) -> Self:
        """The restarts of a resolved model."""
        return cls(backend, FeatureProblem.of(model, data, backend.scale))

    def natural_penalty(self, generator: torch.Generator) -> float:
        rule = single_penalty if self.backend.creation == "single" else natural_penalty
        return rule(self.problem, self.backend.num_components, generator)

    def first(self, generator: torch.Generator) -> FeatureDescent:
        return refit(self.problem.start(self.penalty), self.problem)

    def scattered(self, generator: torch.Generator) -> FeatureDescent:
        return descent.scattered(self.problem, self.penalty, self.backend.num_components, generator)

    def sweep(self, state: FeatureDescent, generator: torch.Generator) -> FeatureDescent:
        backend, single = self.backend, self.backend.creation == "single"
        return descent.sweep(
            state, self.problem, generator, tolerance=backend.tolerance, merge=backend.merge, single=single
        )

    def draw(self, state: FeatureDescent) -> Draw:
        """The draw that a posterior keeps; in the limit features have no price: their log odds are 0."""
        K, X, model = state.num_features, self.problem.data.X, self.problem.model
        return drawn(
            FeatureDraw(
                features=state.features.to(torch.int8),
                log_odds=X.new_zeros(K),
                loadings=state.loadings,
                weights=state.weights[:K],
                input_weights=state.weights[K:],
                penalty=state.penalty,
            ),
            model.likelihood.start(X),
            model.prior.start(X),
        )
