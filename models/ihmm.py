"""The infinite hidden Markov model: a hierarchical Dirichlet process over the rows of the transition matrix.

    beta ~ GEM(gamma),   pi_j ~ DP(alpha, (1 - rho) beta + rho delta_j),   pi_start ~ DP(alpha, beta)
    z_1 ~ pi_start,   z_t ~ pi_{z_{t-1}},   x_t ~ p(. | theta_{z_t}),   theta_k ~ prior of the family

Sources: Beal, Ghahramani & Rasmussen (2002); Teh et al. (2006); Fox et al. (2011) for the stickiness rho.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .domains import Count, Natural, Truncation
from .likelihoods import DiagonalGaussian, Likelihood
from .priors import HierarchicalDirichletProcess
from .sequence import StateSpace


@dataclass(eq=False)
class IHMM(StateSpace):
    """Infinite hidden Markov model of a conjugate exponential family.

    Parameters
    ----------
    likelihood : family of the rows; hyperparameters left at None are set from the observed data
    prior : over the state sequences, with its concentrations and stickiness
    truncation : T >= 2, number of states of the Pyro program, of SVI and of the blocked Gibbs scan
    num_features : width D of X; None: that of the data
    lags : the number of earlier rows that a row depends on. If it is not 0, states are autoregressive,
        x_t ~ p(. | x_{t-1}, ..., x_{t-lags}, theta_{z_t}), with `LinearRegression()`, a family of a row given others.
        The first rows of every sequence are not modelled, and a row right after a missing one does not inform its state

    Source of `lags`: Fox, Sudderth, Jordan & Willsky (2011), Bayesian nonparametric inference of switching dynamic
    linear models.
    """

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    prior: HierarchicalDirichletProcess = field(default_factory=HierarchicalDirichletProcess)
    truncation: Truncation = 20
    num_features: Count | None = None
    lags: Natural = 0
