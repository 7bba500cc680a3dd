"""The infinite SVM: a Dirichlet process mixture in which every component has its own margin classifier.

    v_k ~ Beta(a_k, b_k) of the prior,  theta_k ~ prior of the family,  eta_k ~ N(0, nu^2 I)   k = 1..T
    z_n ~ Categorical(pi(v)),  x_n ~ p(. | theta_{z_n}),  factor phi(y_n | eta_{z_n}^T a_n)    n = 1..N

a_n = feature_map(x_n) is what the classifiers see. Source: Zhu, Chen & Xing (2011); Wang & Zhu (2014), equation (11).
The factors phi are not normalized over y (docs/derivations/mixtures, "Collapsed scan"); a row without a label has no
factor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from .base import Labelled
from .domains import Count, Positive, Truncation
from .feature_maps import AnyFeatureMap, Standardized
from .likelihoods import DiagonalGaussian, Likelihood
from .losses import Hinge, Loss
from .mixture import Mixture
from .priors import DirichletProcess, PartitionPrior
from .targets import Classes, Target


@dataclass(eq=False)
class InfiniteSVM(Labelled, Mixture):
    """DP mixture of max-margin classifiers, for two or more classes, or real targets with a regression loss.

    A missing target is NaN in y, or -1 among integer labels (unless the labels are -1 and +1, or others are negative
    too): such a row shapes the components through x alone.

    Parameters
    ----------
    likelihood : family of the inputs; hyperparameters left at None are set from the data
    loss : margin loss. A binary loss is used one-versus-rest when there are more than two classes
    prior : over the partition, `DirichletProcess`, `PitmanYor` or `MixtureOfFiniteMixtures` (Gibbs, small variance)
    feature_map : what the classifiers see of x: `Standardized`, `Nystroem` (a kernel), `PrincipalDirections`, or
        any callable from [N, D] to [N, P]; a constant feature 1 is added to what it gives
    weight_scale : nu > 0, prior standard deviation of the classifier weights
    truncation : T >= 2, number of components of the Pyro program, of SVI and of the blocked Gibbs scan
    classes : sorted integer labels [L]; None: those in the data
    num_features : width D of X; None: that of the data
    target : the kind of y. None: classes, or real numbers if the loss is one for these; `Ordinal()`: ordered classes

    References
    ----------
    Zhu, Chen & Xing (2011); Wang & Zhu (2014), equations (11)-(13).

    Examples
    --------
    >>> from regbayes.models import InfiniteSVM, Hinge
    >>> InfiniteSVM(loss=Hinge(strength=2.5)).get_params()["loss__strength"]
    2.5
    """

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    loss: Loss = field(default_factory=Hinge)
    prior: PartitionPrior = field(default_factory=DirichletProcess)
    feature_map: AnyFeatureMap = field(default_factory=Standardized)
    weight_scale: Positive = 1.0
    truncation: Truncation = 20
    classes: Annotated[Tensor, Classes()] | None = None
    num_features: Count | None = None
    target: Target | None = None
