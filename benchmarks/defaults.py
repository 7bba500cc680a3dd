"""Which prior of `FullGaussian` finds clusters that can be believed: ten labelled sets, five seeds each, one thread.

python benchmarks/defaults.py [SEEDS] [ROWS] [SET]       clusters: of all sets, or of one
python benchmarks/defaults.py sequences [SEEDS]          states of an infinite HMM on the sequences of `clustering.py`

Each run takes ROWS (200) rows of a set at most, standardised, and 16 principal components at most. Chains are collapsed
Gibbs, 40 sweeps of warm-up and 20 draws; the partition is the representative one. Clusters of three rows or fewer are
tiny; held out is the mean log predictive density of up to 200 other rows, where a set has at least 20. Sequences are
taken whole, by direct assignment.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from clustering import sequences
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from regbayes.datasets import load, make_dp_mixture
from regbayes.inference import Gibbs
from regbayes.models import DPM, IHMM, FullGaussian

SETS = ("iris", "wine", "breast_cancer", "parkinsons", "wireless", "digits", "letter", "mnist", "mixture", "grid")
# degrees of freedom beyond D: at least, and a column; the expected variance within, in shares of that of the data
PRIORS = {
    "D + 2, 0.5": (2, 0.0, 0.5),
    "D + 2, 0.25": (2, 0.0, 0.25),
    "D + max(2, D / 2), 0.5 (default)": (2, 0.5, 0.5),
    "D + 8, 0.5": (8, 0.0, 0.5),
    "D + 15, 0.5": (15, 0.0, 0.5),
}


def labelled(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A set and its classes; "grid": nine clusters of twenty rows in the plane."""
    if name == "mixture":
        mixture = make_dp_mixture(400, seed=seed)
        return mixture.X.numpy(), mixture.assignments.numpy()
    if name == "grid":
        y = np.repeat(np.arange(9), 20)
        return np.column_stack([y // 3, y % 3]) + 0.12 * np.random.default_rng(seed).normal(size=(len(y), 2)), y
    data = load(name)
    return np.asarray(data.X, dtype=float), np.asarray(data.y)


def rows_of(name: str, seed: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [n, D], their classes [n], and other rows [m, D]."""
    X, y = labelled(name, seed)
    order = np.random.default_rng(seed).permutation(len(X))
    chosen, others = order[:most], order[most : most + 200]
    columns = make_pipeline(StandardScaler(), *([PCA(16, random_state=0)] if X.shape[1] > 16 else [])).fit(X[chosen])
    return columns.transform(X[chosen]), y[chosen], columns.transform(X[others]) if len(others) else X[:0]


def family_of(name: str, X: np.ndarray) -> FullGaussian:
    """The prior of this name for these rows."""
    least, slope, share = PRIORS[name]
    spare = max(least, slope * X.shape[1])
    return FullGaussian(degrees_of_freedom=X.shape[1] + spare, scale=(spare - 1) * share * X.var(0))


def run(name: str, prior: str, seed: int, most: int) -> tuple[float, ...]:
    """K, tiny clusters, ARI, NMI, held-out density and CPU seconds of one chain."""
    X, y, others = rows_of(name, seed, most)
    posterior, (*found, spent) = chain(DPM(family_of(prior, X)), X, y, seed)
    density = float(posterior.log_predictive_density(torch.from_numpy(others)).mean()) if len(others) >= 20 else np.nan
    return *found, density, spent


def chain(model: Any, X: np.ndarray, y: np.ndarray, seed: int, **options: Any) -> tuple[Any, tuple[float, ...]]:
    """A posterior; its K, tiny clusters, ARI, NMI and CPU seconds."""
    started = time.process_time()
    backend = Gibbs(num_warmup=40, num_samples=20, seed=seed, progress=False)
    posterior = backend.fit(model, torch.from_numpy(X), **options)
    spent = time.process_time() - started
    found = posterior.partition().numpy()
    tiny = (np.unique(found, return_counts=True)[1] <= 3).sum()
    quality = adjusted_rand_score(y, found), normalized_mutual_info_score(y, found)
    return posterior, (len(np.unique(found)), float(tiny), *quality, spent)


def clusters(seeds: int = 5, most: int = 200, *names: str) -> None:
    total: dict[str, list[np.ndarray]] = {prior: [] for prior in PRIORS}
    for name in names or SETS:
        for prior in PRIORS:
            means = np.mean([run(name, prior, seed, most) for seed in range(seeds)], 0)
            total[prior].append(means)
            show(f"{name}: {prior}", means)
    for prior, each in total.items():
        show(f"all: {prior}", np.nanmean(each, 0))


def states(seeds: int = 3) -> None:
    total: dict[str, list[np.ndarray]] = {prior: [] for prior in PRIORS}
    for name in ("bee_dance", "ble_rssi", "ujiindoorloc"):
        for title, rows, y, lengths in sequences(name):
            X = StandardScaler().fit_transform(rows)
            for prior in PRIORS:
                model = IHMM(family_of(prior, X))
                found = np.mean([chain(model, X, y, seed, lengths=lengths)[1] for seed in range(seeds)], 0)
                total[prior].append(np.insert(found, 4, np.nan))
                show(f"{title[:15]}: {prior}", total[prior][-1])
    for prior, each in total.items():
        show(f"all: {prior}", np.mean(each, 0))


def show(name: str, means: np.ndarray) -> None:
    clusters, tiny, rand, information, density, spent = means
    print(f"{name:50}{clusters:7.1f}{tiny:7.1f}{rand:7.3f}{information:7.3f}{density:10.3f}{spent:7.2f}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(f"{'':50}{'K':>7}{'tiny':>7}{'ARI':>7}{'NMI':>7}{'held out':>10}{'CPU s':>7}")
    words: list[Any] = [int(word) if word.isdigit() else word for word in sys.argv[1:]]
    states(*words[1:]) if words[:1] == ["sequences"] else clusters(*words)
