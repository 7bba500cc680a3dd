"""The discriminative infinite hidden Markov model: states that repel each other through hyperplanes.

    states and rows as in `IHMM`;   eta_k ~ N(0, nu^2 I),   factors phi(y_tk | eta_k^T a_t) for all t, k

with y_tk = +1 if z_t = k and -1 otherwise. Source: Nguyen, Phung, Le & Bui, DIH-S (hinge) and DIH-L (logistic);
math/discriminative-clustering, section 9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from .arrays import as_features
from .hyperplanes import Hyperplanes
from .ihmm import IHMM
from .likelihoods import DiagonalGaussian, Likelihood
from .losses import Hinge, Loss
from .mixture import resolve_likelihood
from .sequence import StateSpace, check_state_space

__all__ = ["DIH"]


@dataclass(eq=False)
class DIH(Hyperplanes, StateSpace):
    """Discriminative infinite HMM: DIH-S with `Hinge`, DIH-L with `Logistic`.

    Parameters
    ----------
    likelihood, concentration, concentration_prior, top_concentration, top_concentration_prior, stickiness, truncation,
    num_features : as in `IHMM`
    loss, weight_scale, intercept, num_directions, proportions, feature_loc, feature_axes : as in `DDPM`
    """

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    loss: Loss = field(default_factory=Hinge)
    concentration: float = 1.0
    concentration_prior: tuple[float, float] | None = (1.0, 1.0)
    top_concentration: float = 1.0
    top_concentration_prior: tuple[float, float] | None = (1.0, 1.0)
    stickiness: float = 0.0
    weight_scale: float = 1.0
    intercept: float = 1.0
    truncation: int = 20
    num_directions: int = 50
    proportions: bool = False
    feature_loc: Tensor | None = None
    feature_axes: Tensor | None = None
    num_features: int | None = None

    def resolve(self, X: Any, y: Any = None) -> Self:
        X = as_features(X, num_features=self.num_features)
        check_state_space(self)
        loc, axes = self.directions(X)
        return self.replace(
            likelihood=resolve_likelihood(self.likelihood, X),
            feature_loc=loc,
            feature_axes=axes,
            num_features=X.shape[1],
        )

    def without_hyperplanes(self) -> IHMM:
        """The model that is left for nu -> 0."""
        names = ("concentration", "concentration_prior", "top_concentration", "top_concentration_prior", "stickiness")
        shared = {name: getattr(self, name) for name in names}
        return IHMM(self.likelihood, **shared, truncation=self.truncation, num_features=self.num_features)
