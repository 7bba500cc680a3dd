"""The discriminative infinite hidden Markov model: states that repel each other through hyperplanes.

    states and rows as in `IHMM`;   eta_k ~ N(0, nu^2 I),   factors phi(y_tk | eta_k^T a_t) for all t, k

with y_tk = +1 if z_t = k and -1 otherwise. Source: Nguyen, Phung, Le & Bui, DIH-S (hinge) and DIH-L (logistic);
docs/derivations/sequences, "Joint density".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from .domains import Count, Natural, Positive, Truncation
from .feature_maps import AnyFeatureMap, PrincipalDirections
from .hyperplanes import Hyperplanes
from .ihmm import IHMM
from .likelihoods import DiagonalGaussian, Likelihood
from .losses import Hinge, Loss
from .priors import HierarchicalDirichletProcess
from .sequence import StateSpace


@dataclass(eq=False)
class DIH(Hyperplanes, StateSpace):
    """Discriminative infinite HMM: states, each with a hyperplane that separates it from the steps of other states.

    With `Hinge` it is the DIH-S of the paper, with `Logistic` its DIH-L.

    Parameters
    ----------
    likelihood, prior, truncation, num_features, lags : as in `IHMM`; with lags, hyperplanes see the earlier rows too
    loss : as in `DDPM`; the strength of a `Hinge` is 0.1 by default. If a true state is not Gaussian, a higher
        strength joins pieces of it that no hyperplane tells apart
    feature_map, weight_scale : as in `DDPM`
    """

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    loss: Loss = field(default_factory=partial(Hinge, strength=0.1))
    prior: HierarchicalDirichletProcess = field(default_factory=HierarchicalDirichletProcess)
    feature_map: AnyFeatureMap = field(default_factory=PrincipalDirections)
    weight_scale: Positive = 1.0
    truncation: Truncation = 20
    num_features: Count | None = None
    lags: Natural = 0

    def without_hyperplanes(self) -> IHMM:
        """The model that remains as nu -> 0."""
        return IHMM(self.likelihood, self.prior, self.truncation, self.num_features, self.lags)
