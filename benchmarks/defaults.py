"""Which prior of `FullGaussian` finds clusters that can be believed: nine labelled sets, five seeds each, one thread.

python benchmarks/defaults.py [SEEDS] [ROWS]

Each run takes ROWS (400) rows of a set at most, standardised, and 16 principal components at most. Chains are collapsed
Gibbs, 40 sweeps of warm-up and 20 draws; the partition is the representative one. Clusters of three rows or fewer are
tiny.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
import warnings

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.preprocessing import StandardScaler

from regbayes.datasets import load, make_dp_mixture
from regbayes.inference import Gibbs
from regbayes.models import DPM, FullGaussian

SETS = ("iris", "wine", "breast_cancer", "parkinsons", "wireless", "digits", "letter", "mnist", "mixture")
# degrees of freedom beyond D, and the expected variance within a cluster in shares of that of the data
PRIORS = {
    "D + 2, 0.5 (default)": (2, 0.5),
    "D + 2, 0.25": (2, 0.25),
    "D + 15, 0.5": (15, 0.5),
    "D + 15, 0.5 / 14": (15, 0.5 / 14),
}


def rows_of(name: str, seed: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [n, D] and their classes [n]."""
    data = make_dp_mixture(400, seed=seed) if name == "mixture" else load(name)
    X, y = np.asarray(data.X, dtype=float), np.asarray(data.assignments if name == "mixture" else data.y)
    chosen = np.random.default_rng(seed).permutation(len(X))[:most]
    X = StandardScaler().fit_transform(X[chosen])
    return (PCA(16).fit_transform(X) if X.shape[1] > 16 else X), y[chosen]


def family_of(name: str, X: np.ndarray) -> FullGaussian:
    """The prior of this name for these rows."""
    spare, share = PRIORS[name]
    return FullGaussian(degrees_of_freedom=X.shape[1] + spare, scale=(spare - 1) * share * X.var(0))


def run(name: str, prior: str, seed: int, most: int) -> tuple[float, ...]:
    """K, tiny clusters, ARI, NMI and CPU seconds of one chain."""
    X, y = rows_of(name, seed, most)
    started = time.process_time()
    backend = Gibbs(num_warmup=40, num_samples=20, scan="collapsed", seed=seed, progress=False)
    found = backend.fit(DPM(family_of(prior, X)), torch.from_numpy(X)).partition().numpy()
    tiny = (np.unique(found, return_counts=True)[1] <= 3).sum()
    quality = adjusted_rand_score(y, found), normalized_mutual_info_score(y, found)
    return len(np.unique(found)), float(tiny), *quality, time.process_time() - started


def main(seeds: int, most: int) -> None:
    total: dict[str, list[np.ndarray]] = {prior: [] for prior in PRIORS}
    print(f"{'':40}{'K':>7}{'tiny':>7}{'ARI':>7}{'NMI':>7}{'CPU s':>7}")
    for name in SETS:
        for prior in PRIORS:
            means = np.mean([run(name, prior, seed, most) for seed in range(seeds)], 0)
            total[prior].append(means)
            show(f"{name}: {prior}", means)
    for prior, each in total.items():
        show(f"all: {prior}", np.mean(each, 0))


def show(name: str, means: np.ndarray) -> None:
    print(f"{name:40}{means[0]:7.1f}{means[1]:7.1f}{means[2]:7.3f}{means[3]:7.3f}{means[4]:7.2f}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    given = [int(word) for word in sys.argv[1:]]
    main(*[*given, *(5, 400)[len(given) :]])
