"""Settings I and II of Wang & Zhu (2014): accuracy of each backend as a share of the Bayes-optimal accuracy.

    OMP_NUM_THREADS=1 python benchmarks/settings.py [--sets 20] [--folds 2] [--loss hinge|logistic]

Each data set: 80% to train, hyperparameters by cross-validation on the training rows, 20% to test. The share is given
twice: of the labels drawn, and in expectation over the labels of the test rows, which has less noise. Rivals: RBF-SVC
tuned on the same rows, and KMeans with the true K and a LinearSVC on each centred cluster. Times are CPU seconds of
fit and predict at the chosen hyperparameters, contestants in turn; the last two are at their defaults.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from tqdm import tqdm

from regbayes.datasets import make_setting_one, make_setting_two
from regbayes.estimators import Classifier
from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.models import (
    DPM,
    DiagonalGaussian,
    Hinge,
    InfiniteSVM,
    Likelihood,
    Logistic,
    Loss,
    SphericalGaussian,
    Standardized,
)

TUNING_ROWS = 2000  # cross-validation uses at most so many training rows, for every contestant
LOSSES: dict[str, list[tuple[Loss, float]]] = {  # with the weight scales to try
    "hinge": [(Hinge(0.03), 3.0), (Hinge(0.1), 3.0)],
    "logistic": [(Logistic(), 0.5), (Logistic(), 1.5)],
}


class ClusteredSVC:
    """KMeans, then a LinearSVC on the rows of each cluster less its centre: the honest rival."""

    def __init__(self, num_clusters: int, C: float) -> None:
        self.kmeans, self.C = KMeans(num_clusters, n_init=3, random_state=0), C

    def fit(self, X: np.ndarray, y: np.ndarray) -> ClusteredSVC:
        labels = self.kmeans.fit_predict(X)
        self.classifiers = []
        for k, center in enumerate(self.kmeans.cluster_centers_):
            own, target = X[labels == k] - center, y[labels == k]
            one_class = len(np.unique(target)) < 2
            classifier = DummyClassifier() if one_class else LinearSVC(C=self.C, dual=False)
            self.classifiers.append(classifier.fit(own, target))
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        labels, result = self.kmeans.predict(X), np.empty(len(X), int)
        for k, classifier in enumerate(self.classifiers):
            if (labels == k).any():
                result[labels == k] = classifier.predict(X[labels == k] - self.kmeans.cluster_centers_[k])
        return result


def model(likelihood: Likelihood, loss: tuple[Loss, float]) -> InfiniteSVM:
    return InfiniteSVM(likelihood, loss[0], feature_map=Standardized(intercept=10.0), weight_scale=loss[1])


def choose(candidates: list[Any], fit: Callable[..., Any], X: np.ndarray, y: np.ndarray, folds: int) -> Any:
    """The candidate of best mean accuracy over the folds."""
    splits = list(KFold(folds, shuffle=True, random_state=0).split(X))
    scores = [
        np.mean([(fit(candidate, X[some], y[some]).predict(X[rest]) == y[rest]).mean() for some, rest in splits])
        for candidate in candidates
    ]
    return candidates[int(np.argmax(scores))]


def fit_m2dpm(candidate: tuple[tuple[Loss, float], float, int], X: np.ndarray, y: np.ndarray) -> Any:
    loss, scale, num_components = candidate
    return SmallVariance(num_components=num_components, scale=scale).fit(model(SphericalGaussian(), loss), X, y)


def fit_gibbs(loss: tuple[Loss, float], num_components: int, X: np.ndarray, y: np.ndarray) -> Any:
    """Gibbs from the clusters of DP-means, which take the place of a long warm-up."""
    start = SmallVariance(num_components=num_components).fit(DPM(SphericalGaussian()), X)
    backend = Gibbs(num_samples=50, num_warmup=50, split_merge=1, init=start.partition())
    return backend.fit(model(DiagonalGaussian(), loss), X, y)


def contestants(X: np.ndarray, y: np.ndarray, true_k: int, folds: int, loss: str) -> dict[str, Callable[..., Any]]:
    """Functions (X, y) -> fitted, at hyperparameters chosen on training rows X, y; SVI and Gibbs take M2DPM's loss.

    The penalty is a hyperparameter too: the heuristic turns the chosen number of components into its value here, once.
    """
    X_train, y_train, X, y = X, y, X[:TUNING_ROWS], y[:TUNING_ROWS]
    grid = list(itertools.product(LOSSES[loss], [1.0, 10.0], [5, 10, 15]))
    best = choose(grid, fit_m2dpm, X, y, folds)
    own = model(DiagonalGaussian(), best[0])
    penalty = float(fit_m2dpm(best, X_train, y_train).samples["penalty"])
    backend = SmallVariance(penalty=penalty, scale=best[1])
    C = choose([0.01, 0.1, 1.0], lambda C, X, y: ClusteredSVC(true_k, C).fit(X, y), X, y, folds)
    return {
        "M2DPM": lambda X, y: backend.fit(model(SphericalGaussian(), best[0]), X, y),
        "SVI": lambda X, y: SVI(num_steps=100).fit(own, X, y),
        "Gibbs": lambda X, y: fit_gibbs(best[0], best[2], X, y),
        "KMeans + LinearSVC": lambda X, y: ClusteredSVC(true_k, C).fit(X, y),
        "RBF-SVC": rbf(X, y),
        "Classifier()": lambda X, y: Classifier().fit(X, y),
        "SVI, defaults": lambda X, y: SVI().fit(InfiniteSVM(), X, y),
    }


def rbf(X: np.ndarray, y: np.ndarray) -> Callable[..., Any]:
    grid = {"svc__C": [0.3, 3, 30], "svc__gamma": [0.03, 0.3, 3.0]}
    search = GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=3).fit(X, y)
    return lambda X, y: search.best_estimator_.fit(X, y)


def one_set(
    make: Callable[..., Any], seed: int, folds: int, loss: str
) -> dict[str, tuple[float, float, float, float, int]]:
    """Of each contestant: accuracy, share of the Bayes accuracy, that in expectation, CPU seconds, components found."""
    data = make(seed=seed)
    order = np.random.default_rng(seed).permutation(len(data.y))
    test, train = np.split(order, [len(order) // 5])
    X, y = data.X.numpy(), data.y.numpy()
    bayes = (data.bayes_predictions.numpy()[test] == y[test]).mean()
    best = contestants(X[train], y[train], data.num_components, folds, loss)
    positive = data.probabilities.numpy()[test]
    result = {}
    for name, fit in best.items():
        started = time.process_time()
        fitted = fit(X[train], y[train])
        predicted = fitted.predict(X[test])
        seconds = time.process_time() - started
        accuracy = (predicted == y[test]).mean()
        expected = np.where(predicted == 1, positive, 1 - positive).mean() / np.maximum(positive, 1 - positive).mean()
        result[name] = accuracy, accuracy / bayes, expected, seconds, getattr(fitted, "num_components", 0)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("--loss", choices=LOSSES, default="hinge")
    parser.add_argument("--settings", nargs="+", default=["I", "II"])
    options = parser.parse_args()
    for name, make in {"I": make_setting_one, "II": make_setting_two}.items():
        if name not in options.settings:
            continue
        rows = [
            one_set(make, seed, options.folds, options.loss)
            for seed in tqdm(range(options.sets), desc=f"Setting {name}")
        ]
        print(f"Setting {name}, {options.sets} data sets: mean (standard error of the accuracy)")
        for contestant in rows[0]:
            values = np.array([row[contestant] for row in rows])
            error = values[:, 0].std(ddof=1) / len(values) ** 0.5
            components = f"{values[:, 4].min():.0f}..{values[:, 4].max():.0f}" if values[:, 4].any() else "-"
            print(
                f"  {contestant:20} accuracy {values[:, 0].mean():.4f} ({error:.4f})   "
                f"/ Bayes {values[:, 1].mean():.4f}, expected {values[:, 2].mean():.4f}   "
                f"CPU {np.median(values[:, 3]):8.3f} s   components {components}",
                flush=True,
            )
        seconds = {c: np.median([row[c][3] for row in rows]) for c in rows[0]}
        print(f"  CPU of M2DPM / RBF-SVC: {seconds['M2DPM'] / seconds['RBF-SVC']:.3f}", flush=True)


if __name__ == "__main__":
    main()
