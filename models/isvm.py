"""The infinite SVM: a Dirichlet process mixture in which every component has its own margin classifier.

    v_k ~ Beta(a_k, b_k) of the prior,  theta_k ~ prior of the family,  eta_k ~ N(0, nu^2 I)   k = 1..T
    z_n ~ Categorical(pi(v)),  x_n ~ p(. | theta_{z_n}),  factor phi(y_n | eta_{z_n}^T a_n)    n = 1..N

a_n = feature_map(x_n) is what the classifiers see. Source: Zhu, Chen & Xing (2011); Wang & Zhu (2014), equation (11).
The factors phi are not normalized over y (math/dp-mixtures, section 4); of a row without a label there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from .arrays import as_features, as_labels, as_targets
from .config import resolved
from .domains import Count, Positive, Truncation
from .feature_maps import AnyFeatureMap, Standardized
from .likelihoods import DiagonalGaussian, Likelihood
from .losses import Hinge, Loss, Masked, OneVsRest
from .mixture import Mixture
from .priors import DirichletProcess, PartitionPrior


class Classes:
    """The domain of given class labels."""

    words = "sorted integer labels [L] of at least two classes"

    def read(self, value: Any) -> Tensor:
        """The labels [L]; ValueError or TypeError if they are no such labels."""
        labels = torch.as_tensor(value)
        if labels.ndim != 1 or len(labels) < 2 or labels.is_floating_point() or labels.is_complex():
            raise ValueError
        if not (labels.diff() > 0).all():
            raise ValueError
        return labels


@dataclass(eq=False)
class InfiniteSVM(Mixture):
    """DP mixture of max-margin classifiers, for two or more classes, or real targets with a regression loss.

    A missing target is NaN in y, or -1 among integer labels (unless the labels are the signs -1 and +1): such a row
    shapes the components through x alone.

    Parameters
    ----------
    likelihood : family of the inputs; hyperparameters left at None are set from the data
    loss : margin loss. A binary loss is used one-versus-rest when there are more than two classes
    prior : over the partition, `DirichletProcess` or `PitmanYor`
    feature_map : what the classifiers see of x: `Standardized`, `RandomFourier` (a kernel), `PrincipalDirections`, or
        any callable from [N, D] to [N, P]
    weight_scale : nu > 0, prior standard deviation of the classifier weights
    truncation : T >= 2, number of components of the Pyro program, of SVI and of the blocked Gibbs scan
    classes : sorted integer labels [L]; None: those in the data
    num_features : width D of X; None: that of the data

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

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        if y is None:
            raise ValueError("InfiniteSVM needs targets: requires y to be passed, but the target y is None.")
        X, model = as_features(X), super().resolve(X, weights=weights)
        loss, classes = model.loss, None
        if loss.target == "real":
            as_targets(y, X)
        else:
            _, classes = as_labels(y, X, model.classes)
            if len(classes) > 2 and loss.binary:
                loss = OneVsRest(loss)
        model = model.replace(loss=loss, feature_map=resolved(model.feature_map, X, weights), classes=classes)
        if not isinstance(loss, Masked) and model.targets(X, y).isnan().any():
            model = model.replace(loss=Masked(loss))
        return model

    def features(self, X: Any) -> Tensor:
        return self.feature_map(X)

    def targets(self, X: Any, y: Any = None) -> Tensor:
        if self.loss.target == "real":
            return as_targets(y, X, min_known=0).unsqueeze(1)
        index, classes = as_labels(y, X, self.classes)
        signs = 2 * torch.nn.functional.one_hot(index.clamp(min=0), len(classes)).to(X.dtype) - 1
        if len(classes) == 2 and self.loss.binary:
            signs = signs[:, 1:]
        return torch.where((index >= 0).unsqueeze(1), signs, torch.nan)
