"""The infinite latent SVM: binary features by an Indian buffet process, and a max-margin classifier that sees them.

    pi ~ IBP(alpha),   z_nk ~ Bernoulli(pi_k),   w_k ~ N(0, loading variance I),   x_n ~ p(. | W^T z_n)       k = 1..K
    eta_c ~ N(0, nu^2 I),   factor phi(y_n | eta^T [z_n; b_n])                                          n = 1..N

b_n are inputs that the classifier sees as they are: a constant, or a feature map of x_n. With K = `truncation` this is
the Pyro program. Source: Zhu, Chen & Xing, section 4.2; docs/derivations/latent-features, "Joint density".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from torch import Tensor

from .base import Labelled
from .domains import Count, Positive, Truncation
from .feature_maps import AnyFeatureMap, Standardized
from .latent_features import FeatureModel
from .likelihoods import LinearGaussian, LinearLikelihood
from .losses import Hinge, Loss
from .priors import FeaturePrior, IndianBuffetProcess
from .targets import Classes, Target


@dataclass(eq=False)
class InfiniteLatentSVM(Labelled, FeatureModel):
    """Latent binary features shaped by a likelihood of X and by a margin loss on y.

    Entries of X that are NaN are missing, and so are targets that are NaN, or -1 among integer labels (unless the
    labels are -1 and +1, or others are negative too). Rows without a target shape the features through x alone; for
    transductive prediction, include the rows to predict in the fit, without targets.

    Parameters
    ----------
    likelihood : of the columns given the features: `LinearGaussian`, `LinearBernoulli`, or `Blocks` of both
    loss : margin loss. A binary loss is used one-versus-rest when there are more than two classes
    prior : over the features, `IndianBuffetProcess` or `BetaBernoulli`
    feature_map : what the classifiers see of x beside the latent features: `Standardized`, in which a missing entry is
        the mean of its column, or any callable from [N, D] to [N, P], with a constant feature 1 added; None:
        the constant alone, as for sparse rows
    weight_scale : nu > 0, prior standard deviation of the classifier weights
    truncation : K >= 2, number of features of the Pyro program, of SVI and of the blocked Gibbs scan
    classes : sorted integer labels [L]; None: those in the data
    num_features : width D of X; None: that of the data
    target : the kind of y. None: classes, or real numbers if the loss is one for these; `Ordinal()`: ordered classes

    References
    ----------
    Zhu, Chen & Xing (2014), section 4.2.

    Examples
    --------
    >>> from regbayes.models import Hinge, InfiniteLatentSVM
    >>> InfiniteLatentSVM(loss=Hinge(strength=2.0)).get_params()["loss__strength"]
    2.0
    """

    num_constants: ClassVar[int] = 1

    likelihood: LinearLikelihood = field(default_factory=LinearGaussian)
    loss: Loss = field(default_factory=Hinge)
    prior: FeaturePrior = field(default_factory=IndianBuffetProcess)
    feature_map: AnyFeatureMap | None = field(default_factory=Standardized)
    weight_scale: Positive = 1.0
    truncation: Truncation = 20
    classes: Annotated[Tensor, Classes()] | None = None
    num_features: Count | None = None
    target: Target | None = None
