"""Discriminative clustering beside its rivals: quality with its spread over runs, and CPU seconds of one thread.

python benchmarks/clustering.py chain                 K found on the chained Gaussians (Nguyen et al., Fig. 2), 10 seeds
python benchmarks/clustering.py mnist [RUNS]          1,000 images, multinomial on pixel counts (Table 1)
python benchmarks/clustering.py scene15 [RUNS]        1,000 scenes, one row of the table for each feature view
python benchmarks/clustering.py newsgroups [RUNS]     1,000 posts, multinomial on the 500 most frequent words
python benchmarks/clustering.py bee_dance | ble_rssi | ujiindoorloc     sequences (Table 2, Fig. 4)
python benchmarks/clustering.py curve                 F1 of the bee dance against seconds (Fig. 4)
python benchmarks/clustering.py cost                  seconds of a DDPM sweep against K
python benchmarks/clustering.py times [SEEDS]         fits of DDPM() / of DPM(), six tables, Gibbs and small variance
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.cluster import AffinityPropagation, KMeans
from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA
from sklearn.metrics import normalized_mutual_info_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler
from timing import seconds

from regbayes.datasets import load, make_chained_gaussians
from regbayes.inference import Gibbs, SmallVariance
from regbayes.inference.posterior.partition_losses import pair_f1
from regbayes.models import (
    DDPM,
    DIH,
    DPM,
    IHMM,
    DiagonalGaussian,
    DirichletProcess,
    FullGaussian,
    Hinge,
    Logistic,
    MultinomialDirichlet,
    PrincipalDirections,
    StateSpace,
)

Labels = np.ndarray
SWEEPS: dict[str, Any] = {"num_warmup": 60, "num_samples": 40, "progress": False}
_HINGE = Hinge()


def scores(found: Labels, truth: Labels) -> tuple[float, float, int]:
    """NMI, F1 of pairs, number of clusters."""
    f1 = pair_f1(torch.as_tensor(found), torch.as_tensor(truth))
    return normalized_mutual_info_score(truth, found), f1, len(np.unique(found))


def table(methods: dict[str, Callable[[int], Labels]], truths: Callable[[int], Labels], runs: int) -> None:
    """Every method on every run, in turn: means and standard deviations."""
    rows: dict[str, list[tuple[float, float, int, float]]] = {name: [] for name in methods}
    for run in range(runs):
        for name, method in methods.items():
            started = time.process_time()
            found = method(run)
            rows[name].append((*scores(np.asarray(found), truths(run)), time.process_time() - started))
    print(f"{'':14}{'NMI':>15}{'F1':>15}{'K':>8}{'CPU s':>8}")
    for name, values in rows.items():
        mean, spread = np.mean(values, 0), np.std(values, 0)
        quality = "".join(f"{mean[i]:.3f} ({spread[i]:.3f})".rjust(15) for i in (0, 1))
        print(f"{name:14}{quality}{mean[2]:8.1f}{mean[3]:8.2f}", flush=True)


def gibbs(model: Any, X: Any, seed: int, *, num_generative: int = 10, **options: Any) -> Labels:
    """The point partition of a Gibbs run."""
    backend = Gibbs(**SWEEPS, num_generative=num_generative, seed=seed)
    return backend.fit(model, X, **options).partition().numpy()


def chain() -> None:
    for family in (DiagonalGaussian(), FullGaussian()):
        print(type(family).__name__)
        for name, model in (("DPM", DPM(family)), ("DDPM-S", DDPM(family)), ("DDPM-L", DDPM(family, Logistic()))):
            data = [make_chained_gaussians(seed=seed) for seed in range(10)]
            found = [gibbs(model, each.X, seed) for seed, each in enumerate(data)]
            numbers = [len(np.unique(labels)) for labels in found]
            nmi = np.mean([scores(labels, each.y.numpy())[0] for labels, each in zip(found, data, strict=True)])
            print(f"  {name:8} K {numbers}, {sum(number == 2 for number in numbers)} of 10 right, NMI {nmi:.3f}")


def clusterings(
    family: Any, num_clusters: int, inputs: Callable[[int], np.ndarray], hinge: Hinge = _HINGE, **options: Any
) -> dict[str, Any]:
    """Our models with the same likelihood, DP-means and rivals that are told the number of clusters or not.

    A DDPM starts from the DPM's own equilibrium, so that what differs is due to its hyperplanes.
    """

    def standard(run: int) -> np.ndarray:
        return StandardScaler().fit_transform(inputs(run))

    def dp_means(run: int) -> Labels:
        """With the penalty that finds a number of clusters nearest to the true one, by bisection."""
        rows, fits = torch.from_numpy(inputs(run)), []
        low, high, penalty = 0.0, math.inf, None
        for _ in range(12):
            fits.append(SmallVariance(penalty=penalty, num_components=num_clusters, seed=run).fit(DPM(family), rows))
            found, used = fits[-1].num_components, float(fits[-1].samples["penalty"])
            low, high = (low, used) if found < num_clusters else (used, high)
            if found == num_clusters:
                break
            penalty = 2 * low if high == math.inf else (low + high) / 2
        return min(fits, key=lambda fit: abs(fit.num_components - num_clusters)).partition().numpy()

    def ours(model: Any) -> Callable[[int], Labels]:
        return lambda run: gibbs(model, torch.from_numpy(inputs(run)), run, num_generative=50)

    return {
        "DPM": ours(DPM(family)),
        "DDPM-L": ours(DDPM(family, Logistic(), **options)),
        "DDPM-S": ours(DDPM(family, hinge, **options)),
        "DP-means": dp_means,
        "KMeans": lambda run: KMeans(num_clusters, n_init=3, random_state=run).fit_predict(inputs(run)),
        "GMM": lambda run: GaussianMixture(num_clusters, covariance_type="diag", random_state=run).fit_predict(
            standard(run)
        ),
        "AffinityProp.": lambda run: AffinityPropagation(random_state=run).fit_predict(inputs(run)),
    }


def mnist(runs: int) -> None:
    """Counts of ink in steps of 16 grey levels; one Dirichlet parameter for all."""
    data = load("mnist")
    rows = [np.random.default_rng(run).permutation(len(data.X))[:1000] for run in range(runs)]
    options = {"hinge": Hinge(10.0), "feature_map": PrincipalDirections(10, proportions=True), "weight_scale": 40.0}
    methods = clusterings(MultinomialDirichlet(5.0), 10, lambda run: np.round(data.X[rows[run]] / 16), **options)
    table(methods, lambda run: data.y[rows[run]], runs)


def scene15(runs: int) -> None:
    data = load("scene15")
    rows = [np.random.default_rng(run).permutation(len(data.X))[:1000] for run in range(runs)]
    for first, last, name in ((0, 20, "GIST"), (20, 79, "PHOG"), (79, 119, "LBP")):
        print(name)
        view = StandardScaler().fit_transform(data.X[:, first:last])
        table(
            clusterings(DiagonalGaussian(), 15, lambda run, view=view: view[rows[run]]),
            lambda run: data.y[rows[run]],
            runs,
        )


def newsgroups(runs: int) -> None:
    data = load("newsgroups20")
    frequent = np.sort(np.argsort(-np.asarray((data.X > 0).sum(0)).ravel())[100:600])  # without stop words
    counts = np.asarray(data.X[:, frequent].todense(), dtype=np.float64)
    long = np.flatnonzero(counts.sum(1) >= 20)
    rows = [np.random.default_rng(run).permutation(long)[:1000] for run in range(runs)]
    seen = PrincipalDirections(proportions=True)
    methods = clusterings(MultinomialDirichlet(0.5), 20, lambda run: counts[rows[run]], feature_map=seen)
    table(methods, lambda run: data.y[rows[run]], runs)


def sequences(name: str) -> Iterator[tuple[str, np.ndarray, Labels, list[int]]]:
    """(title, X, states, lengths) of each problem in a data set."""
    data = load(name)
    if name == "bee_dance":
        heading = np.unwrap(np.arctan2(data.X[:, 2], data.X[:, 3]))
        turn = np.diff(heading, prepend=heading[:1])
        ends = np.cumsum([0, *data.lengths[:-1]])
        turn[ends] = 0.0
        smooth = np.convolve(turn, np.ones(9) / 9, "same")
        size = np.convolve(np.abs(turn), np.ones(9) / 9, "same")
        yield "turning and its size, all sequences", np.column_stack([smooth, size]), data.y, data.lengths
    elif name == "ble_rssi":
        signal = np.where(data.X <= -200, -100, data.X) + 100
        rooms = np.unique(data.extra["class_grid"][data.y][:, 0] // 4, return_inverse=True)[1]
        yield "columns of the floor map in fours", signal, rooms, data.lengths
    else:
        starts = np.cumsum([0, *data.lengths])
        for index in range(3):
            rows = slice(starts[index], min(starts[index] + 1000, starts[index + 1]))
            dense = np.asarray(data.X[rows].todense())
            seen = dense != 0
            signal = np.where(seen, dense + 105, 0.0)[:, seen.sum(0) >= 20]
            centred = signal - signal.mean(0)
            axes = np.linalg.svd(centred, full_matrices=False)[2][:10]
            yield f"log {index}", centred @ axes.T, data.y[rows], [signal.shape[0]]


def models_of_states() -> dict[str, Any]:
    family = DiagonalGaussian()
    return {
        "DPM": DPM(family, prior=DirichletProcess(concentration_prior=(1.0, 1.0))),
        "DDPM-S": DDPM(family, Hinge(0.3), prior=DirichletProcess(concentration_prior=(1.0, 1.0))),
        "DDPM-L": DDPM(family, Logistic(), prior=DirichletProcess(concentration_prior=(1.0, 1.0))),
        "IHMM": IHMM(family),
        "DIH-S": DIH(family, Hinge(0.3)),
        "DIH-L": DIH(family, Logistic()),
    }


def states(name: str) -> None:
    for title, X, truth, lengths in sequences(name):
        print(f"{title}: {len(X)} steps, {X.shape[1]} features, {len(np.unique(truth))} true states")
        rows, models = torch.from_numpy(StandardScaler().fit_transform(X)), models_of_states()

        def fit(model: Any, rows: Any = rows, lengths: Any = lengths) -> Callable[[int], Labels]:
            options = {"lengths": lengths} if isinstance(model, StateSpace) else {}
            return lambda run: gibbs(model, rows, run, **options)

        table({name: fit(model) for name, model in models.items()}, lambda run, truth=truth: truth, 3)


def curve() -> None:
    """F1 of single draws of the bee dance, and the seconds that the chain had run (Fig. 4)."""
    marks = [1, 2, 5, 10, 20, 50, 100, 200]
    ((_, X, truth, lengths),) = sequences("bee_dance")
    rows = torch.from_numpy(StandardScaler().fit_transform(X))
    print(f"{'sweep':14}" + "".join(f"{mark:>14}" for mark in marks))
    for name, model in models_of_states().items():
        options = {"lengths": lengths} if isinstance(model, StateSpace) else {}
        backend = Gibbs(num_warmup=0, num_samples=marks[-1], num_generative=10, progress=False)
        posterior = backend.fit(model, rows, **options)
        draws, seconds = posterior.samples["assignments"], posterior.trace.seconds[0]
        quality = [scores(draws[mark - 1].numpy(), truth)[1] for mark in marks]
        pairs = zip(quality, (seconds[mark - 1] for mark in marks), strict=True)
        print(f"{name:14}" + "".join(f"{f1:6.2f} {float(s):5.2f} s" for f1, s in pairs), flush=True)


def cost() -> None:
    """Scan and draw of the hyperplanes for N = 2,000 points in 10 dimensions around K centres."""
    from regbayes.inference.gibbs import partition
    from regbayes.inference.gibbs.prepared import prepare_points
    from regbayes.inference.gibbs.scans import collapsed
    from regbayes.models.priors.laws import Infinite

    rng = np.random.default_rng(0)
    print(f"{'K':>5}{'scan, us a point':>18}{'per point and K':>17}{'hyperplanes, ms':>17}")
    for num_clusters in (10, 20, 50, 100, 200):
        centers = 30 * rng.normal(size=(num_clusters, 10))
        labels = torch.arange(2000) % num_clusters
        X = torch.from_numpy(centers[labels] + rng.normal(size=(2000, 10)))
        model = DDPM(DiagonalGaussian()).resolve(X)
        data, generator = prepare_points(model, model.data(X)), torch.Generator().manual_seed(0)
        state = partition.init(model, data, generator, start=labels, law=Infinite(model.prior))
        scan, hyperplanes = [], []
        for _ in range(7):
            started = time.process_time()
            state = collapsed.scan(state, data, model, generator)
            scan.append(time.process_time() - started)
            started = time.process_time()
            partition.draw_weights(state, data, model, generator)
            hyperplanes.append(time.process_time() - started)
        point = 1e6 * np.median(scan) / 2000
        print(f"{num_clusters:5}{point:18.2f}{point / num_clusters:17.3f}{1e3 * np.median(hyperplanes):17.1f}")


def times(num_seeds: int) -> None:
    """CPU seconds of fits as they come, in turn, and their ratio; the first seed of each is not counted."""
    inside = np.random.default_rng(0).normal(size=(300, 6)) * np.repeat([1.0, 3.0], 150)[:, None]
    tables: dict[str, Any] = {name: load(name).X for name in ("iris", "wine")}
    digits = StandardScaler().fit_transform(load("digits").X[:1000])
    tables |= {f"{size} digits": PCA(16, random_state=0).fit_transform(digits[:size]) for size in (300, 1000)}
    tables |= {"inside": inside, "blobs": make_blobs(1000, n_features=6, centers=8, random_state=0)[0]}
    for backend in (Gibbs(progress=False), SmallVariance()):
        for name, rows in tables.items():
            X, models = torch.from_numpy(StandardScaler().fit_transform(rows)), (DPM(), DDPM())
            spent = [
                [seconds(partial(backend.replace(seed=seed).fit, model, X)) for model in models]
                for seed in range(num_seeds + 1)
            ]
            plain, ours = np.mean(spent[1:], 0)
            print(f"{type(backend).__name__:15}{name:13}{plain:8.2f}{ours:8.2f}{ours / plain:6.1f}x", flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    job, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10
    single: dict[str, Callable[[], None]] = {"chain": chain, "cost": cost, "curve": curve}
    several = {"mnist": mnist, "scene15": scene15, "newsgroups": newsgroups, "times": times}
    if job in single:
        single[job]()
    elif job in several:
        several[job](runs)
    else:
        states(job)
