"""The infinite latent SVM beside the same features found without labels and classified afterwards.

    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/latent_features.py [scene15 mnist protein_fold]
        [--seeds 10 11 12] [--truncations 20 60] [--steps 15]

scene15: random halves of all three views. mnist: random halves of the 5,000 images. protein_fold: the customary split,
all 125 columns, seeds of the start. Features see whitened principal directions of the training rows; LinearSVC alone
sees the standardized columns (of mnist the pixels). IBP+SVM: the features of a loss too weak to be heard, which start
at random as those of the others, and a LinearSVC on their probabilities. "refitted": after `refit` with the same
constants.

Settings are those with the best accuracy on a third of the training rows, or over all thirds of fewer than 1,000:
directions, noise variance, constant of the SVM, and of the infinite latent SVM its strength. Means and standard
deviations over splits of accuracy, macro-F1, features that some training row has, and features of a row.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold, train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from regbayes.datasets import load
from regbayes.inference import SVI
from regbayes.models import Hinge, InfiniteLatentSVM, LinearGaussian

CONSTANTS = (0.1, 1.0, 10.0)  # of LinearSVC
LIKELIHOODS = tuple(itertools.product((15, 25, 50), (0.5, 0.8)))  # principal directions, noise variance
STRENGTHS = ((1.0, 1.0), (10.0, 1.0), (1.0, 10.0))  # c, and the constant 2 c nu^2 of the SVM
UNLABELED = (1e-9, 2e-9)

Fit: TypeAlias = tuple[tuple[int, float], tuple[float, float]]  # one of LIKELIHOODS, one of STRENGTHS or UNLABELED


class Rows(NamedTuple):
    """Rows to fit, and others to predict."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


class Found(NamedTuple):
    """What a method with a setting says of the other rows."""

    predicted: np.ndarray
    used: float = np.nan  # features that some training row has
    per_row: float = np.nan  # expected number of features of a row


Setting: TypeAlias = tuple[Fit | None, float]  # the fit of features and the constant of the SVM
Findings: TypeAlias = dict[str, dict[Setting, Found]]  # of each method


def splits(name: str, seeds: list[int]) -> Iterator[Rows]:
    """Training and test rows; columns on one scale."""
    data = load(name, features="all") if name == "protein_fold" else load(name)
    for seed in seeds:
        X, y, X_test, y_test = data.X, data.y, data.X_test, data.y_test
        if X_test is None:
            X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
        scaler = StandardScaler().fit(X)
        if name == "mnist":
            scaler.mean_[:], scaler.scale_[:] = 0.0, 255.0
        yield Rows(scaler.transform(X), np.asarray(y), scaler.transform(X_test), np.asarray(y_test))


def validation(rows: Rows, seed: int) -> list[Rows]:
    """A third of the training rows in place of the test rows; of fewer than 1,000 each third."""
    order = np.random.default_rng(seed).permutation(len(rows.X))
    X, y = rows.X[order], rows.y[order]
    folds = [Rows(X[train], y[train], X[test], y[test]) for train, test in KFold(3).split(X)]
    return folds if len(X) < 1000 else folds[:1]


class Contest:
    """All methods on the rows of one split."""

    def __init__(self, rows: Rows, truncation: int, num_steps: int, seed: int) -> None:
        self.rows, self.truncation = rows, truncation
        self.svi = SVI(rule="averaging", num_steps=num_steps, seed=seed, progress=False)
        self.found: Findings = {}
        classify(self.found, "LinearSVC", None, rows)

    def fit(self, fit: Fit) -> None:
        """Features, and what classifiers make of them."""
        (num_directions, noise), (strength, constant) = fit
        pca = PCA(min(num_directions, *self.rows.X.shape), whiten=True, random_state=0).fit(self.rows.X)
        rows = self.rows._replace(X=pca.transform(self.rows.X), X_test=pca.transform(self.rows.X_test))
        law = LinearGaussian(noise_variance=noise, loading_variance=1.0, learn=False)
        nu = (constant / (2 * strength)) ** 0.5
        svm = InfiniteLatentSVM(law, Hinge(strength), feature_map=None, weight_scale=nu, truncation=self.truncation)
        posterior = self.svi.fit(svm, rows.X, rows.y)
        Z = posterior.transform(rows.X)
        counts = float(posterior.num_latent_features), float(Z.sum(1).mean())
        if fit[1] != UNLABELED:
            predicted = np.asarray(posterior.predict(rows.X_test))
            self.found.setdefault("iLSVM", {})[fit, constant] = Found(predicted, *counts)
            for C in CONSTANTS:
                again = posterior.refit(rows.X, rows.y, loss=Hinge(C / 2), weight_scale=1.0)
                predicted = np.asarray(again.predict(rows.X_test))
                self.found.setdefault("iLSVM refitted", {})[fit, C] = Found(predicted, *counts)
        else:
            classify(self.found, "IBP+SVM", fit, rows._replace(X=Z, X_test=posterior.transform(rows.X_test)), counts)

    def accuracy(self, method: str, setting: Setting) -> float:
        return float((self.found[method][setting].predicted == self.rows.y_test).mean())


def classify(
    found: Findings, method: str, fit: Fit | None, rows: Rows, counts: tuple[float, float] = (np.nan, np.nan)
) -> None:
    """LinearSVC with each constant."""
    for C in CONSTANTS:
        machine = LinearSVC(C=C, loss="hinge", max_iter=1000, random_state=0).fit(rows.X, rows.y)
        found.setdefault(method, {})[fit, C] = Found(machine.predict(rows.X_test), *counts)


def choose(contests: list[Contest]) -> dict[str, Setting]:
    """The best setting of each method; strengths other than the first at the likelihood that is best with it."""

    def best(method: str) -> Setting:
        return max(contests[0].found[method], key=lambda s: sum(each.accuracy(method, s) for each in contests))

    for contest in contests:
        for likelihood in LIKELIHOODS:
            contest.fit((likelihood, UNLABELED))
            contest.fit((likelihood, STRENGTHS[0]))
    fit, _ = best("iLSVM")
    assert fit is not None
    for contest in contests:
        for strength in STRENGTHS[1:]:
            contest.fit((fit[0], strength))
    return {method: best(method) for method in contests[0].found}


def table(name: str, seeds: list[int], truncation: int, num_steps: int) -> None:
    print(f"{name}, truncation {truncation}: accuracy, macro-F1, features used, features of a row", flush=True)
    results: dict[str, list[list[float]]] = {}
    for seed, rows in zip(seeds, splits(name, seeds), strict=True):
        started = time.process_time()
        chosen = choose([Contest(each, truncation, num_steps, seed) for each in validation(rows, seed)])
        final = Contest(rows, truncation, num_steps, seed)
        for fit in {fit for fit, _ in chosen.values() if fit is not None}:
            final.fit(fit)
        for method, setting in chosen.items():
            found = final.found[method][setting]
            f1 = f1_score(rows.y_test, found.predicted, average="macro")
            results.setdefault(method, []).append([final.accuracy(method, setting), f1, found.used, found.per_row])
            print(f"  split {seed} {method:22} {results[method][-1][0]:.3f} {f1:.3f}  {setting}", flush=True)
        print(f"  split {seed} took {time.process_time() - started:.0f} CPU seconds", flush=True)
    report(results)


def report(results: dict[str, list[list[float]]]) -> None:
    """Means and standard deviations."""
    for method, values in sorted(results.items()):
        mean, spread = np.mean(values, 0), np.std(values, 0)
        quality = "  ".join(f"{m:.3f} +- {s:.3f}" for m, s in zip(mean[:2], spread[:2], strict=True))
        print(f"  {method:22} {quality}  {mean[2]:5.1f} {mean[3]:5.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=["scene15", "mnist", "protein_fold"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--truncations", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of LinearSVC that its optimum is near, not reached
    torch.set_num_threads(1)
    for name, truncation in itertools.product(options.names, options.truncations):
        table(name, options.seeds, truncation, options.steps)


if __name__ == "__main__":
    main()
