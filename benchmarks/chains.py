"""Several chains of one fit: what processes save, and what a consensus of the draws gains.

python benchmarks/chains.py parallel     two chains one after another / in two processes, with the same draws
python benchmarks/chains.py consensus    best draw and consensus: expected loss, NMI and ARI on data of scikit-learn

On a machine with other work the wall clock says little. "by CPU" is the CPU time of one process over that of the busier
one of two, start included: what two idle cores give.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import resource
import time

import torch
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


def cpu_seconds() -> tuple[float, float]:
    """Of this process, and of those that it started and that have ended."""
    own, others = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime


def timed(backend: Gibbs, X: torch.Tensor) -> tuple[Posterior, float, float, float]:
    """The fit, wall seconds, and CPU seconds of this process and of others."""
    started, (own, others) = time.perf_counter(), cpu_seconds()
    posterior = backend.fit(DPM(DiagonalGaussian()), X)
    wall, (own_after, others_after) = time.perf_counter() - started, cpu_seconds()
    return posterior, wall, own_after - own, others_after - others


def parallel() -> None:
    X = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X[:1000] += 3
    for num_samples in (300, 1000, 3000):
        backend = Gibbs(num_samples=num_samples, num_warmup=100, num_chains=2, progress=False)
        alone, wall, own, _ = timed(backend.replace(num_jobs=1), X)
        together, wall_2, own_2, others = timed(backend.replace(num_jobs=2), X)
        same = all(torch.equal(alone.samples[name], together.samples[name]) for name in alone.samples)
        print(
            f"{num_samples:5} draws: one process {wall:.1f} s ({own:.1f} of CPU), two {wall_2:.1f} s ({own_2:.1f} and "
            f"{others:.1f}); {wall / wall_2:.2f}x, by CPU {own / max(own_2, others):.2f}x; same draws: {same}; "
            f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
            flush=True,
        )


def consensus(num_seeds: int = 3) -> None:
    for (name, (load, width)), family in ((each, f) for each in SETS.items() for f in (DiagonalGaussian, FullGaussian)):
        X, y = load(return_X_y=True)
        scaled = X if name == "digits" else StandardScaler().fit_transform(X)
        rows = PCA(width, random_state=0).fit_transform(scaled)
        for loss in ("vi", "binder"):
            found = torch.zeros(2, 4)
            for seed in range(num_seeds):
                posterior = Gibbs(num_samples=100, num_warmup=50, seed=seed, progress=False).fit(DPM(family()), rows)
                both = [posterior.partition(loss), posterior.consensus(loss)]
                losses = expected_losses(torch.stack(both), posterior.samples["assignments"], loss)
                scores = [
                    (normalized_mutual_info_score(y, z), adjusted_rand_score(y, z), len(z.unique())) for z in both
                ]
                found += torch.cat([losses.unsqueeze(1), torch.tensor(scores)], 1) / num_seeds
            cells = (f"{what} {best:.3f} -> {gained:.3f}" for what, best, gained in zip(WHAT, *found, strict=True))
            print(f"{name:14} {family.__name__:17} {loss:7}", *cells, sep="  ", flush=True)


WHAT = ("loss", "NMI", "ARI", "K")

if __name__ == "__main__":
    choose(__doc__, parallel=parallel, consensus=consensus)
