"""Estimators of label sets, tasks and documents as they are, beside linear machines: held-out scores and CPU seconds.

    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_tasks.py labels [SET ...]    micro-F1 in percent
    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_tasks.py tasks [SET ...]     R2 in percent
    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_tasks.py topics [SET ...]    accuracy in percent

Rivals of label sets, on standardized columns, are a LogisticRegression or a LinearSVC for each label, at their defaults
and at the C of six that three folds of the training rows prefer by micro-F1; of tasks a RidgeCV for each. Folder sets
have their customary split, made ones and schools half of their rows; `corel` is 50 labels of 1,000 rows. Rivals of
`Classifier(MedLDA())` are LinearSVCs of the counts, each column in parts of its largest, and of tf-idf, with the C of
six that three folds prefer; means of three folds. Words are in at least five documents, and in at most 30 % of them.
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
from scipy.sparse import csr_matrix, vstack
from sklearn.base import BaseEstimator
from sklearn.datasets import load_diabetes, load_digits, make_multilabel_classification
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import f1_score, r2_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.svm import LinearSVC
from timing import choose

from regbayes.datasets import load
from regbayes.estimators import Classifier, MultiLabelClassifier, MultiTaskRegressor
from regbayes.models import MedLDA

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # X, y, X_test, y_test


def made(num_rows: int, num_columns: int, num_labels: int, per_row: int, **options: Any) -> Split:
    shape = {"n_features": num_columns, "n_classes": num_labels, "n_labels": per_row}
    X, Y = make_multilabel_classification(2 * num_rows, random_state=0, **shape, **options)
    return X[:num_rows], Y[:num_rows], X[num_rows:], Y[num_rows:]


def words(chance: float, rare: bool = False) -> Split:
    """300 rows of 1,000 binary columns, few of them frequent, and 38 labels, each of which brings 12 words of its own
    with this chance. A tenth of the labels are frequent, or each has one row in 40; those of one row are left out."""
    rng = np.random.default_rng(0)
    rates = np.full(38, 0.025) if rare else np.clip(0.03 * rng.pareto(1.2, 38) + 0.01, 0.01, 0.4)
    Y = rng.random((1300, 38)) < rates
    usual = rng.pareto(1.0, 1000) + 0.2
    absent = np.tile(1 - np.clip(40 * usual / usual.sum(), 0, 0.9), (1300, 1))
    for label in Y.T:
        absent[np.ix_(label, rng.choice(1000, 12, replace=False))] *= 1 - chance
    X, Y = (rng.random(absent.shape) > absent).astype(float), Y[:, Y[:300].sum(0) > 1].astype(int)
    return X[:300], Y[:300], X[300:], Y[300:]


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
    "words of labels": lambda: words(0.6),
    "weak words": lambda: words(0.15),
    "rare labels": lambda: words(0.3, rare=True),
    "rare and weak": lambda: words(0.15, rare=True),
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
        X = StandardScaler().fit(X[train]).transform(X)
        found = {}
        for estimator in (MultiTaskRegressor(), EachRidge()):
            model, spent = fitted(estimator, X[train], y[train], tasks=task[train])
            found[type(model).__name__] = r2_score(y[~train], model.predict(X[~train], tasks=task[~train])), spent
        show(f"{name} {train.sum()} x {X.shape[1]}, {task.max() + 1}", found)


Documents = tuple[csr_matrix, np.ndarray]  # counts [N, V], classes [N]


def news(classes: tuple[int, ...], num_rows: int) -> Documents:
    """Some documents of the newsgroups of these numbers."""
    data = load("newsgroups20")
    X, y = vstack([data.X, data.X_test]).tocsr(), np.concatenate([data.y, data.y_test])
    rows = np.random.default_rng(0).permutation(np.flatnonzero(np.isin(y, classes)))[:num_rows]
    X = X[rows].astype(float)
    share = np.asarray((X > 0).sum(0)).ravel()
    X = X[:, (share >= 5) & (share <= 0.3 * len(rows))]
    kept = np.asarray(X.sum(1)).ravel() > 0
    return X[kept], np.unique(y[rows][kept], return_inverse=True)[1]


def images(X: np.ndarray, y: np.ndarray, num_rows: int) -> Documents:
    """Images as documents, with pixels as words."""
    rows = np.random.default_rng(0).permutation(len(y))[:num_rows]
    return csr_matrix(np.asarray(X, dtype=float)[rows].round()), np.asarray(y)[rows]


def written() -> Documents:
    """Documents of 60 words and twelve topics, three of which each of six classes prefers."""
    rng = np.random.default_rng(0)
    topics, y, place = rng.dirichlet(np.full(400, 0.05), 12), rng.integers(6, size=600), np.arange(12)
    shares = [rng.dirichlet(0.1 + np.isin(place, [c, c + 3, 6 + c])) for c in y]
    return csr_matrix(np.array([rng.multinomial(60, share @ topics) for share in shares], dtype=float)), y


DOCUMENTS: dict[str, Callable[[], Documents]] = {
    "digits": lambda: images(*load_digits(return_X_y=True), 900),
    "mnist": lambda: images(load("mnist").X / 32, load("mnist").y, 800),
    "religion": lambda: news((0, 19), 800),
    "science": lambda: news((11, 12, 13, 14), 900),
    "computers": lambda: news((1, 2, 3, 4, 5), 900),
    "written": written,
}


def topics(*names: str) -> None:
    grid = {"linearsvc__C": np.logspace(-3, 2, 6)}
    contestants: dict[str, Callable[[], Any]] = {
        "Classifier(MedLDA())": lambda: Classifier(MedLDA()),
        "LinearSVC": lambda: GridSearchCV(make_pipeline(MaxAbsScaler(), LinearSVC()), grid, cv=3),
        "tf-idf": lambda: GridSearchCV(make_pipeline(TfidfTransformer(), LinearSVC()), grid, cv=3),
    }
    for name in names or DOCUMENTS:
        X, y = DOCUMENTS[name]()
        found: dict[str, tuple[float, float]] = {}
        folds = list(StratifiedKFold(3, shuffle=True, random_state=0).split(X, y))
        for label, make in contestants.items():
            runs = [(*fitted(make(), X[train], y[train]), test) for train, test in folds]
            score = np.mean([model.score(X[test], y[test]) for model, _, test in runs])
            found[label] = float(score), float(np.mean([spent for _, spent, _ in runs]))
        show(f"{name} {X.shape[0]} x {X.shape[1]}, {y.max() + 1}", found)


def fitted(estimator: Any, *arguments: Any, **options: Any) -> tuple[Any, float]:
    """The estimator, and its CPU seconds."""
    started = time.process_time()
    estimator.fit(*arguments, **options)
    return estimator, time.process_time() - started


def show(name: str, found: dict[str, tuple[float, float]]) -> None:
    cells = "   ".join(f"{label} {100 * score:5.1f} {spent:6.2f} s" for label, (score, spent) in found.items())
    print(f"{name:34}{cells}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    choose(__doc__, labels=labels, tasks=tasks, topics=topics)
