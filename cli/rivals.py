"""Rivals of the infinite SVM: SVMs tuned in the same folds, and clustering followed by SVMs."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import BaseCrossValidator, GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR

from ..estimators import Clusterer
from ..inference import SmallVariance
from .compare_labels import LABEL_SCORING, label_rivals

SCORING = {"classification": "accuracy", "regression": "r2", "labels": LABEL_SCORING}


def rivals(task: str, seed: int, folds: BaseCrossValidator) -> dict[str, BaseEstimator]:
    """Rivals by name; each standardizes its data and chooses its arguments by cross-validation on inner folds."""
    if task == "labels":
        return label_rivals(seed, folds, _STRENGTHS)
    linear: BaseEstimator = LinearSVC(dual="auto", random_state=seed)
    kernel: BaseEstimator = SVC(random_state=seed)
    if task == "regression":
        linear, kernel = LinearSVR(dual="auto", epsilon=0.1, random_state=seed), SVR(epsilon=0.1)
    clustered = ClusterThenSVM(linear, seed=seed)
    first, second = type(linear).__name__, f"RBF-{type(kernel).__name__}"
    return {
        first: _tuned(linear, task, folds, C=_STRENGTHS),
        second: _tuned(kernel, task, folds, C=_STRENGTHS, gamma=["scale", 0.01, 0.1]),
        f"DP-means + {first}": _tuned(clustered, task, folds, svm__C=_STRENGTHS, num_components=[1, 2, 4, 8, 16]),
    }


def _tuned(method: BaseEstimator, task: str, folds: BaseCrossValidator, **grid: Any) -> GridSearchCV:
    pipeline = make_pipeline(StandardScaler(), method)
    name = pipeline.steps[-1][0]
    named = {f"{name}__{key}": values for key, values in grid.items()}
    return GridSearchCV(pipeline, named, cv=folds, scoring=SCORING[task])


class ClusterThenSVM(BaseEstimator):
    """DP-means, without the targets, then an SVM in each cluster; a cluster with one target predicts that one."""

    def __init__(self, svm: BaseEstimator, num_components: int = 4, seed: int = 0) -> None:
        self.svm = svm
        self.num_components = num_components
        self.seed = seed

    def fit(self, X: NDArray[np.float64], y: NDArray[Any]) -> Self:
        """Cluster the rows, then fit the SVMs."""
        # one descent, as in the search of `ClassifierCV`
        inference = SmallVariance(num_components=self.num_components, num_restarts=1, seed=self.seed, progress=False)
        self.clusterer_ = Clusterer(inference=inference).fit(X)
        self.svms_ = [self._fit_cluster(X[rows], y[rows]) for rows in self._members(self.clusterer_.labels_)]
        self.dtype_ = y.dtype
        return self

    def predict(self, X: NDArray[np.float64]) -> NDArray[Any]:
        """Labels or numbers [N], each by the SVM of the row's cluster."""
        predicted = np.empty(len(X), dtype=self.dtype_)
        for svm, rows in zip(self.svms_, self._members(self.clusterer_.predict(X)), strict=True):
            if len(rows):
                predicted[rows] = svm.predict(X[rows]) if isinstance(svm, BaseEstimator) else svm
        return predicted

    @property
    def n_components_(self) -> int:
        """The number of clusters."""
        return self.clusterer_.n_components_

    def _members(self, labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [np.flatnonzero(labels == k) for k in range(self.n_components_)]

    def _fit_cluster(self, X: NDArray[np.float64], y: NDArray[Any]) -> Any:
        return y[0] if len(np.unique(y)) == 1 else clone(self.svm).fit(X, y)


_STRENGTHS = [0.001, 0.01, 0.1, 1.0, 10.0, 100.0]
