"""How fast DP-means and M2DPM are, in CPU seconds of one thread, beside what else is at hand.

python benchmarks/small_variance.py iteration   one iteration / one Lloyd iteration of scikit-learn's KMeans, equal K
python benchmarks/small_variance.py products    one M2DPM iteration at D = 784 / its own matrix products
python benchmarks/small_variance.py wide        whole fits of 30 rows by their columns; fewer rows than columns
python benchmarks/small_variance.py growth      whole fits of DP mixtures of 100 to 10^6 rows: exponent, K found
python benchmarks/small_variance.py tiny        share of tiny problems whose fit ends within 1 % of the least
                                                objective of all, by restarts (the default, then one); CPU seconds
python benchmarks/small_variance.py restarts    whole fits of 100 to 10^5 rows by default / with one restart
python benchmarks/small_variance.py pdc PYTHON  DP-means until the objective of pdc-dp-means' fit / that fit; PYTHON
                                                is an interpreter that has it (it needs scikit-learn < 1.4)
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import itertools
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from timing import choose, medians


def blobs(num_data: int, num_features: int, num_clusters: int, spread: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    z = rng.integers(num_clusters, size=num_data)
    return spread * rng.normal(size=(num_clusters, num_features))[z] + rng.normal(size=(num_data, num_features))


def sweeper(X: np.ndarray, starts: np.ndarray, with_labels: bool) -> Callable[[], object]:
    """A sweep from given centres; the penalty is so large that no component opens."""
    from regbayes.inference.small_variance import descent
    from regbayes.inference.small_variance.problem import Problem
    from regbayes.models import DPM, InfiniteSVM, SphericalGaussian

    likelihood, rows = SphericalGaussian(variance=1.0), torch.from_numpy(X)
    y = (rows[:, 0] + torch.randn(len(X), generator=torch.Generator().manual_seed(0)) > 0).long()
    model = InfiniteSVM(likelihood).resolve(rows, y) if with_labels else DPM(likelihood).resolve(rows)
    problem = Problem.of(model, model.data(rows, y), 1.0)
    state = descent.init(problem, 1e12)
    state = replace(
        state,
        centers=model.likelihood.coordinates(torch.from_numpy(starts)),
        weights=state.weights.new_zeros(len(starts), *state.weights.shape[1:]),
        grows=False,
    )
    generator = torch.Generator().manual_seed(0)
    state = replace(descent.sweep(state, problem, generator), settled=False, grows=False)
    return lambda: descent.sweep(state, problem, generator)


def iteration() -> None:
    from sklearn.cluster import KMeans

    print("     N   D    K   Lloyd ms   DP-means / Lloyd   M2DPM / Lloyd")
    for N, D, K in ((100_000, 16, 50), (100_000, 64, 50), (100_000, 64, 200)):
        X = blobs(N, D, K)
        starts = X[np.random.default_rng(1).choice(N, K, replace=False)]

        def lloyd(num: int, X: np.ndarray = X, starts: np.ndarray = starts) -> None:
            KMeans(len(starts), init=starts, n_init=1, max_iter=num, tol=0, algorithm="lloyd").fit(X)

        few, many, dp_means, m2dpm = medians(
            lambda: lloyd(2), lambda: lloyd(8), sweeper(X, starts, False), sweeper(X, starts, True)
        )
        one = (many - few) / 6
        print(f"{N:7d} {D:3d} {K:4d}   {1e3 * one:8.1f}   {dp_means / one:16.2f}   {m2dpm / one:13.2f}", flush=True)


def products() -> None:
    N, D, K = 60_000, 784, 20  # as many rows as MNIST has
    X = blobs(N, D, K)
    A = np.concatenate([X, np.ones((N, 1))], 1)
    blocks = [torch.from_numpy(block) for block in np.array_split(A, K)]
    rows, features, wide = torch.from_numpy(X), torch.from_numpy(A), torch.from_numpy(A[:K].T.copy())

    def own() -> None:
        rows @ wide[:D]
        features @ wide
        for block in blocks:
            block.T @ block

    sweep, own_seconds = medians(sweeper(X, X[:K].copy(), True), own, repeats=3)
    print(
        f"N {N}, D {D}, K {K}: iteration {sweep:.2f} s, products {own_seconds:.2f} s, ratio {sweep / own_seconds:.2f}"
    )


def wide() -> None:
    from regbayes.inference import SmallVariance
    from regbayes.models import DDPM, InfiniteSVM

    rng = np.random.default_rng(0)
    for D in (20, 200, 2000, 20_000):
        X = rng.normal(size=(30, D))
        models = {"InfiniteSVM": (InfiniteSVM(), X[:, 0] > 0), "DDPM": (DDPM(), None)}
        fits = [lambda own=own, X=X: SmallVariance(progress=False).fit(own[0], X, own[1]) for own in models.values()]
        times = medians(*fits, repeats=3)
        print(f"D {D:6d}   " + "   ".join(f"{name} {spent:6.2f} s" for name, spent in zip(models, times, strict=True)))


def growth() -> None:
    from regbayes.datasets import make_dp_mixture
    from regbayes.inference import SmallVariance
    from regbayes.models import DPM, InfiniteSVM, SphericalGaussian

    models = {"DP-means": DPM(SphericalGaussian()), "M2DPM": InfiniteSVM(SphericalGaussian())}
    sizes = [100, 1000, 10_000, 100_000, 1_000_000]
    for (name, model), creation in itertools.product(models.items(), ("single", "joint")):
        times = []
        for N in sizes:
            data = make_dp_mixture(N)
            K = len(data.assignments.unique())
            backend = SmallVariance(num_components=K, scale=1.0, creation=creation, progress=False)
            start = time.process_time()
            found = backend.fit(model, data.X, data.y).num_components
            times.append(time.process_time() - start)
            print(f"{name:8s} {creation:6s} N {N:7d}  K {K:2d} found {found:2d}  {times[-1]:7.2f} s")
        slope = np.polyfit(np.log(sizes[2:]), np.log(times[2:]), 1)[0]
        print(f"{name:8s} {creation:6s} exponent of the time in N, from {sizes[2]} rows: {slope:.2f}", flush=True)


def tiny() -> None:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from tiny_optima import PROBLEMS, outcome

    for name, problem in PROBLEMS.items():
        line = f"{name:32s}"
        for num_restarts in ("auto", 1):
            start = time.process_time()
            hits = [outcome(problem(seed), num_restarts=num_restarts).reached for seed in range(24)]
            line += f"   {num_restarts!s:>4s} {np.mean(hits):.2f} in {time.process_time() - start:6.1f} s"
        print(line, flush=True)


def restarts() -> None:
    from regbayes.datasets import make_dp_mixture
    from regbayes.inference import SmallVariance
    from regbayes.models import DPM, InfiniteSVM, SphericalGaussian

    for model, N in itertools.product((DPM(SphericalGaussian()), InfiniteSVM(SphericalGaussian())), _SIZES):
        data, default = make_dp_mixture(N), SmallVariance(num_restarts="auto", num_jobs=1, progress=False)
        fits = [
            lambda own=own, model=model, data=data: own.fit(model, data.X, data.y)
            for own in (default, default.replace(num_restarts=1))
        ]
        number = fits[0]().backend.num_restarts
        auto, one = medians(*fits, repeats=3)
        print(f"{type(model).__name__:12s} N {N:6d}  {number:2d} restarts {auto:6.2f} s, one {one:6.2f} s", flush=True)


_SIZES = (100, 1000, 10_000, 100_000)
_PDC = """
import json, sys, time, warnings
import numpy as np
from pdc_dp_means import DPMeans
warnings.simplefilter("ignore")
X, delta, results = np.load(sys.argv[1]), float(sys.argv[2]), []
for seed in range(3):
    model = DPMeans(n_clusters=1, n_init=1, delta=delta, random_state=seed, max_iter=100)
    start = time.process_time()
    model.fit(X)
    results.append((time.process_time() - start, float(model.inertia_), len(model.cluster_centers_)))
print(json.dumps(results))
"""


def pdc(python: str) -> None:
    from regbayes.inference.small_variance import descent
    from regbayes.inference.small_variance.problem import Problem
    from regbayes.models import DPM, SphericalGaussian

    print("     N   D  their s  K     objective   seconds until that objective  ratio")
    for N, D, K, spread, delta in ((100_000, 2, 30, 10, 20.0), (100_000, 16, 50, 4, 80.0), (100_000, 64, 50, 3, 250.0)):
        X = blobs(N, D, K, spread)
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            np.save(file.name, X)
            command = [python, "-c", _PDC, file.name, str(delta)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for index, (their_seconds, inertia, found) in enumerate(json.loads(output.splitlines()[-1])):
            target = delta / 2 * found + inertia / 2

            def descend(target: float = target, seed: int = index, X: np.ndarray = X, delta: float = delta) -> None:
                rows = torch.from_numpy(X)
                model = DPM(SphericalGaussian(variance=1.0)).resolve(rows)
                problem = Problem.of(model, model.data(rows), 1.0)
                state, generator = descent.init(problem, delta / 2), torch.Generator().manual_seed(seed)
                while state.objective > target and not state.converged:
                    state = descent.sweep(state, problem, generator)
                if state.objective > target:
                    raise RuntimeError(f"stopped at {state.objective}, above {target}")

            (ours,) = medians(descend, repeats=3)
            ratio = ours / their_seconds
            print(f"{N:6d} {D:3d} {their_seconds:8.2f} {found:3d} {target:12.1f} {ours:30.2f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    choose(
        __doc__, iteration=iteration, products=products, wide=wide, growth=growth, tiny=tiny, restarts=restarts, pdc=pdc
    )
