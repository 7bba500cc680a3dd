"""Several chains of one fit: what processes save, and what a consensus of the draws gains.

python benchmarks/chains.py parallel     two chains one after another / in two processes, with the same draws; before
                                         them what two processes gain here that know nothing of each other
python benchmarks/chains.py consensus [DRAWS] [SEEDS] [SET ...]     best draw, best cut of average linkage and our
                                         consensus: expected loss, NMI and ARI on data of scikit-learn

On a machine with other work the wall clock says little. "by CPU" is the CPU time of one process over that of each of
two, start included: what two idle cores give. Each of two processes at once is slower than one alone, so that
two which know nothing of each other fall short of 2 as well.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import resource
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.preprocessing import StandardScaler
from timing import choose

from regbayes.inference import Gibbs, Posterior
from regbayes.inference.posterior.consensus import expected_losses
from regbayes.models import DPM, DiagonalGaussian, FullGaussian

SETS = {"digits": (datasets.load_digits, 16), "wine": (datasets.load_wine, 13), "iris": (datasets.load_iris, 4)}
SETS["breast cancer"] = (datasets.load_breast_cancer, 10)


def timed(backend: Gibbs, X: torch.Tensor) -> tuple[Posterior, float, float, float]:
    """The fit, wall seconds, and CPU seconds of this process and of its two others, if there are any, on average."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started, own = time.perf_counter(), time.process_time()
    posterior = backend.fit(DPM(DiagonalGaussian()), X)
    wall, own = time.perf_counter() - started, time.process_time() - own
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    others = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return posterior, wall, own, others / 2


def rows() -> torch.Tensor:
    X = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X[:1000] += 3
    return X


def one_chain(num_samples: int) -> tuple[float, float]:
    """Wall and CPU seconds of a chain in this process."""
    return timed(Gibbs(num_samples=num_samples, num_warmup=100, num_chains=1, progress=False), rows())[1:3]


def parallel() -> None:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(one_chain, (10, 10)))  # imports
        both = np.max(list(pool.map(one_chain, (1000, 1000))), 0)
        wall, own = np.sum([pool.submit(one_chain, 1000).result() for _ in range(2)], 0) / both
    print(f"two processes that know nothing of each other: {wall:.2f}x, by CPU {own:.2f}x", flush=True)
    X = rows()
    for num_samples in (300, 1000, 3000):
        backend = Gibbs(num_samples=num_samples, num_warmup=100, num_chains=2, progress=False)
        alone, wall, own, _ = timed(backend.replace(num_jobs=1), X)
        together, wall_2, own_2, other = timed(backend.replace(num_jobs=2), X)
        same = all(torch.equal(alone.samples[name], together.samples[name]) for name in alone.samples)
        print(
            f"{num_samples:5} draws: one process {wall:.1f} s ({own:.1f} of CPU); by two {wall_2:.1f} s ({own_2:.1f} "
            f"and {other:.1f} each): {wall / wall_2:.2f}x, by CPU {own / max(own_2, other):.2f}x, same draws: {same}",
            end="",
        )
        print(f"; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)


def consensus(num_draws: str = "100", num_seeds: str = "3", *names: str) -> None:
    print(f"{'':41}" + "".join(f"{measure:>24}" for measure in MEASURES))
    worse = 0
    for name, family in product(names or SETS, (DiagonalGaussian, FullGaussian)):
        X, y, width = *SETS[name][0](return_X_y=True), SETS[name][1]
        rows = PCA(width, random_state=0).fit_transform(X if name == "digits" else StandardScaler().fit_transform(X))
        backend = Gibbs(num_samples=int(num_draws), num_warmup=50, progress=False)
        fits = [backend.replace(seed=seed).fit(DPM(family()), rows) for seed in range(int(num_seeds))]
        for loss in ("vi", "binder"):
            found = np.stack([judged(posterior, loss, y) for posterior in fits])  # [seeds, ways, measures]
            worse += int((found[:, -1, 0] > found[:, 0, 0] + 1e-12).sum())
            cells = ("".join(f"{value:8.3f}" for value in ways) for ways in found.mean(0).T)
            print(f"{name:14}{family.__name__:17}{loss:10}", *cells, sep="", flush=True)
    print(f"consensus above the best draw in expected loss: {worse} times (must: never)")


def judged(posterior: Posterior, loss: str, y: np.ndarray) -> np.ndarray:
    """Expected loss, NMI, ARI and K of the best draw, of the best cut of average linkage, and of our search, [3, 4]."""
    draws = posterior.samples["assignments"]
    best = draws[expected_losses(draws, draws, loss).argmin()].long()
    ways = torch.stack([best, linked(posterior, loss), posterior.consensus(loss, num_draws=len(draws))])
    quality = [(normalized_mutual_info_score(y, z), adjusted_rand_score(y, z), len(z.unique())) for z in ways]
    return np.column_stack([expected_losses(ways, draws, loss), quality])


def linked(posterior: Posterior, loss: str) -> torch.Tensor:
    """The cut [N] of least expected loss of the tree that joins blocks by their average similarity."""
    draws = posterior.samples["assignments"]
    tree = linkage(squareform(1 - posterior.similarity().double().numpy(), checks=False), "average")
    most = max(len(draw.unique()) for draw in draws) + 2
    cuts = torch.from_numpy(cut_tree(tree, range(1, most + 1)).T.copy())
    return cuts[expected_losses(cuts, draws, loss).argmin()]


MEASURES = [f"{name}: draw, tree, ours" for name in ("loss", "NMI", "ARI", "K")]

if __name__ == "__main__":
    choose(__doc__, parallel=parallel, consensus=consensus)
