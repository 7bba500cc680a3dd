"""The infinite SVM: a Dirichlet process mixture in which every component has its own linear margin classifier.

    v_k ~ Beta(1, alpha),  theta_k ~ prior of the family,  eta_k ~ N(0, nu^2 I)                k = 1..T
    z_n ~ Categorical(pi(v)),  x_n ~ p(. | theta_{z_n}),  factor phi(y_n | eta_{z_n}^T a_n)    n = 1..N

a_n = ((x_n - feature_loc) / feature_scale, intercept) is what the classifiers see. Source: Zhu, Chen & Xing (2011);
Wang & Zhu (2014), equation (11). The factors phi are not normalized over y (math/dp-mixtures, section 4).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from .arrays import as_features, as_labels, as_targets
from .likelihoods import DiagonalGaussian, Likelihood
from .losses import CrammerSinger, Hinge, Loss, OneVsRest
from .mixture import Mixture, check_hyperparameters, resolve_likelihood

__all__ = ["ConstantColumnWarning", "InfiniteSVM"]


class ConstantColumnWarning(UserWarning):
    """A column of X has a single value."""


@dataclass(eq=False)
class InfiniteSVM(Mixture):
    """DP mixture of max-margin classifiers, for two or more classes, or real targets with a regression loss.

    Parameters
    ----------
    likelihood : family of the inputs; hyperparameters left at None are set from the data
    loss : margin loss. A binary loss is used one-versus-rest when there are more than two classes
    concentration : alpha > 0 of the DP (the starting value if it has a prior)
    concentration_prior : (shape, rate) of alpha ~ Gamma, or None for a fixed alpha
    weight_scale : nu > 0, prior standard deviation of the classifier weights
    intercept : value of the constant classifier feature, so that the intercept's prior standard deviation is
        `weight_scale * intercept`; 0 for none
    truncation : T >= 2, number of components of the Pyro program, of SVI and of the blocked Gibbs scan
    feature_loc, feature_scale : the classifiers see (x - loc) / scale; None: mean and standard deviation of the data
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
    concentration: float = 1.0
    concentration_prior: tuple[float, float] | None = None
    weight_scale: float = 1.0
    intercept: float = 1.0
    truncation: int = 20
    feature_loc: Tensor | float | None = None
    feature_scale: Tensor | float | None = None
    classes: Tensor | None = None
    num_features: int | None = None

    def resolve(self, X: Any, y: Any = None) -> Self:
        X = as_features(X, num_features=self.num_features)
        if y is None:
            raise ValueError("InfiniteSVM needs targets: requires y to be passed, but the target y is None.")
        check_hyperparameters(self)
        loc = (
            X.mean(0) if self.feature_loc is None else torch.as_tensor(self.feature_loc, dtype=X.dtype, device=X.device)
        )
        scale = (
            _scales(X)
            if self.feature_scale is None
            else torch.as_tensor(self.feature_scale, dtype=X.dtype, device=X.device)
        )
        loss, classes = self.loss, None
        if loss.target == "sign":
            _, classes = as_labels(y, X, self.classes)
            if len(classes) > 2 and not isinstance(loss, OneVsRest | CrammerSinger):
                loss = OneVsRest(loss)
        return self.replace(
            likelihood=resolve_likelihood(self.likelihood, X),
            loss=loss,
            feature_loc=loc.expand(X.shape[1]).clone(),
            feature_scale=scale.expand(X.shape[1]).clone(),
            classes=classes,
            num_features=X.shape[1],
        )

    def features(self, X: Tensor) -> Tensor:
        if self.feature_loc is None or self.feature_scale is None:
            raise ValueError("The model is not resolved. Call model.resolve(X, y) first.")
        standard = (X - self.feature_loc) / self.feature_scale
        if not self.intercept:
            return standard
        return torch.cat([standard, X.new_full((len(X), 1), self.intercept)], 1)

    def targets(self, X: Tensor, y: Any) -> Tensor:
        if self.loss.target == "real":
            return as_targets(y, X).unsqueeze(1)
        index, classes = as_labels(y, X, self.classes)
        if len(classes) == 2 and not isinstance(self.loss, OneVsRest | CrammerSinger):
            return (2 * index - 1).to(X.dtype).unsqueeze(1)
        return 2 * torch.nn.functional.one_hot(index, len(classes)).to(X.dtype) - 1


def _scales(X: Tensor) -> Tensor:
    """Standard deviations [D]; 1 for a constant column."""
    scale = X.std(0, correction=0)
    constant = scale <= 8 * torch.finfo(X.dtype).eps * X.abs().amax(0)
    if constant.any():
        columns = torch.nonzero(constant).flatten().tolist()
        warnings.warn(
            f"Columns {columns} of X are constant and tell nothing. Drop them.", ConstantColumnWarning, stacklevel=4
        )
    return torch.where(constant, torch.ones_like(scale), scale)
