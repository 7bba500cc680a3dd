"""The discriminative Dirichlet process mixture: clusters that repel each other through hyperplanes.

    v_k ~ Beta(1, alpha),  theta_k ~ prior of the family,  eta_k ~ N(0, nu^2 I)                k = 1..T
    z_n ~ Categorical(pi(v)),  x_n ~ p(. | theta_{z_n}),  factors phi(y_nk | eta_k^T a_n)      n = 1..N, all k

with y_nk = +1 if z_n = k and -1 otherwise: unlike a classifier of the infinite SVM, a hyperplane sees every point.
Source: Nguyen, Phung, Le & Bui, DDPM-S (hinge) and DDPM-L (logistic); math/discriminative-clustering, sections 1 to 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from .arrays import as_features
from .dpm import DPM
from .hyperplanes import Hyperplanes
from .likelihoods import DiagonalGaussian, Likelihood
from .losses import Hinge, Loss
from .mixture import Mixture, check_hyperparameters, resolve_likelihood

__all__ = ["DDPM"]


@dataclass(eq=False)
class DDPM(Hyperplanes, Mixture):
    """Discriminative DP mixture: DDPM-S with `Hinge`, DDPM-L with `Logistic`.

    Parameters
    ----------
    likelihood : family of the rows; hyperparameters left at None are set from the data
    loss : binary margin loss of a hyperplane
    concentration : alpha > 0 of the DP (the starting value if it has a prior)
    concentration_prior : (shape, rate) of alpha ~ Gamma, or None for a fixed alpha
    weight_scale : nu > 0, prior standard deviation of the hyperplanes' weights; towards 0 the model becomes a `DPM`
    intercept : value of the constant feature; 0 for hyperplanes through the mean of the data
    truncation : T >= 2, number of components of the Pyro program, of SVI and of the blocked Gibbs scan
    num_directions : hyperplanes see the data in at most so many principal directions, scaled to mean square length 1
    proportions : hyperplanes see x / sum(x), for counts
    feature_loc, feature_axes : [D] and [D, P]; hyperplanes see (x - loc) axes. None: from the data
    num_features : width D of X; None: that of the data

    References
    ----------
    Nguyen, Phung, Le & Bui: Discriminative Bayesian nonparametric clustering.
    """

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    loss: Loss = field(default_factory=Hinge)
    concentration: float = 1.0
    concentration_prior: tuple[float, float] | None = None
    weight_scale: float = 1.0
    intercept: float = 1.0
    truncation: int = 20
    num_directions: int = 50
    proportions: bool = False
    feature_loc: Tensor | None = None
    feature_axes: Tensor | None = None
    num_features: int | None = None

    classes = None

    def resolve(self, X: Any, y: Any = None) -> Self:
        X = as_features(X, num_features=self.num_features)
        check_hyperparameters(self)
        loc, axes = self.directions(X)
        return self.replace(
            likelihood=resolve_likelihood(self.likelihood, X),
            feature_loc=loc,
            feature_axes=axes,
            num_features=X.shape[1],
        )

    def without_hyperplanes(self) -> DPM:
        """The mixture that is left for nu -> 0."""
        return DPM(self.likelihood, self.concentration, self.concentration_prior, self.truncation, self.num_features)
