"""The latent feature model without classifiers: an Indian buffet process of features with linear loadings.

    pi ~ IBP(alpha),   z_nk ~ Bernoulli(pi_k),   w_k ~ N(0, loading variance I),   x_n ~ p(. | W^T z_n)       k = 1..K

It is the baseline of `InfiniteLatentSVM` if a classifier is fitted afterwards to its features. Source: Griffiths &
Ghahramani (2011); docs/derivations/latent-features, "Joint density".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .domains import Count, Truncation
from .latent_features import FeatureModel
from .likelihoods import LinearGaussian, LinearLikelihood
from .priors import FeaturePrior, IndianBuffetProcess


@dataclass(eq=False)
class LatentFeatureModel(FeatureModel):
    """Latent binary features of the rows of X; entries of X that are NaN are missing.

    Parameters
    ----------
    likelihood : of the columns given the features: `LinearGaussian`, `LinearBernoulli`, or `Blocks` of both
    prior : over the features, `IndianBuffetProcess` or `BetaBernoulli`
    truncation : K >= 2, number of features of the Pyro program, of SVI and of the blocked Gibbs scan
    num_features : width D of X; None: that of the data

    Examples
    --------
    >>> from regbayes.models import IndianBuffetProcess, LatentFeatureModel
    >>> LatentFeatureModel(prior=IndianBuffetProcess(concentration=3.0)).get_params()["prior__concentration"]
    3.0
    """

    likelihood: LinearLikelihood = field(default_factory=LinearGaussian)
    prior: FeaturePrior = field(default_factory=IndianBuffetProcess)
    truncation: Truncation = 20
    num_features: Count | None = None
