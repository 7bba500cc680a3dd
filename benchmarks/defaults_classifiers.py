"""`ClassifierCV` as it is beside rivals tuned alike, on ten sets or made ones: held-out accuracy in percent, log loss.

    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/defaults_classifiers.py [--sets NAME ... | made] [--seed 0]
        [--repeats 3] [--folds 5] [--rows 1000]

Repeated stratified folds of at most so many rows of a set; every contestant standardizes and chooses by three inner
folds among eleven strengths and, of all but LinearSVC, three widths of a kernel or five numbers of clusters (with
several components ours have two temperatures). Wide images are reduced to 30 principal components of the training rows.
KMeans may have one cluster, as ours may have one component. The calibrated LinearSVC has Platt's sigmoid by three folds
at the best C. Seconds are of CPU, a fit with its search.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.datasets import (
    make_blobs,
    make_circles,
    make_classification,
    make_gaussian_quantiles,
    make_hastie_10_2,
    make_moons,
)
from sklearn.decomposition import PCA
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, RepeatedStratifiedKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from regbayes.datasets import load, make_setting_two
from regbayes.estimators import ClassifierCV
from regbayes.models import InfiniteSVM, RandomFourier, SquaredHinge

SETS = ("iris", "wine", "breast_cancer", "parkinsons", "wireless", "skin", "bee_dance", "digits", "mnist", "letter")
MADE: dict[str, Callable[[], Any]] = {  # every fourth of the twelve blobs is of one class
    "moons": lambda: make_moons(500, noise=0.25, random_state=0),
    "blobs": lambda: make_blobs(600, n_features=6, centers=12, cluster_std=2.5, random_state=1),
    "made, 3 classes": lambda: make_classification(600, 20, n_informative=8, n_classes=3, random_state=0),
    "made, 2 noisy classes": lambda: make_classification(500, 40, n_informative=5, flip_y=0.1, random_state=1),
    "circles": lambda: make_circles(500, noise=0.15, factor=0.5, random_state=0),
    "quantiles": lambda: make_gaussian_quantiles(n_samples=600, n_features=5, n_classes=3, random_state=0),
    "sphere": lambda: make_hastie_10_2(1000, random_state=0),
    "cubes": lambda: (lambda data: (data.X.numpy(), data.y.numpy()))(make_setting_two(1000, seed=0)),
}
WIDE, KEPT_COLUMNS, FEWEST = 100, 30, 15
STRENGTHS = np.logspace(-3, 2, 11)
OURS, FOURIER = "ours", "ours, Fourier"
LINEAR, KMEANS, RBF = "LinearSVC", "KMeans + LinearSVC", "RBF-SVC"


class KMeansSVC(ClassifierMixin, BaseEstimator):
    """KMeans, then a LinearSVC on the rows of each cluster; a cluster of one class predicts that one."""

    def __init__(self, num_clusters: int = 4, C: float = 1.0) -> None:
        self.num_clusters, self.C = num_clusters, C

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        self.classes_ = np.unique(y)
        self.kmeans_ = KMeans(min(self.num_clusters, len(X)), n_init=3, random_state=0).fit(X)
        members = [y[self.kmeans_.labels_ == k] for k in range(self.kmeans_.n_clusters)]
        self.svms_ = [
            own[0] if len(np.unique(own)) == 1 else LinearSVC(C=self.C).fit(X[self.kmeans_.labels_ == k], own)
            for k, own in enumerate(members)
        ]
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        labels, found = self.kmeans_.predict(X), np.empty(len(X), self.classes_.dtype)
        for k, svm in enumerate(self.svms_):
            if (labels == k).any():
                found[labels == k] = svm.predict(X[labels == k]) if isinstance(svm, LinearSVC) else svm
        return found


def tuned(estimator: BaseEstimator, seed: int, **grid: Any) -> GridSearchCV:
    return GridSearchCV(estimator, grid, cv=StratifiedKFold(3, shuffle=True, random_state=seed))


def contestants(seed: int) -> dict[str, Callable[[], Any]]:
    return {
        LINEAR: lambda: tuned(LinearSVC(random_state=0), seed, C=STRENGTHS),
        KMEANS: lambda: tuned(KMeansSVC(), seed, num_clusters=[1, 2, 4, 8, 16], C=STRENGTHS),
        RBF: lambda: tuned(SVC(), seed, C=np.logspace(-1, 3, 11), gamma=["scale", 0.01, 0.1]),
        OURS: ClassifierCV,
        FOURIER: lambda: ClassifierCV(InfiniteSVM(loss=SquaredHinge(), feature_map=RandomFourier(1500))),
    }


def rows_of(name: str, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, D] of a set and their classes, of which each has some."""
    if name in MADE:
        X, y = MADE[name]()
        return X, y % 4 if name == "blobs" else y
    data = load(name)
    X, y = (data.X.toarray() if hasattr(data.X, "toarray") else np.asarray(data.X, dtype=float)), np.asarray(data.y)
    chosen = np.random.default_rng(0).permutation(len(X))[:most]
    X, y = X[chosen], y[chosen]
    labels, counts = np.unique(y, return_counts=True)
    kept = np.isin(y, labels[counts >= FEWEST])
    return X[kept], y[kept]


def one_fold(X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Accuracy, log loss (NaN: no probabilities) and CPU seconds of each contestant."""
    reduce = [PCA(KEPT_COLUMNS, random_state=0)] if X.shape[1] > WIDE else []
    scaler = make_pipeline(StandardScaler(), *reduce).fit(X[train])
    seen, new, found = scaler.transform(X[train]), scaler.transform(X[test]), {}
    for name, make in contestants(seed).items():
        started = time.process_time()
        fitted = make().fit(seen, y[train])
        seconds = time.process_time() - started
        calibrated = fitted if name in (OURS, FOURIER) else None
        if name == LINEAR:
            calibrated = CalibratedClassifierCV(fitted.best_estimator_, cv=3).fit(seen, y[train])
        loss = np.nan if calibrated is None else log_loss(y[test], calibrated.predict_proba(new), labels=np.unique(y))
        found[name] = np.array([100 * fitted.score(new, y[test]), loss, seconds])
    return found


def main(sets: list[str], repeats: int, folds: int, most: int, seed: int) -> None:
    names, table = list(contestants(0)), []
    print(f"{'accuracy, log loss, CPU s':16}" + "".join(f"{name:>24}" for name in names))
    for name in sets:
        X, y = rows_of(name, most)
        splits = RepeatedStratifiedKFold(n_splits=folds, n_repeats=repeats, random_state=seed).split(X, y)
        each = [one_fold(X, y, train, test, place) for place, (train, test) in enumerate(splits)]
        table.append([np.mean([fold[contestant] for fold in each], 0) for contestant in names])
        show(name, table[-1])
    means = np.mean(table, 0)
    show("mean", means)
    accuracy, loss = (dict(zip(names, np.array(table)[:, :, part].T, strict=True)) for part in (0, 1))
    print(f"most points under LinearSVC {(accuracy[LINEAR] - accuracy[OURS]).max():.2f} (must: 1 at most)")
    print(f"above KMeans + LinearSVC {(accuracy[OURS] - accuracy[KMEANS]).mean():.2f} (must: over 0)")
    print(f"Fourier under RBF-SVC {(accuracy[RBF] - accuracy[FOURIER]).mean():.2f} (must: 1 at most)")
    dearest = {
        name: max(row[names.index(name)][2] / row[names.index(RBF)][2] for row in table) for name in (OURS, FOURIER)
    }
    print("most CPU of an RBF-SVC search: " + ", ".join(f"{name} {ratio:.1f}x" for name, ratio in dearest.items()))
    print(f"log loss below calibrated LinearSVC on {(loss[OURS] < loss[LINEAR]).sum()} of {len(sets)} (must: 8 of 10)")


def show(name: str, row: Any) -> None:
    cells = [f"{part[0]:10.2f} {'' if np.isnan(part[1]) else f'{part[1]:.3f}':>6}{part[2]:7.2f}" for part in row]
    print(f"{name:25}" + "".join(cells), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS)
    for name, value in {"seed": 0, "repeats": 3, "folds": 5, "rows": 1000}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    main(
        list(MADE) if options.sets == ["made"] else options.sets,
        options.repeats,
        options.folds,
        options.rows,
        options.seed,
    )
