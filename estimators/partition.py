"""Estimators over the mixture models: `Classifier`, `Regressor` and `Clusterer`.

Each is a pair (model, inference); `fit` validates the data, fits copies of both, and keeps the posterior. Both are
searched like other hyperparameters: `model__loss__strength`, `inference`, `inference__scale`, ...
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClusterMixin, RegressorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ..inference import SVI, Backend, PartitionPosterior, SmallVariance
from ..models import DPM, EpsilonInsensitive, InfiniteSVM, Mixture


class _PosteriorEstimator(BaseEstimator):
    """What the estimators share: the two parts, and data checked as scikit-learn does."""

    posterior_: PartitionPosterior

    def __init__(self, model: Mixture | None = None, inference: Backend | None = None) -> None:
        self.model = model
        self.inference = inference

    def _defaults(self) -> tuple[Mixture, Backend]:
        """What None stands for."""
        raise NotImplementedError

    def _fit_posterior(self, X: NDArray[Any], y: NDArray[Any] | None = None) -> None:
        default_model, default_inference = self._defaults()
        model = default_model if self.model is None else clone(self.model)
        inference = default_inference if self.inference is None else clone(self.inference)
        self.posterior_ = inference.fit(model, X, y)

    def _fit_data(self, X: ArrayLike, **checks: Any) -> Any:
        # torch shares memory with the array, which it needs to be writable
        return validate_data(self, X, dtype=_FLOATS, ensure_min_samples=2, force_writeable=True, **checks)

    def _new_data(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        return validate_data(self, X, dtype=_FLOATS, force_writeable=True, reset=False)

    @property
    def n_components_(self) -> int:
        """Number of occupied components."""
        check_is_fitted(self)
        return self.posterior_.num_components


class Classifier(ClassifierMixin, _PosteriorEstimator):
    """Classification by a mixture of margin classifiers; labels of any kind, two or more classes.

    Parameters
    ----------
    model : a model with classes; None: `InfiniteSVM()`. A search of its arguments needs it passed
    inference : a backend of `regbayes.inference`, which owns the seed; None: `SmallVariance()`

    Attributes
    ----------
    posterior_ : Posterior of the fit
    classes_ : sorted labels [L]
    n_components_ : number of occupied components
    n_features_in_ : width of X

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> Classifier().fit(X, y).score(X, y) > 0.9
    True
    """

    classes_: NDArray[Any]

    def _defaults(self) -> tuple[Mixture, Backend]:
        return InfiniteSVM(), SmallVariance()

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit copies of the model and the backend to X [N, D] and labels y [N]."""
        rows, labels = self._fit_data(X, y=y)
        check_classification_targets(labels)
        self.classes_, index = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class ({self.classes_[0]!r}); a classifier needs at least two.")
        self._fit_posterior(rows, index)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels [N]."""
        rows = self._new_data(X)
        return self.classes_[self.posterior_.predict(rows)]

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Class probabilities [N, L] in the order of `classes_`; see `Posterior.predict_proba` for what they mean."""
        rows = self._new_data(X)
        return self.posterior_.predict_proba(rows)

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Posterior mean scores: [N] for two classes (positive: the larger label), else [N, L]."""
        rows = self._new_data(X)
        return self.posterior_.decision_function(rows)


class Regressor(RegressorMixin, _PosteriorEstimator):
    """Regression by a mixture of support vector regressors.

    The loss and the prior of the weights have fixed scales, so targets should have a standard deviation near 1;
    `sklearn.compose.TransformedTargetRegressor` sees to it.

    Parameters
    ----------
    model : a model with a regression loss; None: `InfiniteSVM(loss=EpsilonInsensitive())`
    inference : a backend of `regbayes.inference`, which owns the seed; None: `SmallVariance()`

    Attributes
    ----------
    posterior_ : Posterior of the fit
    n_components_ : number of occupied components
    n_features_in_ : width of X
    """

    def _defaults(self) -> tuple[Mixture, Backend]:
        return InfiniteSVM(loss=EpsilonInsensitive()), SmallVariance()

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit copies of the model and the backend to X [N, D] and targets y [N]."""
        rows, targets = self._fit_data(X, y=y, y_numeric=True)
        self._fit_posterior(rows, targets.astype(rows.dtype))  # a copy, which is writable
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Posterior mean targets [N]."""
        rows = self._new_data(X)
        return self.posterior_.predict(rows)


class Clusterer(ClusterMixin, _PosteriorEstimator):
    """Clustering by a Dirichlet process mixture: the number of clusters is found, not given.

    Parameters
    ----------
    model : a model without classes; None: `DPM()`
    inference : a backend of `regbayes.inference`, which owns the seed; None: `SVI()`, which needs no
        penalty or number of clusters

    Attributes
    ----------
    posterior_ : Posterior of the fit
    labels_ : cluster [N] of every row, 0..n_components_-1
    n_components_ : number of clusters
    n_features_in_ : width of X

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> X, _ = make_blobs(60, centers=[[0, 0], [9, 9], [0, 9]], random_state=0)
    >>> Clusterer().fit(X).n_components_
    3
    """

    labels_: NDArray[np.int64]

    def _defaults(self) -> tuple[Mixture, Backend]:
        return DPM(), SVI()

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Fit copies of the model and the backend to X [N, D]; y is ignored."""
        self._fit_posterior(self._fit_data(X))
        partition = self.posterior_.partition().cpu().numpy()
        counts = np.bincount(partition, minlength=self.posterior_.samples["log_mixture"].shape[1] - 1)
        # a backend may leave components empty, but labels count from 0 without gaps
        self._label_of_component = np.argsort(np.argsort(counts == 0, kind="stable"))
        self.labels_ = self._label_of_component[partition]
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Cluster [N] of new rows, in the numbering of `labels_`."""
        rows = self._new_data(X)
        return self._label_of_component[self.posterior_.assign(rows)]


_FLOATS = [np.float64, np.float32]
