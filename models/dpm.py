"""The Dirichlet process mixture: the infinite SVM without its classifiers.

    v_k ~ Beta(1, alpha),  theta_k ~ prior of the family,  z_n ~ Categorical(pi(v)),  x_n ~ p(. | theta_{z_n})

Sources: Antoniak (1974); Blei & Jordan (2006) for the truncation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from .arrays import as_features
from .likelihoods import DiagonalGaussian, Likelihood
from .losses import Hinge
from .mixture import Mixture, check_hyperparameters, resolve_likelihood

__all__ = ["DPM"]


@dataclass(eq=False)
class DPM(Mixture):
    """Dirichlet process mixture of a conjugate exponential family.

    Parameters
    ----------
    likelihood : family of the rows; hyperparameters left at None are set from the data
    concentration : alpha > 0 of the DP (the starting value if it has a prior)
    concentration_prior : (shape, rate) of alpha ~ Gamma, or None for a fixed alpha
    truncation : T >= 2, number of components of the Pyro program, of SVI and of the blocked Gibbs scan
    num_features : width D of X; None: that of the data
    """

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    concentration: float = 1.0
    concentration_prior: tuple[float, float] | None = None
    truncation: int = 20
    num_features: int | None = None

    # not annotated, hence no arguments: there is no score for a loss to act on
    loss = Hinge()
    weight_scale = 1.0
    classes = None

    def resolve(self, X: Any, y: Any = None) -> Self:
        X = as_features(X, num_features=self.num_features)
        check_hyperparameters(self)
        return self.replace(likelihood=resolve_likelihood(self.likelihood, X), num_features=X.shape[1])

    def features(self, X: Tensor) -> Tensor:
        return X[:, :0]

    def targets(self, X: Tensor, y: Any = None) -> Tensor:
        return X[:, :0]
