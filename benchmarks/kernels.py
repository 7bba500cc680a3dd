"""Kernel machines beside a tuned RBF-SVC: accuracy in percent and CPU seconds of one thread, on sets as they come.

python benchmarks/kernels.py machines [SET ...]     `ClassifierCV` of an RBF kernel, its own search (REGBAYES_DATA)
python benchmarks/kernels.py few [SET ...]          both maps at 100 and 300 features, two seeds each
python benchmarks/kernels.py error                  of the kernel: independent, orthogonal, quasi-random frequencies

Three folds of at most 900 rows of a set. Columns are standardized, and of more than 100 columns 30 principal components
are taken; "pixels" are as they are, and "components" are 40 of them. The rival chooses among 28 pairs of C and gamma by
five folds, ours among 33 pairs of a length and a weight scale by three.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from defaults_classifiers import rows_of
from sklearn.datasets import make_circles, make_classification, make_moons
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from timing import choose
from torch import Tensor

from regbayes.datasets import make_setting_two
from regbayes.estimators import ClassifierCV
from regbayes.models import FeatureMap, InfiniteSVM, Nystroem, RandomFourier, SquaredHinge

ROWS = 900
TWELVE: Any = {"n_redundant": 4, "n_classes": 12, "n_clusters_per_class": 1, "class_sep": 1.3}
MADE: dict[str, Callable[[], Any]] = {
    "moons": lambda: make_moons(600, noise=0.3, random_state=0),
    "circles": lambda: make_circles(600, noise=0.15, factor=0.5, random_state=0),
    "cubes": lambda: (lambda data: (data.X.numpy(), data.y.numpy()))(make_setting_two(ROWS, seed=5)),
    "made, 5 classes": lambda: make_classification(ROWS, 12, n_informative=6, n_classes=5, random_state=1),
    "made, 12 classes": lambda: make_classification(ROWS, 20, n_informative=10, random_state=0, **TWELVE),
}
SETS = (
    *("iris", "wine", "breast_cancer", "parkinsons", "wireless", "skin", "bee_dance", "digits", "mnist", "letter"),
    *("scene15", "protein_fold", "ble_rssi", "digits, pixels", "mnist, components", *MADE),
)
HARD = ("digits", "mnist", "mnist, components", "letter", "scene15", "bee_dance", "skin", "cubes", "made, 12 classes")


def rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, D] of a set and their classes."""
    name, _, kind = name.partition(", ") if name not in MADE else (name, "", "")
    X, y = MADE[name]() if name in MADE else rows_of(name, ROWS)
    if kind == "pixels":
        return X, y
    if kind == "components":
        return PCA(40, random_state=0).fit_transform(X), y
    X = StandardScaler().fit_transform(X)
    return (PCA(30, random_state=0).fit_transform(X) if X.shape[1] > 100 else X), y


class TunedSVC:
    """An RBF-SVC whose gammas are about scikit-learn's "scale"."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> GridSearchCV:
        gammas = np.array([0.1, 0.3, 1.0, 3.0]) / (X.shape[1] * X.var())
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        return GridSearchCV(SVC(), {"C": np.logspace(-1, 3, 7), "gamma": gammas}, cv=folds).fit(X, y)


def searched(feature_map: FeatureMap) -> ClassifierCV:
    return ClassifierCV(InfiniteSVM(loss=SquaredHinge(), feature_map=feature_map))


def measured(name: str, contestants: list[Any]) -> np.ndarray:
    """Mean accuracy and CPU seconds [contestants, 2]."""
    (X, y), found = rows(name), []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(X, y):
        for contestant in contestants:
            started = time.process_time()
            fitted = contestant.fit(X[train], y[train])
            found.append((100 * fitted.score(X[test], y[test]), time.process_time() - started))
    return np.reshape(found, (3, -1, 2)).mean(0)


def machines(*names: str) -> None:
    maps = {"Nystroem(300)": Nystroem(300), "Nystroem(600)": Nystroem(600), "RandomFourier(1500)": RandomFourier(1500)}
    searched(Nystroem(20)).fit(*rows("iris"))  # compiles
    print(f"{'points above RBF-SVC, times its CPU':40}" + "".join(f"{name:>22}" for name in maps))
    table = []
    for name in names or SETS:
        rival, *ours = measured(name, [TunedSVC(), *(searched(each) for each in maps.values())])
        table.append([(accuracy - rival[0], seconds / rival[1]) for accuracy, seconds in ours])
        show(f"{name:20}{rival[0]:8.2f}{rival[1]:8.2f} s", table[-1])
    show("mean", np.mean(table, 0))
    for part, what in enumerate(("least points above (must: mean over -1)", "most CPU (must: 5x)")):
        worst = [np.min, np.max][part](table, 0)[:, part]
        print(f"{what:42}" + "".join(f"{each:22.2f}" for each in worst))


def show(name: str, cells: Any) -> None:
    print(f"{name:40}" + "".join(f"{gain:+14.2f}{ratio:7.1f}x" for gain, ratio in cells), flush=True)


def few(*names: str) -> None:
    gains, kinds = [], (RandomFourier, Nystroem)
    for name in names or HARD:
        each = [searched(kind(number, seed=seed)) for number in (100, 300) for kind in kinds for seed in (0, 1)]
        found = measured(name, each)[:, 0].reshape(2, 2, 2).mean(2)
        gains.append(found[:, 1] - found[:, 0])
        print(f"{name:20}", *(f"{a:8.2f} Fourier {b:6.2f} Nystroem" for a, b in found), flush=True)
    print("Nystroem above Fourier at 100 and 300 features:", np.mean(gains, 0).round(2))


def error() -> None:
    """Root mean squared errors over pairs of 60 normal rows and 20 seeds."""
    for num_columns in (2, 4, 10, 30, 100):
        X = torch.randn(60, num_columns, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
        apart, length = ~torch.eye(60, dtype=torch.bool), math.sqrt(num_columns / 2)
        kernel = (-torch.cdist(X, X).square() / (2 * length**2)).exp()
        for number in (100, 1500):
            cells = []
            for kind in (independent, orthogonal, quasi_random):
                drawn = [kind(num_columns, number // 2, seed) / length for seed in range(20)]
                whole = RandomFourier(number, loc=0.0, scale=1.0, intercept=0.0)
                maps = [whole.replace(frequencies=frequencies).resolve(X) for frequencies in drawn]
                wrong = torch.stack([((m(X) @ m(X).T) - kernel)[apart] for m in maps])
                cells.append(f"{kind.__name__} {float(wrong.square().mean().sqrt()):.4f}")
            print(f"{num_columns} columns, {number} features:", ", ".join(cells), flush=True)


def independent(num_columns: int, number: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_columns, number, generator=generator, dtype=torch.float64)


def orthogonal(num_columns: int, number: int, seed: int) -> Tensor:
    rows = torch.zeros(2, num_columns, dtype=torch.float64)
    found = RandomFourier(2 * number, 1.0, seed, loc=0.0, scale=1.0).resolve(rows).frequencies
    return torch.as_tensor(found)


def quasi_random(num_columns: int, number: int, seed: int) -> Tensor:
    engine = torch.quasirandom.SobolEngine(num_columns, scramble=True, seed=seed)
    uniform = engine.draw(number, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    return math.sqrt(2) * torch.erfinv(2 * uniform - 1).T


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    choose(__doc__, machines=machines, few=few, error=error)
