"""Estimators of label sets and of many tasks as they are, beside linear machines: held-out scores and CPU seconds.

    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_tasks.py labels [SET ...]    micro-F1 in percent
    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_tasks.py tasks [SET ...]     R2 in percent

Rivals of label sets, on standardized columns, are a LogisticRegression or a LinearSVC for each label, at their defaults
and at the C of six that three folds of the training rows prefer by micro-F1; of tasks a RidgeCV for each. Folder sets
have their customary split, made ones and schools half of their rows; `corel` is 50 labels of 1,000 rows.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.datasets import load_diabetes, make_multilabel_classification
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import f1_score, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from timing import choose

from regbayes.datasets import load
from regbayes.estimators import MultiLabelClassifier, MultiTaskRegressor

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # X, y, X_test, y_test


def made(num_rows: int, num_columns: int, num_labels: int, per_row: int, **options: Any) -> Split:
    shape = {"n_features": num_columns, "n_classes": num_labels, "n_labels": per_row}
    X, Y = make_multilabel_classification(2 * num_rows, random_state=0, **shape, **options)
    return X[:num_rows], Y[:num_rows], X[num_rows:], Y[num_rows:]


def folder(name: str, rows: int | None = None, most_labels: int | None = None) -> Split:
    data = load(name)
    X, Y, X_test, Y_test = (
        (part.toarray() if hasattr(part, "toarray") else np.asarray(part)).astype(float)
        for part in (data.X[:rows], data.y[:rows], data.X_test, data.y_test)
    )
    kept = np.sort(np.argsort(-Y.sum(0), kind="stable")[:most_labels])
    return X, Y[:, kept], X_test, Y_test[:, kept]


LABELS: dict[str, Callable[[], Split]] = {
    "10^4 rows": lambda: made(10_000, 20, 5, 2),
    "small": lambda: made(400, 20, 5, 2),
    "many labels": lambda: made(1000, 40, 20, 3),
    "wide, rare": lambda: made(300, 1000, 20, 1, length=100),
    "wider, rarer": lambda: made(400, 600, 30, 1, length=60),
    "emotions": lambda: folder("emotions"),
    "yeast": lambda: folder("yeast"),
    "scene": lambda: folder("scene"),
    "medical": lambda: folder("medical"),
    "corel": lambda: folder("corel5k", 1000, 50),
}
RIVALS = {"LogisticRegression": LogisticRegression(), "LinearSVC": LinearSVC(dual=False)}


def each_label(machine: BaseEstimator) -> Any:
    return make_pipeline(StandardScaler(), OneVsRestClassifier(machine))


def tuned(machine: BaseEstimator) -> Any:
    grid = {"onevsrestclassifier__estimator__C": np.logspace(-4, 1, 6)}
    return GridSearchCV(each_label(machine), grid, cv=3, scoring="f1_micro")


def labels(*names: str) -> None:
    contestants: dict[str, Callable[[], Any]] = {"MultiLabelClassifier()": MultiLabelClassifier}
    for name, machine in RIVALS.items():
        contestants |= {name: partial(each_label, machine), f"{name}, tuned": partial(tuned, machine)}
    for name in names or LABELS:
        X, Y, X_test, Y_test = LABELS[name]()
        found = {}
        for label, make in contestants.items():
            model, spent = fitted(make(), X, Y)
            found[label] = f1_score(Y_test, model.predict(X_test), average="micro"), spent
        show(f"{name} {X.shape[0]} x {X.shape[1]}, {Y.shape[1]}", found)


def schools(
    num_tasks: int, rows: int, num_columns: int, noise: float = 0.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tasks whose linear functions are sums of two, and noise of this deviation."""
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(num_tasks * rows, num_columns)), np.repeat(np.arange(num_tasks), rows)
    W = rng.normal(size=(num_tasks, 2)) @ rng.normal(size=(2, num_columns)) / num_columns**0.5
    return X, (X * W[task]).sum(1) + noise * rng.normal(size=len(X)), task


def diabetes(num_tasks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patients in groups of age."""
    X, y = load_diabetes(return_X_y=True)
    return X, y, np.digitize(X[:, 0], np.quantile(X[:, 0], np.arange(1, num_tasks) / num_tasks))


def exams(num_tasks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = load("school")
    kept = np.asarray(data.groups) < num_tasks
    return np.asarray(data.X)[kept].astype(float), np.asarray(data.y)[kept].astype(float), np.asarray(data.groups)[kept]


TASKS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray, np.ndarray]]] = {
    "few tasks": lambda: schools(5, 100, 10),
    "many tasks": lambda: schools(40, 30, 10),
    "wide tasks": lambda: schools(10, 60, 40),
    "quiet": lambda: schools(5, 100, 10, 0.1),
    "quiet, many": lambda: schools(30, 40, 12, 0.1),
    "diabetes in 3": lambda: diabetes(3),
    "diabetes in 6": lambda: diabetes(6),
    "schools, 25": lambda: exams(25),
}


class EachRidge(BaseEstimator):
    """A RidgeCV for each task."""

    def fit(self, X: np.ndarray, y: np.ndarray, tasks: np.ndarray) -> EachRidge:
        alphas = np.logspace(-2, 4, 13)
        self.ridges_ = [RidgeCV(alphas).fit(X[tasks == m], y[tasks == m]) for m in range(tasks.max() + 1)]
        return self

    def predict(self, X: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        each = np.stack([ridge.predict(X) for ridge in self.ridges_], 1)
        return each[np.arange(len(X)), tasks]


def tasks(*names: str) -> None:
    for name in names or TASKS:
        X, y, task = TASKS[name]()
        train = np.random.default_rng(1).permutation(len(y)) % 2 == 0
        X, y = StandardScaler().fit(X[train]).transform(X), (y - y[train].mean()) / y[train].std()
        found = {}
        for estimator in (MultiTaskRegressor(), EachRidge()):
            model, spent = fitted(estimator, X[train], y[train], tasks=task[train])
            found[type(model).__name__] = r2_score(y[~train], model.predict(X[~train], tasks=task[~train])), spent
        show(f"{name} {train.sum()} x {X.shape[1]}, {task.max() + 1}", found)


def fitted(estimator: Any, *arguments: Any, **options: Any) -> tuple[Any, float]:
    """The estimator, and its CPU seconds."""
    started = time.process_time()
    estimator.fit(*arguments, **options)
    return estimator, time.process_time() - started


def show(name: str, found: dict[str, tuple[float, float]]) -> None:
    cells = "   ".join(f"{label} {100 * score:5.1f} {spent:6.2f} s" for label, (score, spent) in found.items())
    print(f"{name:28}{cells}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    choose(__doc__, labels=labels, tasks=tasks)
