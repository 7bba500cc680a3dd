"""How fast SVM duals are beside liblinear, in CPU seconds of one thread.

python benchmarks/duals.py              made-up data of 3411 rows, 300 features, 13 classes; and the digits
python benchmarks/duals.py STRENGTH     the same at another strength

A line has the loss, seconds of liblinear at its default tolerance, seconds of `solve` from nothing and from the tilts
of slightly other features (1% noise, as between sweeps of mean field), and the ratio of the last to the first.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call gives, and its CPU seconds: the best of three."""
    times = []
    for _ in range(3):
        started = time.process_time()
        found = call()
        times.append(time.process_time() - started)
    return found, min(times)


def made_up(num_data: int = 3411, num_features: int = 300, num_classes: int = 13) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_data, num_features)) / np.sqrt(num_features)
    scores = X @ rng.normal(size=(num_features, num_classes)) + 0.3 * rng.gumbel(size=(num_data, num_classes))
    return X, scores.argmax(1)


def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits
    from sklearn.preprocessing import StandardScaler

    X, y = load_digits(return_X_y=True)
    return StandardScaler().fit_transform(X) / 8, y


def compare(name: str, X: np.ndarray, y: np.ndarray, strength: float, tolerance: float = 1e-2) -> None:
    from sklearn.svm import LinearSVC, LinearSVR

    from regbayes.inference.classifiers.duals import solve
    from regbayes.models.losses import CrammerSinger, EpsilonInsensitive, Hinge

    before = torch.from_numpy(X * (1 + 0.01 * np.random.default_rng(1).normal(size=X.shape)))
    features, cost = torch.from_numpy(X), {"C": 2 * strength, "fit_intercept": False}
    classes = 2.0 * torch.nn.functional.one_hot(torch.from_numpy(y)).double() - 1
    sign, real = classes[:, :1], torch.from_numpy(X @ np.arange(X.shape[1]) / X.shape[1] + y / 10).unsqueeze(1)
    one, number = sign.squeeze(1).numpy(), real.squeeze(1).numpy()
    svr = LinearSVR(loss="epsilon_insensitive", epsilon=0.1, dual=True, **cost)
    rivals: list[tuple[Any, torch.Tensor, Callable[[], Any]]] = [
        (CrammerSinger(strength), classes, lambda: LinearSVC(multi_class="crammer_singer", **cost).fit(X, y)),
        (Hinge(strength), sign, lambda: LinearSVC(loss="hinge", dual=True, **cost).fit(X, one)),
        (EpsilonInsensitive(strength), real, lambda: svr.fit(X, number)),
    ]
    for loss, targets, rival in rivals:
        solve(features[:40], targets[:40], loss, 1.0, max_passes=2)  # loads machine code
        _, theirs = seconds(rival)
        _, cold = seconds(lambda loss=loss, targets=targets: solve(features, targets, loss, 1.0, tolerance=tolerance))
        start = solve(before, targets, loss, 1.0, tolerance=tolerance).tilt
        warm, ours = seconds(
            lambda loss=loss, targets=targets, start=start: solve(
                features, targets, loss, 1.0, start=start, tolerance=tolerance
            )
        )
        print(
            f"{name} {loss}: liblinear {theirs:.3f} s, cold {cold:.3f} s, warm {ours:.3f} s "
            f"({warm.num_passes} passes, gap {warm.gap:.1e}), warm / liblinear {ours / theirs:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, (X, y) in {"made up": made_up(), "digits": digits()}.items():
        compare(name, X, y, float(sys.argv[1]) if len(sys.argv) > 1 else 0.5)
