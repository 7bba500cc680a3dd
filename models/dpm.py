"""The Dirichlet process mixture, or that of another prior: the infinite SVM without its classifiers.

    v_k ~ Beta(a_k, b_k) of the prior,  theta_k ~ prior of the family,
    z_n ~ Categorical(pi(v)),  x_n ~ p(. | theta_{z_n})

Sources: Antoniak (1974); Blei & Jordan (2006) for the truncation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .domains import Count, Truncation
from .likelihoods import DiagonalGaussian, Likelihood
from .mixture import Mixture
from .priors import DirichletProcess, PartitionPrior


@dataclass(eq=False)
class DPM(Mixture):
    """Dirichlet process mixture of a conjugate exponential family.

    Parameters
    ----------
    likelihood : family of the rows; hyperparameters left at None are set from the data
    prior : over the partition, `DirichletProcess`, `PitmanYor` or `MixtureOfFiniteMixtures` (Gibbs, small variance)
    truncation : T >= 2, number of components of the Pyro program, of SVI and of the blocked Gibbs scan
    num_features : width D of X; None: that of the data
    """

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    prior: PartitionPrior = field(default_factory=DirichletProcess)
    truncation: Truncation = 20
    num_features: Count | None = None

    @property
    def takes_missing(self) -> bool:
        return self.likelihood.takes_missing
