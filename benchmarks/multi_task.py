"""Tasks that share a projection: multi-label Yeast and Scene, and the School data, as in Zhu, Chen & Xing (2014).

    REGBAYES_DATA=... OMP_NUM_THREADS=1 python benchmarks/multi_task.py [yeast scene school] [--sets 5]

The folder has Yeast and Scene of Mulan (mulan.sourceforge.net/datasets-mlc.html), and the School data of Argyriou,
Evgeniou & Pontil (2008). Yeast and Scene: training sets of the customary sizes drawn anew for each seed.
Hyperparameters, and thresholds of all labels, come from 3-fold cross-validation on the training rows, alike for all:
those of the largest sum of micro-F1 and macro-F1. Hamming accuracy, micro-F1 and macro-F1 on the test rows, and then
micro-F1 with thresholds for it alone; means and standard deviations over the seeds. School: within-school splits of
75/25, of whose training rows another such split chooses the settings; explained variance in percent, 1 - SSE / total
sum of squares of the test targets.

MT-iLSVM is mean field with expected margins, and projects inputs with both signs, as binary features alone can only
add: of School the columns of x, elsewhere the leading principal directions of an RBF kernel. The variant `with x`, or
`with kernel`, is that whose classifiers see more than the projection: x itself, or kernel directions. MT-IBP+SVM is the
same code with the margin off, so that the projection is of its inputs alone (x, or kernel directions, as validation
has it), and then a classifier, or a regression, of each task on Z^T x.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold
from sklearn.svm import LinearSVC, LinearSVR

from regbayes.datasets import load
from regbayes.inference import SVI
from regbayes.models import (
    EpsilonInsensitive,
    Hinge,
    LinearGaussian,
    Loss,
    MultiTaskInfiniteLatentSVM,
    StudentT,
    by_task,
)

Scores = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # (X, Y, X of other rows) -> their scores [n, M]
Function = Callable[[Any], Any]  # of rows [N, D], to [N, P]
PAPER = {"yeast": (0.5792, 0.4258, 0.4742), "scene": (0.8752, 0.5834, 0.6148)}


# -- inputs ------------------------------------------------------------------------------------------------------------


def bias(X: Any) -> Any:
    """A constant with a wider prior than the weights."""
    return X.new_full((len(X), 1), 3.0)


def signed(inputs: Function, *sizes: float) -> Function:
    """Inputs with both signs, in each of the sizes, so that binary features may weigh them."""
    factors = [sign * size for size in sizes for sign in (1, -1)]
    return lambda rows: torch.cat([factor * inputs(rows) for factor in factors], 1)


def standardized(X: np.ndarray) -> Function:
    mean, scale = torch.as_tensor(X.mean(0)), torch.as_tensor(X.std(0) + 1e-9)
    return lambda rows: (rows - mean) / scale


def kernel_directions(X: np.ndarray, num_directions: int) -> Function:
    """The leading principal directions of an RBF kernel on standardized columns."""
    standardize = standardized(X)
    known = standardize(torch.as_tensor(X))

    def kernel(rows: Any) -> Any:
        return torch.exp(-torch.cdist(standardize(rows), known).square() / X.shape[1])

    values, vectors = torch.linalg.eigh(kernel(torch.as_tensor(X)))
    axes = vectors[:, -num_directions:] / values[-num_directions:].clamp(min=1e-6).sqrt()
    return lambda rows: kernel(rows) @ axes


# -- labels ------------------------------------------------------------------------------------------------------------


def shared_svm(strength: float, seed: int, concatenated: bool = False) -> Scores:
    """MT-iLSVM of kernel directions."""

    def scores(X: np.ndarray, Y: np.ndarray, others: np.ndarray) -> np.ndarray:
        directions = kernel_directions(X, 200 if concatenated else 100)
        model = MultiTaskInfiniteLatentSVM(
            loss=Hinge(strength),
            truncation=20,
            preprocessing=signed(lambda rows: directions(rows)[:, -100:], 1.0),
            feature_map=(lambda rows: torch.cat([bias(rows), directions(rows)], 1)) if concatenated else bias,
        )
        return np.asarray(SVI(num_steps=5, tolerance=None, seed=seed).fit(model, X, Y).decision_function(others))

    return scores


def unshared_svm(constant: float) -> Scores:
    """LinearSVC, one label against the rest."""

    def scores(X: np.ndarray, Y: np.ndarray, others: np.ndarray) -> np.ndarray:
        mean, scale = X.mean(0), X.std(0) + 1e-9
        machine = LinearSVC(C=constant, random_state=0)
        rows, new = (X - mean) / scale, (others - mean) / scale
        return np.stack([machine.fit(rows, y).decision_function(new) for y in Y.T], 1)

    return scores


def decoupled_svm(constant: float, inputs: Callable[[np.ndarray], Function], seed: int) -> Scores:
    """MT-IBP+SVM."""
    classify = unshared_svm(constant)

    def scores(X: np.ndarray, Y: np.ndarray, others: np.ndarray) -> np.ndarray:
        model = MultiTaskInfiniteLatentSVM(
            LinearGaussian(), Hinge(1e-6), weight_scale=1e-3, truncation=40, preprocessing=inputs(X)
        )
        transform = SVI(num_steps=10, tolerance=None, seed=seed).fit(model, X, Y).transform
        return classify(transform(X), Y, transform(others))

    return scores


def contestants(seed: int) -> dict[str, list[tuple[Any, Scores]]]:
    """Of each its settings."""
    strengths, constants = (0.5, 1.0, 3.0), (0.0001, 0.0003, 0.001, 0.003, 0.01)
    inputs = {"x": standardized, "kernel": partial(kernel_directions, num_directions=100)}
    pairs = ((0.1, "x"), (0.1, "kernel"), (0.3, "kernel"), (1.0, "kernel"))
    return {
        "MT-iLSVM": [(c, shared_svm(c, seed)) for c in strengths],
        "MT-iLSVM with kernel": [(c, shared_svm(c, seed, concatenated=True)) for c in strengths[1:]],
        "MT-IBP+SVM": [((C, name), decoupled_svm(C, inputs[name], seed)) for C, name in pairs],
        "LinearSVC": [(C, unshared_svm(C)) for C in constants],
    }


def thresholds(Y: np.ndarray, scores: np.ndarray, share: float) -> np.ndarray:
    """Of labels [M], in turn, those of the largest micro-F1 + share macro-F1, from scores [N, M] of left-out rows."""
    levels, labels = np.quantile(scores, np.linspace(0.01, 0.99, 99), axis=0), np.arange(Y.shape[1])
    above = scores[:, None] > levels  # [N, 99, M]
    hits, called = (above & (Y[:, None] > 0)).sum(0), above.sum(0)
    own = 2 * hits / np.maximum(called + Y.sum(0), 1)
    best = own.argmax(0)
    for label in np.tile(labels, 5):
        others = labels != label
        hit, call = (n[best, labels][others].sum() + n[:, label] for n in (hits, called))
        best[label] = (2 * hit / (call + Y.sum()) + share * own[:, label] / len(labels)).argmax()
    return np.asarray(levels[best, labels])


def chosen(settings: list[tuple[Any, Scores]], X: np.ndarray, Y: np.ndarray) -> tuple[Any, Scores, np.ndarray]:
    """The setting with the best micro-F1 + macro-F1 on rows that were left out, and its scores of them [N, M]."""
    best: Any = (-1.0,)
    for setting, fit in settings:
        scores = np.zeros(Y.shape)
        for train, test in KFold(3, shuffle=True, random_state=0).split(X):
            scores[test] = fit(X[train], Y[train], X[test])
        value = sum(f1_scores(Y, scores > thresholds(Y, scores, 1.0)))
        best = max(best, (value, setting, fit, scores), key=lambda entry: entry[0])
    return best[1:]


def f1_scores(Y: np.ndarray, predicted: np.ndarray) -> list[float]:
    """Micro-F1 and macro-F1."""
    return [f1_score(Y, predicted, average=average, zero_division=0) for average in ("micro", "macro")]


def multi_label(name: str, num_sets: int) -> None:
    data = load(name)
    X, Y, num_train = np.concatenate([data.X, data.X_test]), np.concatenate([data.y, data.y_test]), len(data.X)
    X = X.astype(float)
    print(f"{name}: Hamming accuracy, micro-F1, macro-F1, best micro-F1; paper {PAPER[name]}", flush=True)
    results: dict[str, list[Any]] = {}
    for seed in range(num_sets):
        order = np.random.default_rng(seed).permutation(len(X))
        train, test = order[:num_train], order[num_train:]
        for method, settings in contestants(seed).items():
            started = time.process_time()
            setting, fit, left_out = chosen(settings, X[train], Y[train])
            scores = fit(X[train], Y[train], X[test])
            predicted, alone = (scores > thresholds(Y[train], left_out, share) for share in (1.0, 0.0))
            found = [(predicted == Y[test]).mean(), *f1_scores(Y[test], predicted), f1_scores(Y[test], alone)[0]]
            results.setdefault(method, []).append(found)
            values, seconds = " ".join(f"{value:.4f}" for value in found), time.process_time() - started
            print(f"  set {seed} {method:20} {values}  {setting} {seconds:.0f} s", flush=True)
    for method, rows in results.items():
        mean, deviation = np.mean(rows, 0), np.std(rows, 0)
        values = "  ".join(f"{m:.4f} +- {s:.4f}" for m, s in zip(mean, deviation, strict=True))
        print(f"  {method:20} {values}", flush=True)


# -- School ------------------------------------------------------------------------------------------------------------


class Pupils(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    schools: np.ndarray

    def take(self, rows: np.ndarray) -> Pupils:
        return Pupils(self.X[rows], self.y[rows], self.schools[rows])

    def split(self, seed: int) -> tuple[Pupils, Pupils]:
        """Three quarters of the pupils of each school, and the others."""
        rng, test = np.random.default_rng(seed), np.zeros(len(self.y), bool)
        for own in (np.flatnonzero(self.schools == school) for school in range(NUM_SCHOOLS)):
            test[rng.permutation(own)[: round(len(own) / 4)]] = True
        return self.take(~test), self.take(test)

    def explained(self, predicted: np.ndarray) -> float:
        """Variance of the targets that predictions [N] explain, in percent."""
        return float(100 * (1 - np.square(self.y - predicted).sum() / np.square(self.y - self.y.mean()).sum()))


Regression = Callable[[Pupils, Pupils], np.ndarray]  # (training pupils, others) -> their predicted targets
NUM_SCHOOLS = 139


def school(num_sets: int) -> None:
    data = load("school")
    pupils = Pupils(data.X.astype(float), data.y.astype(float), np.asarray(data.groups))
    print("school: explained variance in percent", flush=True)
    results: dict[str, list[float]] = {}
    for seed in range(num_sets):
        train, test = pupils.split(seed)
        own, left_out = train.split(100 + seed)
        for method, settings in REGRESSIONS.items():
            started = time.process_time()
            values = {name: left_out.explained(fit(own, left_out)) for name, fit in settings.items()}
            name = max(values, key=lambda name: values[name])
            results.setdefault(method, []).append(test.explained(settings[name](train, test)))
            seconds = time.process_time() - started
            print(f"  set {seed} {method:20} {results[method][-1]:.2f}  {name} {seconds:.0f} s", flush=True)
    for method, found in results.items():
        print(f"  {method:20} {np.mean(found):.2f} +- {np.std(found):.2f}", flush=True)


def pooled_ridge(train: Pupils, others: Pupils, penalty: float) -> np.ndarray:
    mean, scale = train.X.mean(0), train.X.std(0)
    machine = Ridge(penalty).fit((train.X - mean) / scale, train.y)
    return np.asarray(machine.predict((others.X - mean) / scale))


def ridge_by_school(train: Pupils, others: Pupils, penalty: float) -> np.ndarray:
    mean, scale, found = train.X.mean(0), train.X.std(0), np.zeros(len(others.y))
    for school in range(NUM_SCHOOLS):
        own, new = train.schools == school, others.schools == school
        machine = Ridge(penalty).fit((train.X[own] - mean) / scale, train.y[own])
        found[new] = machine.predict((others.X[new] - mean) / scale)
    return found


def shared_regression(train: Pupils, others: Pupils, loss: Loss, weight_scale: float, width: float = 0) -> np.ndarray:
    """MT-iLSVM on standardized targets; width > 0: its regressions see x as well, with a prior of that width."""
    standardize = standardized(train.X)
    model = MultiTaskInfiniteLatentSVM(
        loss=loss,
        weight_scale=weight_scale,
        truncation=8,
        preprocessing=signed(standardize, 1.0, 0.3),
        feature_map=(lambda rows: torch.cat([bias(rows), width * standardize(rows)], 1)) if width else bias,
    )
    mean, scale = train.y.mean(), train.y.std()
    targets = by_task((train.y - mean) / scale, train.schools)
    predicted = SVI(num_steps=10, tolerance=None).fit(model, train.X, targets).predict(others.X)
    return np.asarray(mean + scale * predicted[np.arange(len(others.y)), others.schools])


def decoupled_regression(train: Pupils, others: Pupils, constant: float) -> np.ndarray:
    """MT-IBP+SVM."""
    loss = EpsilonInsensitive(1e-6, 0.3)
    model = MultiTaskInfiniteLatentSVM(LinearGaussian(), loss, weight_scale=1e-3, truncation=20)
    centre, spread = train.y.mean(), train.y.std()
    targets = (train.y - centre) / spread
    posterior = SVI(num_steps=10, tolerance=None).fit(model, train.X, by_task(targets, train.schools))
    rows, new, found = posterior.transform(train.X), posterior.transform(others.X), np.zeros(len(others.y))
    mean, scale = rows.mean(0), rows.std(0) + 1e-9
    machine = LinearSVR(C=constant, epsilon=0.3, max_iter=2000, random_state=0)
    for school in range(NUM_SCHOOLS):
        own, theirs = train.schools == school, others.schools == school
        machine.fit((rows[own] - mean) / scale, targets[own])
        found[theirs] = centre + spread * machine.predict((new[theirs] - mean) / scale)
    return found


def by_setting(fit: Any, **grids: Any) -> dict[str, Regression]:
    """Of each setting of a grid its regression."""
    settings = [dict(zip(grids, values, strict=True)) for values in itertools.product(*grids.values())]
    return {" ".join(f"{value}" for value in setting.values()): partial(fit, **setting) for setting in settings}


SCALES = (0.05, 0.07, 0.1)
TUBE, T = (EpsilonInsensitive(1.0, 0.8),), (StudentT(20.0, 0.8),)
REGRESSIONS: dict[str, dict[str, Regression]] = {
    "MT-iLSVM": by_setting(shared_regression, loss=TUBE, weight_scale=SCALES),
    "MT-iLSVM with x": by_setting(shared_regression, loss=TUBE, weight_scale=SCALES, width=(0.3,)),
    "MT-iLSVM, Student t": by_setting(shared_regression, loss=T, weight_scale=SCALES),
    "MT-IBP+SVM": by_setting(decoupled_regression, constant=(0.03, 0.1, 0.3)),
    "pooled ridge": by_setting(pooled_ridge, penalty=(10.0, 100.0, 1000.0)),
    "ridge by school": by_setting(ridge_by_school, penalty=(10.0, 20.0, 30.0, 60.0)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=["yeast", "scene", "school"])
    parser.add_argument("--sets", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of LinearSVC that its optimum is near, not reached
    for name in options.names:
        if name == "school":
            school(2 * options.sets)
        else:
            multi_label(name, options.sets)


if __name__ == "__main__":
    main()
