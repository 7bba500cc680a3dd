"""Estimators of label sets, tasks and documents as they are, beside linear machines: held-out scores and CPU seconds.

    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_tasks.py labels [SET ...]    micro-F1 in percent
    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_tasks.py tasks [SET ...]     R2 in percent
    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_tasks.py topics [SET ...]    accuracy in percent
    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_tasks.py restarts [SET ...]  by their number

Rivals of label sets, on standardized columns, are a LogisticRegression or a LinearSVC for each label, at their defaults
and at the C of six that three folds of the training rows prefer by micro-F1; of tasks a RidgeCV for each, and one for
all but the mean of each. Folder sets have their customary split, made ones and schools half of their rows, and an
eighth of each task, at least four; `corel` is 50 labels of 1,000 rows. Rivals of `Classifier(MedLDA())` are LinearSVCs
of the counts, each column in parts of its largest, and of tf-idf, with the C of six that three folds prefer; means of
three folds. Words are in at least five documents, and in at most 30 % of them.
Restarts are those of small variance of tasks, and of label sets with the joint "and": "auto", 1, 2, 4 and 16. How far
the objective is above that of 16, R2, accuracy of signs or average precision of all entries, all in percent; seconds.
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
from sklearn.metrics import average_precision_score, f1_score, r2_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.svm import LinearSVC
from timing import choose

from regbayes.datasets import load
from regbayes.estimators import Classifier, MultiLabelClassifier, MultiTaskRegressor, MultiTaskRegressorCV
from regbayes.inference import SmallVariance
from regbayes.models import BNMC, MedLDA, MultiTaskInfiniteLatentSVM, by_task

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


def alike(rows: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ten tasks of one linear function of five columns, with constants of their own."""
    rng, task = np.random.default_rng(0), np.repeat(np.arange(10), rows)
    X = rng.normal(size=(len(task), 5))
    return X, X @ rng.normal(size=5) + rng.normal(size=10)[task] + noise * rng.normal(size=len(task)), task


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
    "alike": lambda: alike(40, 0.5),
    "diabetes in 3": lambda: diabetes(3),
    "diabetes in 6": lambda: diabetes(6),
    "schools, 25": lambda: exams(25),
}


ALPHAS = np.logspace(-2, 4, 13)


class EachRidge(BaseEstimator):
    """A RidgeCV for each task."""

    def fit(self, X: np.ndarray, y: np.ndarray, tasks: np.ndarray) -> EachRidge:
        self.ridges_ = [RidgeCV(ALPHAS).fit(X[tasks == m], y[tasks == m]) for m in range(tasks.max() + 1)]
        return self

    def predict(self, X: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        each = np.stack([ridge.predict(X) for ridge in self.ridges_], 1)
        return each[np.arange(len(X)), tasks]


class OneRidge(BaseEstimator):
    """A RidgeCV for all tasks, beside the mean of each."""

    def fit(self, X: np.ndarray, y: np.ndarray, tasks: np.ndarray) -> OneRidge:
        self.means_ = np.array([y[tasks == m].mean() for m in range(tasks.max() + 1)])
        self.ridge_ = RidgeCV(ALPHAS).fit(X, y - self.means_[tasks])
        return self

    def predict(self, X: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        return self.means_[tasks] + self.ridge_.predict(X)


def some_of_each(task: np.ndarray, share: float) -> np.ndarray:
    """Whether each row is one of a share of those of its task, at least four."""
    place = np.random.default_rng(1).permutation(len(task))
    rank = np.array([(place[task == m] < own).sum() for own, m in zip(place, task, strict=True)])
    return rank < np.maximum(4, share * np.bincount(task)[task])


def tasks(*names: str) -> None:
    for name in names or TASKS:
        X, y, task = TASKS[name]()
        half = np.random.default_rng(1).permutation(len(y)) % 2 == 0
        for train in (half, some_of_each(task, 0.125)):
            X = StandardScaler().fit(X[train]).transform(X)
            found = {}
            for estimator in (MultiTaskRegressor(), MultiTaskRegressorCV(), EachRidge(), OneRidge()):
                model, spent = fitted(estimator, X[train], y[train], tasks=task[train])
                found[type(model).__name__] = r2_score(y[~train], model.predict(X[~train], tasks=task[~train])), spent
            show(f"{name} {train.sum()} x {X.shape[1]}, {task.max() + 1}", found)


def signs(num_tasks: int, rows: int, wrong: float = 0.0) -> Split:
    """Signs of linear functions near one, some of them wrong; 100 test rows for each task, without wrong ones."""
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(num_tasks * (rows + 100), 8)), np.repeat(np.arange(num_tasks), rows + 100)
    W = rng.normal(size=8) + 0.5 * rng.normal(size=(num_tasks, 8))
    sign, train = ((X * W[task]).sum(1) > 0).astype(int), np.tile(np.arange(rows + 100) < rows, num_tasks)
    Y = by_task(np.where(rng.random(len(X)) < wrong, 1 - sign, sign), task)
    return X[train], Y[train], X[~train], by_task(sign, task)[~train]


def mixed(rows: int, odds: float) -> Split:
    """Label sets of six components with rates of their own, and classifiers."""
    rng = np.random.default_rng(0)
    z, means, rates = rng.integers(6, size=rows + 1000), 2 * rng.normal(size=(6, 8)), rng.beta(0.4, odds, size=(6, 5))
    X = means[z] + rng.normal(size=(rows + 1000, 8))
    chance = rates[z] / (1 + np.exp(-X @ rng.normal(size=(8, 5)) / 2))
    Y = (rng.random(chance.shape) < chance).astype(float)
    return X[:rows], Y[:rows], X[rows:], Y[rows:]


SIGNS = {
    "signs, 8 x 8": lambda: signs(8, 8),
    "signs, 8 x 40": lambda: signs(8, 40),
    "wrong signs, 6 x 40": lambda: signs(6, 40, 0.2),
}
SETS_OF_LABELS = {
    "mixed, 120": lambda: mixed(120, 0.4),
    "mixed, 400": lambda: mixed(400, 0.4),
    "rare, 400": lambda: mixed(400, 3.0),
    "small": LABELS["small"],
    "emotions": LABELS["emotions"],
}


def restarts(*names: str) -> None:
    for name in names or (*TASKS, *SIGNS, *SETS_OF_LABELS):
        runs = [restarted(name, SmallVariance(num_restarts=number, num_jobs=1)) for number in ("auto", 1, 2, 4, 16)]
        least = runs[-1][0]
        cells = [f"{100 * (cost / least - 1):6.2f} {100 * score:5.1f} {spent:6.2f} s" for cost, score, spent in runs]
        print(f"{name:24}{'   '.join(cells)}", flush=True)


def restarted(name: str, backend: SmallVariance) -> tuple[float, float, float]:
    """The objective, the score of the test rows, and CPU seconds."""
    if name in TASKS:
        X, y, task = TASKS[name]()
        train = np.random.default_rng(1).permutation(len(y)) % 2 == 0
        X = StandardScaler().fit(X[train]).transform(X)
        machine, spent = fitted(MultiTaskRegressor(inference=backend), X[train], y[train], tasks=task[train])
        score = r2_score(y[~train], machine.predict(X[~train], tasks=task[~train]))
        return machine.posterior_.trace.best, score, spent
    X, Y, X_test, Y_test = (SIGNS | SETS_OF_LABELS)[name]()
    scaler, model = StandardScaler().fit(X), MultiTaskInfiniteLatentSVM() if name in SIGNS else BNMC(joint="and")
    started = time.process_time()
    posterior = backend.fit(model, scaler.transform(X), Y)
    spent, X_test = time.process_time() - started, scaler.transform(X_test)
    if name in SIGNS:
        known = ~np.isnan(Y_test)
        score = np.mean(np.asarray(posterior.predict(X_test))[known] == Y_test[known])
    else:
        some = Y.any(0) & Y_test.any(0)
        score = average_precision_score(
            Y_test[:, some], np.asarray(posterior.predict_proba(X_test))[:, some], average="micro"
        )
    return posterior.trace.best, float(score), spent


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
    choose(__doc__, labels=labels, tasks=tasks, topics=topics, restarts=restarts)
