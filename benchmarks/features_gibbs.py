"""How fast a Gibbs sweep of latent features is, in CPU seconds of one thread, beside plain numpy code.

python benchmarks/features_gibbs.py sweep [N]   a sweep of each scan / a sweep of numpy code, bit by bit, of the same
                                                conditionals: N = 1000 rows, D = 36, K = 20 features, hinge; both in
                                                runs of ten sweeps, as in a chain
python benchmarks/features_gibbs.py bars        log joint, features and accuracy of each scan on rows of 10 features
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from timing import choose, medians, seconds

SCANS = ("collapsed", "slice", "blocked")
NUM_SWEEPS = 10


def rows(num_data: int, num_features: int = 20, width: int = 36) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [N, D] of binary features [N, K] with noise, and signs [N] that are linear in the features."""
    rng = np.random.default_rng(0)
    Z = (rng.random((num_data, num_features)) < 0.3).astype(float)
    X = Z @ rng.normal(size=(num_features, width)) + 0.5 * rng.normal(size=(num_data, width))
    scores = Z @ rng.normal(size=num_features)
    return X, np.where(scores > np.median(scores), 1.0, -1.0), Z


def sweeper(scan: str, X: np.ndarray, y: np.ndarray, Z: np.ndarray) -> Callable[[], object]:
    """A sweep that goes on from its last state, which starts at the features that made the rows."""
    from regbayes.inference.gibbs.features import kernel as features
    from regbayes.inference.gibbs.features.state import FeatureState
    from regbayes.models import InfiniteLatentSVM, LinearGaussian

    K, generator = Z.shape[1], torch.Generator().manual_seed(0)
    model = InfiniteLatentSVM(LinearGaussian(offset=0.0), feature_map=None, truncation=K)
    model, data = model.prepare(torch.from_numpy(X), torch.from_numpy(y))
    hyper = model.prior.start(data.X)
    state = FeatureState(
        features=torch.from_numpy(Z).to(torch.int8),
        loadings=data.X.new_zeros(K, X.shape[1]),
        weights=data.X.new_zeros(K + 1, 1),
        probabilities=model.prior.start_probabilities(hyper, K) if scan == "blocked" else None,
        hyper=hyper,
        entries=model.likelihood.start(data.X),
    )
    state = features.draw_parameters(state, features.observe_entries(state, data, model, generator), generator)

    def sweep() -> int:
        nonlocal state
        state = features.sweep(state, data, model, generator, scan=scan)
        return state.features.shape[1]

    for _ in range(5):
        sweep()
    return sweep


def numpy_sweeper(X: np.ndarray, y: np.ndarray, Z: np.ndarray) -> Callable[[], None]:
    """The blocked sweep in plain numpy: vectors over columns and features, a loop over rows and their bits."""
    rng = np.random.default_rng(0)
    Z = Z.copy()
    (N, D), K, pi = X.shape, Z.shape[1], np.full(Z.shape[1], 0.3)
    eta, sx2, sw2, c = np.zeros(K + 1), 0.25, 1.0, 1.0

    def gaussian(precision: np.ndarray, linear: np.ndarray) -> np.ndarray:
        tril = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, linear)
        return mean + np.linalg.solve(tril.T, rng.normal(size=mean.shape))

    def sweep() -> None:
        nonlocal eta, sx2, sw2, pi
        W = gaussian(np.eye(K) / sw2 + Z.T @ Z / sx2, Z.T @ X / sx2)
        design = np.hstack([Z, np.ones((N, 1))])
        inverse = rng.wald(1 / (c * np.abs(1 - y * (design @ eta))).clip(1e-8), 1.0)
        precision = np.eye(K + 1) + (design * (c**2 * inverse)[:, None]).T @ design
        eta = gaussian(precision, design.T @ (y * (c + c**2 * inverse)))
        prior, level = np.log(pi) - np.log1p(-pi), rng.logistic(size=(N, K))
        for n in range(N):
            residual, score = X[n] - Z[n] @ W, design[n] @ eta
            for k in range(K):
                if Z[n, k]:
                    residual, score = residual + W[k], score - eta[k]
                gain = (W[k] @ residual - W[k] @ W[k] / 2) / sx2
                gain -= 2 * c * (max(0.0, 1 - y[n] * (score + eta[k])) - max(0.0, 1 - y[n] * score))
                if Z[n, k] != (on := float(prior[k] + gain > level[n, k])):
                    Z[n, k] = on
                if on:
                    residual, score = residual - W[k], score + eta[k]
        m = Z.sum(0)
        pi = rng.beta(2 / K + m, 1 + N - m).clip(1e-12, 1 - 1e-12)
        sx2 = ((X - Z @ W) ** 2).sum() / 2 / rng.gamma(1 + N * D / 2)
        sw2 = (W**2).sum() / 2 / rng.gamma(1 + K * D / 2)

    return sweep


def chain(sweep: Callable[[], object]) -> None:
    for _ in range(NUM_SWEEPS):
        sweep()


def sweep(num_data: str = "1000") -> None:
    arrays = rows(int(num_data))
    ours = [sweeper(scan, *arrays) for scan in SCANS]
    runs = [partial(chain, one) for one in (*ours, numpy_sweeper(*arrays))]
    *times, theirs = (time / NUM_SWEEPS for time in medians(*runs, repeats=5))
    for scan, time, run in zip(SCANS, times, ours, strict=True):
        ratio = f"{1e3 * time:.1f} ms, numpy {1e3 * theirs:.0f} ms = {theirs / time:.1f} times"
        print(f"{scan}, {run()} features: {ratio}")


def bars() -> None:
    from regbayes.inference import Gibbs
    from regbayes.models import InfiniteLatentSVM, LinearGaussian

    X, y, _ = rows(1500, 10)
    for scan in SCANS:
        found = []

        def fit(found: list = found, scan: str = scan) -> None:
            backend = Gibbs(scan=scan, num_samples=20, num_warmup=100, progress=False)
            found.append(
                backend.fit(InfiniteLatentSVM(LinearGaussian(offset=0.0), feature_map=None), X[:1000], y[:1000])
            )

        time = seconds(fit)
        posterior = found[0]
        accuracy = (posterior.predict(X[1000:]) == y[1000:]).mean()
        print(
            f"{scan}: {time:.1f} s, log joint {float(posterior.trace.values[0, -1]):.0f}, "
            f"{posterior.num_latent_features} features, accuracy {accuracy:.3f}"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    choose(__doc__, sweep=sweep, bars=bars)
