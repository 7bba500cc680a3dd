"""How fast the collapsed scan is, in CPU seconds of one thread, beside what else is at hand.

python benchmarks/collapsed.py scan         one scan / one EM iteration of scikit-learn's BayesianGaussianMixture
python benchmarks/collapsed.py repelling    a scan of DDPM and its hyperplanes' draws / the same iteration
python benchmarks/collapsed.py tensors      one scan in tensor code, which serves any family / the same scan compiled
python benchmarks/collapsed.py outsider     one scan of a family of tests/negative_binomial.py / of PoissonGamma
python benchmarks/collapsed.py counts       one scan of multinomial rows / the same scan in plain numpy
python benchmarks/collapsed.py blobs        a whole fit: Gibbs / BayesianGaussianMixture, NMI and number of components
python benchmarks/collapsed.py cold         the first scan in a new process without any compiled code
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import gammaln
from timing import choose, cold_and_warm, medians, seconds

FAMILIES = (
    "SphericalGaussian",
    "DiagonalGaussian",
    "FullGaussian",
    "LinearRegression",
    "MultinomialDirichlet",
    "PoissonGamma",
    "BernoulliBeta",
)


def blobs(num_data: int, num_features: int, num_clusters: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.integers(num_clusters, size=num_data)
    return 6 * rng.normal(size=(num_clusters, num_features))[z] + rng.normal(size=(num_data, num_features)), z


def scanner(family: str | type, X: np.ndarray, z: np.ndarray, *, compiled: bool = True) -> Callable[[], object]:
    """A scan that goes on from its last state, which has settled."""
    from regbayes.inference.gibbs.prepared import prepare_points
    from regbayes.inference.gibbs.scans import collapsed
    from regbayes.inference.gibbs.state import PartitionState
    from regbayes.models import DPM, likelihoods

    X, z = torch.from_numpy(X), torch.from_numpy(np.unique(z, return_inverse=True)[1])
    family = getattr(likelihoods, family) if isinstance(family, str) else family
    model = DPM(likelihood=family()).resolve(X)
    data, generator = prepare_points(model, model.data(X)), torch.Generator().manual_seed(0)
    state = PartitionState(z, X.new_zeros(int(z.max()) + 1, 0, 0), model.prior.start(X))

    def scan(compiled: bool = compiled) -> None:
        nonlocal state
        state = collapsed.scan(state, data, model, generator, compiled=compiled)

    for _ in range(3):
        scan(compiled=True)
    return scan


def repeller(X: np.ndarray, z: np.ndarray) -> Callable[[], object]:
    """A sweep of clusters that repel: the scan, and draws of all hyperplanes."""
    from regbayes.inference.gibbs import partition
    from regbayes.inference.gibbs.prepared import prepare_points
    from regbayes.inference.gibbs.scans import collapsed
    from regbayes.models import DDPM, DiagonalGaussian
    from regbayes.models.priors.laws import Infinite

    rows, generator = torch.from_numpy(X), torch.Generator().manual_seed(0)
    model = DDPM(DiagonalGaussian()).resolve(rows)
    data = prepare_points(model, model.data(rows))
    state = partition.init(model, data, generator, start=torch.from_numpy(z), law=Infinite(model.prior))

    def sweep() -> None:
        nonlocal state
        state = collapsed.scan(state, data, model, generator)
        state = replace(state, weights=partition.draw_weights(state, data, model, generator))

    for _ in range(3):
        sweep()
    return sweep


def beside_mixture(name: str, ours: Callable[[], object], X: np.ndarray, covariance_type: str) -> None:
    """Ours in turn with EM iterations of `BayesianGaussianMixture`."""
    from sklearn.mixture import BayesianGaussianMixture

    def fit(max_iter: int) -> None:
        settings = {"covariance_type": covariance_type, "tol": 0, "init_params": "random", "random_state": 0}
        BayesianGaussianMixture(n_components=20, max_iter=max_iter, **settings).fit(X)

    own, short, long = medians(ours, lambda: fit(2), lambda: fit(12))
    theirs = (long - short) / 10
    print(f"{name} D={X.shape[1]}: {1e3 * own:.1f} ms / {1e3 * theirs:.1f} ms = {own / theirs:.2f}")


def scan() -> None:
    families = {"SphericalGaussian": "spherical", "DiagonalGaussian": "diag", "FullGaussian": "full"}
    for family, covariance_type in families.items():
        for num_features in (8, 32):
            X, z = blobs(10_000, num_features, 20)
            beside_mixture(family, scanner(family, X, z), X, covariance_type)


def repelling() -> None:
    for num_features in (8, 32):
        X, z = blobs(10_000, num_features, 20)
        beside_mixture("DDPM", repeller(X, z), X, "diag")


def tensors() -> None:
    X, z = blobs(1000, 8, 20)
    for family in FAMILIES:
        rows = X if family in FAMILIES[:4] else (X > 0).astype(float)
        ours, theirs = medians(scanner(family, rows, z), scanner(family, rows, z, compiled=False), repeats=3)
        print(f"{family}: {1e3 * ours:.2f} ms, in tensor code {theirs:.2f} s = {theirs / ours:.0f} times", flush=True)


def outsider() -> None:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from negative_binomial import NegativeBinomial

    rng = np.random.default_rng(0)
    for num_features in (8, 32):
        z = rng.integers(20, size=10_000)
        X = rng.poisson(rng.gamma(0.5, 8.0, (20, num_features))[z]).astype(float)
        ours, theirs = medians(scanner(NegativeBinomial, X, z), scanner("PoissonGamma", X, z))
        print(f"NegativeBinomial / PoissonGamma, D={num_features}: {1e3 * ours:.1f} / {1e3 * theirs:.1f} ms", end="")
        print(f" = {ours / theirs:.2f}")


def counts() -> None:
    rng = np.random.default_rng(0)
    num_data, num_words, num_topics = 1000, 1000, 20
    z = rng.integers(num_topics, size=num_data)
    X = rng.poisson(100 * rng.dirichlet(np.full(num_words, 0.1), num_topics)[z]).astype(float)
    ours, theirs = medians(scanner("MultinomialDirichlet", X, z), lambda: numpy_scan(X, z.copy()), repeats=3)
    print(
        f"{num_data} x {num_words} counts: {1e3 * ours:.1f} ms, numpy {1e3 * theirs:.0f} ms = {theirs / ours:.0f} times"
    )


def numpy_scan(X: np.ndarray, z: np.ndarray, prior: float = 0.1, alpha: float = 1.0) -> None:
    """The scan in plain numpy, vectorised over the components, only counts above zero visited."""
    rng = np.random.default_rng(0)
    num_components = z.max() + 1
    a = np.full((num_components + 1, X.shape[1]), prior)
    np.add.at(a, z, X)
    totals, sizes = a.sum(1), np.bincount(z, minlength=num_components + 1).astype(float)
    words = [np.flatnonzero(row) for row in X]
    for n in rng.permutation(len(X)):
        own, word = z[n], words[n]
        x, total = X[n, word], X[n].sum()
        a[own, word] -= x
        totals[own] -= total
        sizes[own] -= 1
        rows = a[:, word]
        logits = (gammaln(rows + x) - gammaln(rows)).sum(1) - gammaln(totals + total) + gammaln(totals)
        logits += np.log(np.where(sizes > 0, sizes, alpha / max(1, (sizes == 0).sum())))
        weights = np.exp(logits - logits.max()).cumsum()
        own = z[n] = np.searchsorted(weights, rng.random() * weights[-1])
        a[own, word] += x
        totals[own] += total
        sizes[own] += 1


def fit_blobs() -> None:
    from sklearn.metrics import normalized_mutual_info_score
    from sklearn.mixture import BayesianGaussianMixture

    from regbayes.inference import Gibbs
    from regbayes.models import DPM, FullGaussian

    for num_data in (10_000, 100_000):
        X, z = blobs(num_data, 8, 20)
        posterior, mixture = None, BayesianGaussianMixture(n_components=40, covariance_type="full", random_state=0)

        backend = Gibbs(scan="collapsed", num_warmup=20, num_samples=10, split_merge=20, seed=0)

        def gibbs(X: np.ndarray = X, backend: Gibbs = backend) -> None:
            nonlocal posterior
            posterior = backend.fit(DPM(likelihood=FullGaussian()), X)

        ours, theirs = seconds(gibbs), seconds(lambda X=X, mixture=mixture: mixture.fit(X))
        found = posterior.samples["assignments"][-1].numpy()
        agreement = [normalized_mutual_info_score(z, labels) for labels in (found, mixture.predict(X))]
        print(
            f"{num_data} x 8: {ours:.1f} s / {theirs:.1f} s = {ours / theirs:.2f}; "
            f"NMI {agreement[0]:.4f} / {agreement[1]:.4f}; "
            f"{len(np.unique(found))} components"
        )


def first(family: str) -> None:
    rng = np.random.default_rng(0)
    scanner(family, rng.integers(0, 2, (30, 3)).astype(float), rng.integers(3, size=30))()


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cold = partial(cold_and_warm, __file__, FAMILIES)
    jobs = {"scan": scan, "repelling": repelling, "tensors": tensors, "outsider": outsider, "counts": counts}
    choose(__doc__, **jobs, blobs=fit_blobs, cold=cold, first=first)
