"""Mean field of topics on 20 newsgroups: tokens a CPU second, and test accuracy beside LDA with a linear SVM.

    OMP_NUM_THREADS=1 python benchmarks/topics_svi.py sweeps [--topics 40]
    OMP_NUM_THREADS=1 python benchmarks/topics_svi.py accuracy [--topics 40] [--steps 30] [--strength 16]

Words in at least 5 and at most a tenth of the training documents; the split is that by date. A sweep visits every
document, the topics and the classifiers; it is timed after three others. CPU seconds of one thread, and of fit alone
where it says so: 10 sweeps without a margin come before the first step.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.svm import LinearSVC
from timing import seconds

from regbayes.datasets import load
from regbayes.inference import SVI
from regbayes.inference.svi.rules import AVERAGING, NATURAL
from regbayes.inference.svi.topics import kernel as topics
from regbayes.models import LDA, CrammerSinger, Hinge, MedLDA


def newsgroups() -> tuple[Any, ...]:
    """(X, y, X_test, y_test)."""
    data = load("newsgroups20")
    presence = np.asarray((data.X > 0).sum(0)).ravel()
    kept = np.flatnonzero((presence >= 5) & (presence <= 0.1 * len(data.y)))
    return data.X.tocsr()[:, kept], data.y, data.X_test.tocsr()[:, kept], data.y_test


def sweeps(num_topics: int) -> None:
    X, y, *_ = newsgroups()
    jobs = {
        "LDA": (LDA(num_topics=num_topics), AVERAGING),
        "hinge of each class, averaging": (MedLDA(loss=Hinge(), num_topics=num_topics), AVERAGING),
        "Crammer-Singer, averaging": (MedLDA(loss=CrammerSinger(), num_topics=num_topics), AVERAGING),
        "hinge of each class, Gibbs rule": (MedLDA(loss=Hinge(), num_topics=num_topics), NATURAL),
    }
    for name, (model, rule) in jobs.items():
        sweep = topics.steps_by(rule).sweep
        resolved, data = model.prepare(X, y)
        state = topics.init(resolved, data, torch.Generator().manual_seed(0))
        for _ in range(3):
            state = sweep(state, data, resolved)
        spent = np.median([seconds(partial(sweep, state, data, resolved)) for _ in range(3)])
        print(f"{name:32} {spent:7.2f} s a sweep   {X.sum() / spent / 1e6:6.2f} million tokens a second", flush=True)


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What it returns, and its CPU seconds."""
    found: list[Any] = []
    spent = seconds(lambda: found.append(function(*arguments)))
    return found[0], spent


def accuracy(num_topics: int, num_steps: int, strength: float) -> None:
    X, y, X_test, y_test = newsgroups()
    backend = SVI(num_steps=num_steps, rule="averaging", progress=False)
    for loss in (CrammerSinger(strength), Hinge(strength)):
        posterior, spent = timed(backend.fit, MedLDA(loss=loss, num_topics=num_topics), X, y)
        predicted, later = timed(posterior.predict, X_test)
        right = np.mean(predicted == y_test)
        print(f"MedLDA, {loss}: accuracy {right:.3f}, fit {spent:.0f} s, prediction {later:.1f} s", flush=True)
    posterior, spent = timed(backend.fit, LDA(num_topics=num_topics), X)
    own, new = posterior.transform(X), posterior.transform(X_test)
    for cost in (1.0, 10.0, 100.0):
        right = LinearSVC(C=cost).fit(own, y).score(new, y_test)
        print(f"LDA, then LinearSVC(C={cost:g}): accuracy {right:.3f}, fit {spent:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["sweeps", "accuracy"])
    parser.add_argument("--topics", type=int, default=40)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--strength", type=float, default=16.0)
    given = parser.parse_args()
    if given.job == "sweeps":
        sweeps(given.topics)
    else:
        accuracy(given.topics, given.steps, given.strength)
