"""The infinite hidden Markov model: a hierarchical Dirichlet process over the rows of the transition matrix.

    beta ~ GEM(gamma),   pi_j ~ DP(alpha, (1 - rho) beta + rho delta_j),   pi_start ~ DP(alpha, beta)
    z_1 ~ pi_start,   z_t ~ pi_{z_{t-1}},   x_t ~ p(. | theta_{z_t}),   theta_k ~ prior of the family

Sources: Beal, Ghahramani & Rasmussen (2002); Teh et al. (2006); Fox et al. (2011) for the stickiness rho.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from .arrays import as_features
from .likelihoods import DiagonalGaussian, Likelihood
from .losses import Hinge
from .mixture import resolve_likelihood
from .sequence import StateSpace, check_state_space

__all__ = ["IHMM"]


@dataclass(eq=False)
class IHMM(StateSpace):
    """Infinite hidden Markov model of a conjugate exponential family.

    Parameters
    ----------
    likelihood : family of the rows; hyperparameters left at None are set from the observed data
    concentration : alpha > 0 of the rows of the transition matrix (the starting value if it has a prior)
    concentration_prior : (shape, rate) of alpha ~ Gamma, or None for a fixed alpha
    top_concentration, top_concentration_prior : the same of gamma, which the number of states grows with
    stickiness : rho in [0, 1), prior share of a row that goes to its own state
    truncation : T >= 2, number of states of the Pyro program, of SVI and of the blocked Gibbs scan
    num_features : width D of X; None: that of the data
    """

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    concentration: float = 1.0
    concentration_prior: tuple[float, float] | None = (1.0, 1.0)
    top_concentration: float = 1.0
    top_concentration_prior: tuple[float, float] | None = (1.0, 1.0)
    stickiness: float = 0.0
    truncation: int = 20
    num_features: int | None = None

    # not annotated, hence no arguments: there is no score for a loss to act on
    loss = Hinge()
    weight_scale = 1.0

    def resolve(self, X: Any, y: Any = None) -> Self:
        X = as_features(X, num_features=self.num_features)
        check_state_space(self)
        return self.replace(likelihood=resolve_likelihood(self.likelihood, X), num_features=X.shape[1])

    def features(self, X: Tensor) -> Tensor:
        return X[:, :0]

    def targets(self, X: Tensor, y: Any = None) -> Tensor:
        return X[:, :0]
