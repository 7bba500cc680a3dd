"""Label sets of five public sets: BNMC beside one-vs-rest machines, classifier chains and nearest neighbours.

    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/label_sets.py [emotions yeast ...] [--hidden 3]

The folder has Mulan's files (mulan.sourceforge.net/datasets-mlc.html) with their customary split. Each method has a
grid of twelve settings. Of each, scores of left-out training rows (3 folds; of sets with more than 1,000 rows one of
them) give the threshold of the highest micro-F1, one for all labels; the setting with the highest is fitted to all
training rows. Then the same with half of the entries of the training labels hidden at random, `--hidden` times, by
seeds 10, 11, ...: means over those, all test labels known. A label's rival machine then learns from the rows that
know it, each label's neighbours are the nearest ones that know it, and the chain, which needs complete labels, takes
hidden ones for 0.

Linear machines see standardized columns or an RBF kernel (scikit-learn's Nystroem, 200 landmarks), ours the kernel;
sparse words as they are, ours turned to principal axes (corel5k: the 80 leading ones). Ours is the joint "product" by
SVI (medical: SmallVariance): the mixture has labels and the leading principal directions of x, or counts of words, and
its say beside the classifiers (`weighing`) is part of the grid. Micro-F1, macro-F1, Hamming loss, precision at 1, 3, 5,
and CPU seconds, all in all.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from regbayes.cli.compare_labels import LabelFolds, best_threshold, label_quality
from regbayes.datasets import load
from regbayes.inference import SVI, SmallVariance
from regbayes.models import (
    BNMC,
    BernoulliBeta,
    DiagonalGaussian,
    MultinomialDirichlet,
    PrincipalDirections,
    Product,
    SquaredHinge,
)

Scores = Callable[[Any], np.ndarray]  # of rows [n, D], to [n, C]
Fit = Callable[[Any, np.ndarray], list[Scores]]  # of rows and labels, NaN where hidden: the settings that share a fit
NAMES = ["emotions", "yeast", "scene", "medical", "corel5k"]
NUM_LANDMARKS = 200
CERTAIN = -10.0  # the score of a label that no row has


class Problem(NamedTuple):
    X: Any
    Y: np.ndarray
    X_test: Any
    Y_test: np.ndarray


def read(name: str) -> Problem:
    data = load(name)
    X, X_test = data.X, data.X_test
    if not scipy.sparse.issparse(X):
        scaler = StandardScaler().fit(X)
        X, X_test = scaler.transform(X), scaler.transform(X_test)
    return Problem(X, data.y.astype(float), X_test, data.y_test)


def hide(Y: np.ndarray, seed: int) -> np.ndarray:
    return np.where(np.random.default_rng(seed).random(Y.shape) < 0.5, np.nan, Y)


# -- rivals ------------------------------------------------------------------------------------------------------------


def landmarks(X: np.ndarray) -> Nystroem:
    return Nystroem(gamma=1 / X.shape[1], n_components=NUM_LANDMARKS, random_state=0).fit(X)


def one_vs_rest(machine: Any, X: Any, Y: np.ndarray) -> Scores:
    """A machine for each label, of the rows that know it."""
    known = [~np.isnan(y) for y in Y.T]
    learns = [0 < y[own].mean() < 1 for y, own in zip(Y.T, known, strict=True)]
    machines = [machine() if some else None for some in learns]
    for each, y, own in zip(machines, Y.T, known, strict=True):
        if each is not None:
            each.fit(X[own], y[own])
    return lambda rows: np.stack(
        [np.full(rows.shape[0], CERTAIN) if each is None else each.decision_function(rows) for each in machines], 1
    )


def chain(machine: Any, X: Any, Y: np.ndarray) -> Scores:
    """A chain of the labels that both kinds of rows have; hidden labels are taken for 0."""
    filled = np.nan_to_num(Y)
    some = filled.any(0) & ~filled.all(0)
    fitted = ClassifierChain(machine(), order="random", random_state=0).fit(X, filled[:, some])

    def scores(rows: Any) -> np.ndarray:
        found = np.full((rows.shape[0], Y.shape[1]), CERTAIN)
        found[:, some] = fitted.decision_function(rows)
        return found

    return scores


def linear(fit: Any, machine: Any, strengths: dict[str, list[float]]) -> Callable[[bool], list[Fit]]:
    """A linear machine with strengths for columns ("x") and for kernel features, or for sparse "words"."""

    def of(kind: str, C: float) -> Fit:
        def plain(X: Any, Y: np.ndarray) -> list[Scores]:
            return [fit(partial(machine, C=C), X, Y)]

        def mapped(X: Any, Y: np.ndarray) -> list[Scores]:
            kernel = landmarks(X)
            scores = fit(partial(machine, C=C), kernel.transform(X), Y)
            return [lambda rows: scores(kernel.transform(rows))]

        return mapped if kind == "kernel" else plain

    def fits(sparse: bool) -> list[Fit]:
        return [of(kind, C) for kind in (["words"] if sparse else ["x", "kernel"]) for C in strengths[kind]]

    return fits


def neighbours(metric: str) -> Fit:
    """Shares of the k nearest rows that know a label."""

    def fit(X: Any, Y: np.ndarray) -> list[Scores]:
        known, filled, rate = ~np.isnan(Y), np.nan_to_num(Y), np.nanmean(Y, 0)
        near = NearestNeighbors(n_neighbors=min(X.shape[0], 100), metric=metric).fit(X)

        def scores(rows: Any, k: int) -> np.ndarray:
            found = []
            for index in near.kneighbors(rows, return_distance=False):
                own = known[index]
                first = own & (own.cumsum(0) <= k)
                found.append((filled[index] * first).sum(0) / np.maximum(first.sum(0), 1))
            return np.stack(found) + 1e-6 * rate  # between equals the more frequent one

        return [partial(scores, k=k) for k in (5, 10, 15, 20, 30, 50)]

    return fit


# -- ours --------------------------------------------------------------------------------------------------------------


def bnmc(sparse: bool, many: bool) -> list[Fit]:
    """Fits of the product, each with several says of its mixture."""
    if many:
        return [of_many_labels]
    if sparse:
        return [of_words(scale, (0.0, 0.1, 0.2)) for scale in (0.4, 0.5, 0.7, 1.0)]
    return [of_columns(number, scale, (0.5, 1.0)) for number in (5, 12, 40) for scale in (0.5, 1.2)]


def weighed(posterior: Any, prepare: Callable[[Any], Any], shares: Sequence[float]) -> list[Scores]:
    each = [posterior.weighing(share) for share in shares]
    return [lambda rows, own=own: np.asarray(own.decision_function(prepare(rows))) for own in each]


def of_columns(number: int, weight_scale: float, shares: Sequence[float]) -> Fit:
    """The mixture sees principal directions of x, the classifiers kernel features, which stand beside them."""

    def fit(X: np.ndarray, Y: np.ndarray) -> list[Scores]:
        kernel, directions = landmarks(X), PCA(number, random_state=0).fit(X)

        def prepare(rows: np.ndarray) -> np.ndarray:
            return np.hstack([directions.transform(rows), kernel.transform(rows)])

        features = prepare(X)
        model = BNMC(
            Product([(DiagonalGaussian(), number), (unseen(features[:, number:]), NUM_LANDMARKS)]),
            loss=SquaredHinge(),
            feature_map=lambda rows: rows[:, number:],
            weight_scale=weight_scale,
        )
        return weighed(SVI(num_steps=20, progress=False).fit(model, features, Y), prepare, shares)

    return fit


def unseen(columns: np.ndarray) -> DiagonalGaussian:
    """A family of columns that tell no components apart: its prior is as sure of them as a million rows."""
    sure = 1e6
    return DiagonalGaussian(columns.mean(0), mean_precision=sure, shape=sure, rate=sure * columns.var(0))


def of_words(weight_scale: float, shares: Sequence[float]) -> Fit:
    """The mixture sees counts of words, the classifiers all of the words, turned to fewer columns: as many as rows."""

    def fit(X: Any, Y: np.ndarray) -> list[Scores]:
        axes = np.linalg.svd(X.toarray(), full_matrices=False)[2].T
        words = PrincipalDirections(loc=np.zeros(X.shape[1]), axes=axes)
        model = BNMC(MultinomialDirichlet(), loss=SquaredHinge(), feature_map=words, weight_scale=weight_scale)
        return weighed(SmallVariance(progress=False).fit(model, X, Y), lambda rows: rows, shares)

    return fit


def of_many_labels(X: Any, Y: np.ndarray) -> list[Scores]:
    """The mixture sees counts of words and labels that most components lack, the classifiers 80 directions."""
    model = BNMC(
        MultinomialDirichlet(0.05),
        BernoulliBeta(0.02, 0.5),
        feature_map=PrincipalDirections(80),
        weight_scale=1.5,
        truncation=60,
    )
    posterior = SVI(num_steps=10, progress=False).fit(model, X, Y)
    return weighed(posterior, lambda rows: rows, (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8))


# -- the table ---------------------------------------------------------------------------------------------------------


SVC = {"x": [0.001, 0.01], "kernel": [0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0]}
SVC |= {"words": [0.001, 0.003, 0.01, *SVC["kernel"][:9]]}
LOGISTIC = {"x": [0.003, 0.03], "kernel": [0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 100.0]}
LOGISTIC |= {"words": [0.03, 0.1, *LOGISTIC["kernel"]]}


def contestants(sparse: bool, many: bool) -> dict[str, list[Fit]]:
    """Fits of each, twelve settings in all, for sparse rows or dense ones, and for many labels."""
    logistic = partial(LogisticRegression, solver="liblinear", random_state=0)
    return {
        "BNMC": bnmc(sparse, many),
        "LinearSVC": linear(one_vs_rest, partial(LinearSVC, random_state=0), SVC)(sparse),
        "LogisticRegression": linear(one_vs_rest, logistic, LOGISTIC)(sparse),
        "chain": linear(chain, logistic, LOGISTIC)(sparse),
        "k-nearest": [neighbours("euclidean"), neighbours("cosine")],
    }


def tuned(fits: list[Fit], X: Any, Y: np.ndarray) -> tuple[Fit, int, float]:
    """The setting with the highest micro-F1 of left-out labels that are known, its fit and its threshold."""
    splits = list(LabelFolds(3).split(np.zeros((len(Y), 1)), np.nan_to_num(Y)))[: 3 if len(Y) <= 1000 else 1]
    truth, best = Y[np.concatenate([test for _, test in splits])], (-1.0, fits[0], 0, 0.0)
    for fit in fits:
        found = [[scores(X[test]) for scores in fit(X[train], Y[train])] for train, test in splits]
        for setting, parts in enumerate(zip(*found, strict=True)):
            threshold, value = best_threshold(truth, np.concatenate(parts))
            best = max(best, (value, fit, setting, threshold), key=lambda entry: entry[0])
    return best[1:]


def measured(fits: list[Fit], problem: Problem, Y: np.ndarray) -> dict[str, Any]:
    started = time.process_time()
    fit, setting, threshold = tuned(fits, problem.X, Y)
    scores = fit(problem.X, Y)[setting](problem.X_test)
    quality = label_quality(problem.Y_test, (scores > threshold).astype(int), scores)
    return quality | {"seconds": time.process_time() - started, "setting": f"{fits.index(fit)}.{setting}"}


def compare(name: str, num_hidden: int) -> None:
    problem = read(name)
    methods = contestants(scipy.sparse.issparse(problem.X), problem.Y.shape[1] > 100)
    hidden = [hide(problem.Y, 10 + seed) for seed in range(num_hidden)]
    for kind, labels in (("all labels", [problem.Y]), ("half hidden", hidden)):
        for method, fits in methods.items() if labels else ():
            runs = [measured(fits, problem, Y) for Y in labels]
            mean = {key: np.mean([run[key] for run in runs]) for key in MEASURES}
            settings = ", ".join(run["setting"] for run in runs)
            values = " | ".join(f"{mean[key]:.{digits}f}" for key, digits in MEASURES.items())
            print(f"| {name}, {kind} | {method} | {values} | {settings} |", flush=True)


QUALITY = ("micro_f1", "macro_f1", "hamming_loss", "precision_at_1", "precision_at_3", "precision_at_5")
MEASURES = dict.fromkeys(QUALITY, 3) | {"seconds": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--hidden", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| data | method | micro-F1 | macro-F1 | Hamming | P@1 | P@3 | P@5 | CPU s | settings |", flush=True)
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.names:
        compare(name, options.hidden)


if __name__ == "__main__":
    main()
