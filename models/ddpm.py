"""The discriminative Dirichlet process mixture: clusters that repel each other through hyperplanes.

    v_k ~ Beta(a_k, b_k) of the prior,  theta_k ~ prior of the family,  eta_k ~ N(0, nu^2 I)   k = 1..T
    z_n ~ Categorical(pi(v)),  x_n ~ p(. | theta_{z_n}),  factors phi(y_nk | eta_k^T a_n)      n = 1..N, all k

with y_nk = +1 if z_n = k and -1 otherwise: unlike a classifier of the infinite SVM, a hyperplane sees every point.
Source: Nguyen, Phung, Le & Bui, DDPM-S (hinge) and DDPM-L (logistic); docs/derivations/repelling, "Joint density" and
"Hyperplanes without points" and "Features of the hyperplanes".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from .domains import Count, Positive, Truncation
from .dpm import DPM
from .feature_maps import AnyFeatureMap, PrincipalDirections
from .hyperplanes import Hyperplanes
from .likelihoods import DiagonalGaussian, Likelihood
from .losses import Hinge, Loss
from .mixture import Mixture
from .priors import DirichletProcess, PartitionPrior


@dataclass(eq=False)
class DDPM(Hyperplanes, Mixture):
    """Discriminative DP mixture: clusters, each with a hyperplane that separates it from all other rows.

    With `Hinge` it is the DDPM-S of the paper, with `Logistic` its DDPM-L.

    Parameters
    ----------
    likelihood : family of the rows; hyperparameters left at None are set from the data
    loss : binary margin loss of a hyperplane. If no hyperplane can separate the parts of a split cluster, the split
        costs up to 4 c nats a row with a hinge of strength c (0.4 by default), for any number of rows. The split
        remains only if it raises the log density of a row by more than this
    prior : over the partition, `DirichletProcess`, `PitmanYor` or `MixtureOfFiniteMixtures` (Gibbs, small variance)
    feature_map : what the hyperplanes see of x, by default leading principal directions and a constant feature
    weight_scale : nu > 0, prior standard deviation of the hyperplanes' weights; as it tends to 0 the model becomes a
        `DPM`
    truncation : T >= 2, number of components of the Pyro program, of SVI and of the blocked Gibbs scan
    num_features : width D of X; None: that of the data

    References
    ----------
    Nguyen, Phung, Le & Bui: Discriminative Bayesian nonparametric clustering.
    """

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    loss: Loss = field(default_factory=partial(Hinge, strength=0.1))
    prior: PartitionPrior = field(default_factory=DirichletProcess)
    feature_map: AnyFeatureMap = field(default_factory=PrincipalDirections)
    weight_scale: Positive = 1.0
    truncation: Truncation = 20
    num_features: Count | None = None

    def without_hyperplanes(self) -> DPM:
        """The mixture model that remains as nu -> 0."""
        return DPM(self.likelihood, self.prior, self.truncation, self.num_features)
