"""Label sets in `regbayes compare --targets`: folds, rivals, and the quality of predicted sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, hamming_loss
from sklearn.model_selection import BaseCrossValidator, GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from .errors import CommandError
from .problems import Problem


class LabelFolds(BaseCrossValidator):
    """Shuffled folds of rows with labels y [N, C] of 0 and 1, in which each label is about equally frequent.

    Rows are dealt label by label, the rarest first (Sechidis, Tsoumakas & Vlahavas 2011).
    """

    def __init__(self, n_splits: int, seed: int = 0) -> None:
        self.n_splits = n_splits
        self.seed = seed

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """The number of folds."""
        return self.n_splits

    def _iter_test_indices(self, X: Any = None, y: Any = None, groups: Any = None) -> Iterator[NDArray[np.int64]]:
        labels = np.asarray(y)
        rarer = labels == (labels.mean(0) < 0.5)
        marks = np.hstack([rarer, np.ones((len(labels), 1), dtype=bool)])  # the last column deals the remaining rows
        order = np.random.default_rng(self.seed).permutation(len(labels))
        fold = np.full(len(labels), -1)
        counts = np.zeros((self.n_splits, marks.shape[1]), dtype=int)
        for mark in marks.sum(0).argsort(kind="stable"):
            for row in order[marks[order, mark]]:
                if fold[row] < 0:
                    fold[row] = np.lexsort((counts[:, -1], counts[:, mark]))[0]
                    counts[fold[row]] += marks[row]
        return (np.flatnonzero(fold == index) for index in range(self.n_splits))


def check_label_folds(problem: Problem, splits: list[Any], inner: BaseCrossValidator) -> None:
    """Raise CommandError unless every fold, and every inner fold, has both values of each label for training."""
    for train, _ in splits:
        for part, _ in inner.split(problem.X[train], problem.y[train]):
            rates = problem.y[train][part].mean(0)
            if (constant := np.flatnonzero((rates == 0) | (rates == 1))).size:
                label, ones = problem.labels[constant[0]], int(problem.y[:, constant[0]].sum())
                raise CommandError(
                    f"{problem.name}, column {label!r} is 1 in {ones} and 0 in {len(problem.y) - ones} of the rows: "
                    f"too few of one kind to train on in all of {len(splits)} folds and the inner folds of each. "
                    "Drop the column, or give more rows."
                )


def label_rivals(seed: int, folds: BaseCrossValidator, strengths: list[float]) -> dict[str, BaseEstimator]:
    """Rivals by name; each standardizes its data and chooses its arguments by cross-validation on inner folds."""
    linear = [LinearSVC(C=C, dual="auto", random_state=seed) for C in strengths]
    logistic = [LogisticRegression(C=C, max_iter=1000) for C in strengths]
    return {
        "LinearSVC, one-vs-rest": _chosen([OneVsRestClassifier(each) for each in linear], folds),
        "LogisticRegression, one-vs-rest": _chosen([OneVsRestClassifier(each) for each in logistic], folds),
        "LogisticRegression, chain": _chosen([ClassifierChain(each) for each in logistic], folds),
        "KNeighborsClassifier": _chosen([KNeighborsClassifier(k) for k in _NEIGHBORS], folds),
    }


def label_quality(truth: NDArray[Any], predicted: NDArray[Any], scores: NDArray[np.float64]) -> dict[str, float]:
    """The quality of predicted label sets [N, C], and of the ranking by scores [N, C].

    Precision at k is the fraction of the k labels with the highest scores, or of all C if they are fewer, that a row
    has.
    """
    ranked = np.take_along_axis(truth, np.argsort(-scores, axis=1, kind="stable"), 1)
    return {
        "micro_f1": f1_score(truth, predicted, average="micro", zero_division=0),
        "macro_f1": f1_score(truth, predicted, average="macro", zero_division=0),
        "hamming_loss": hamming_loss(truth, predicted),
        **{f"precision_at_{k}": float(ranked[:, :k].mean()) for k in (1, 3, 5)},
    }


def best_threshold(truth: NDArray[np.float64], scores: NDArray[np.float64]) -> tuple[float, float]:
    """The threshold of scores [N, C] with the highest micro-F1, and that value; truth [N, C] is NaN where unknown."""
    known = ~np.isnan(truth)
    order = np.argsort(-scores[known], kind="stable")
    found, hits = scores[known][order], truth[known][order].cumsum()
    below = np.append(found[1:], -np.inf)
    f1 = np.where(found > below, 2 * hits / (np.arange(1, len(found) + 1) + hits[-1]), -1.0)
    best = int(f1.argmax())
    return float((found[best] + max(below[best], found.min() - 1)) / 2), float(f1[best])


def label_scores(method: BaseEstimator, X: NDArray[Any]) -> NDArray[np.float64]:
    """Scores [N, C] by which a fitted method ranks the labels of rows: decisions, or probabilities."""
    if hasattr(method, "decision_function"):
        return np.asarray(method.decision_function(X))
    return np.stack([each[:, 1] for each in method.predict_proba(X)], axis=1)


def _chosen(methods: list[BaseEstimator], folds: BaseCrossValidator) -> GridSearchCV:
    pipeline = Pipeline([("scaler", StandardScaler()), ("method", methods[0])])
    return GridSearchCV(pipeline, {"method": methods}, cv=folds, scoring=LABEL_SCORING)


LABEL_SCORING = "f1_micro"
_NEIGHBORS = [1, 5, 10, 20]  # the search skips values above the number of rows
