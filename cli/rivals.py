"""What the infinite SVM is compared with: SVMs tuned in the same folds, and clustering followed by SVMs."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from ..estimators import Clusterer
from ..inference import SmallVariance


def rivals(seed: int, folds: StratifiedKFold) -> dict[str, BaseEstimator]:
    """Rivals by name; each standardizes its data and chooses its arguments by cross-validation on inner folds."""
    linear = LinearSVC(dual="auto", random_state=seed)
    return {
        "LinearSVC": _tuned(linear, folds, C=_STRENGTHS),
        "RBF-SVC": _tuned(SVC(random_state=seed), folds, C=_STRENGTHS, gamma=["scale", 0.01, 0.1]),
        "DP-means + LinearSVC": _tuned(ClusterThenSVM(seed=seed), folds, C=_STRENGTHS),
    }


def _tuned(method: BaseEstimator, folds: StratifiedKFold, **grid: Any) -> GridSearchCV:
    pipeline = make_pipeline(StandardScaler(), method)
    name = pipeline.steps[-1][0]
    return GridSearchCV(pipeline, {f"{name}__{key}": values for key, values in grid.items()}, cv=folds)


class ClusterThenSVM(ClassifierMixin, BaseEstimator):
    """DP-means, blind to the labels, then a linear SVM in each cluster; a cluster of one class predicts that class."""

    def __init__(self, C: float = 1.0, num_components: int = 4, seed: int = 0) -> None:
        self.C = C
        self.num_components = num_components
        self.seed = seed

    def fit(self, X: NDArray[np.float64], y: NDArray[Any]) -> Self:
        """Cluster the rows, then fit the SVMs."""
        self.classes_ = np.unique(y)
        inference = SmallVariance(num_components=self.num_components, seed=self.seed, progress=False)
        self.clusterer_ = Clusterer(inference=inference).fit(X)
        self.svms_ = [self._fit_cluster(X[rows], y[rows]) for rows in self._members(self.clusterer_.labels_)]
        return self

    def predict(self, X: NDArray[np.float64]) -> NDArray[Any]:
        """Labels [N], each by the SVM of the row's cluster."""
        predicted = np.empty(len(X), dtype=self.classes_.dtype)
        for svm, rows in zip(self.svms_, self._members(self.clusterer_.predict(X)), strict=True):
            if len(rows):
                predicted[rows] = svm.predict(X[rows]) if isinstance(svm, LinearSVC) else svm
        return predicted

    @property
    def n_components_(self) -> int:
        """Number of clusters."""
        return self.clusterer_.n_components_

    def _members(self, labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [np.flatnonzero(labels == k) for k in range(self.n_components_)]

    def _fit_cluster(self, X: NDArray[np.float64], y: NDArray[Any]) -> Any:
        if len(np.unique(y)) == 1:
            return y[0]
        return LinearSVC(C=self.C, dual="auto", random_state=self.seed).fit(X, y)


_STRENGTHS = [0.01, 0.1, 1.0, 10.0]
