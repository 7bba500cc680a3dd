"""Multi-label classification: rows a CPU second beside online LDA, and test accuracy beside logistic regressions.

    OMP_NUM_THREADS=1 python benchmarks/multi_label.py speed [--topics 40] [--batch 1024]
    OMP_NUM_THREADS=1 python benchmarks/multi_label.py accuracy [--sets emotions yeast scene]

`speed`: one stochastic step of BNMC on a batch of 20 newsgroups, sparse counts with the group as the label, against
`LatentDirichletAllocation(learning_method="online").partial_fit` of the same batch and number of components, in turn.
`accuracy`: the customary split, columns standardized by the training rows, nothing tuned on the test rows; the rival is
one `LogisticRegression` for each label. CPU seconds of fit alone.
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
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import coverage_error, f1_score, hamming_loss, label_ranking_loss, log_loss
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler
from timing import seconds

from regbayes.datasets import load
from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.inference.svi import multi_label, multi_label_coupled
from regbayes.inference.svi.steps import Minibatch
from regbayes.models import BNMC, Hinge, Logistic, MultinomialDirichlet, PrincipalDirections

WEIGHT_SCALE = 0.3


def speed(num_topics: int, batch_size: int) -> None:
    data = load("newsgroups20")
    presence = np.asarray((data.X > 0).sum(0)).ravel()
    X = data.X.tocsr()[:, np.flatnonzero((presence >= 5) & (presence <= 0.1 * len(data.y)))]
    Y = (data.y[:, None] == np.arange(20)).astype(float)
    batch = np.random.default_rng(0).choice(X.shape[0], batch_size, replace=False)
    lda = LatentDirichletAllocation(num_topics, learning_method="online", random_state=0)
    jobs = {"LatentDirichletAllocation, online": partial(lda.partial_fit, X[batch])}
    for joint, kernel in (("product", multi_label), ("and", multi_label_coupled)):
        seen = PrincipalDirections(50, proportions=True)
        model, rows = BNMC(MultinomialDirichlet(), feature_map=seen, truncation=num_topics, joint=joint).prepare(X, Y)
        first = rows.rows(torch.from_numpy(batch))
        state = kernel.init(model, first, torch.Generator().manual_seed(0))
        step = partial(kernel.stochastic_sweep, state, Minibatch(first, len(Y) / batch_size), model, 0.5)
        jobs[f"BNMC, {joint}"] = step
    spent: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(5):
        for name, job in jobs.items():
            spent[name].append(seconds(job))
    for name, times in spent.items():
        middle = float(np.median(times))
        print(f"{name:36} {1e3 * middle:8.1f} ms a batch   {batch_size / middle:10.0f} rows a second", flush=True)


def accuracy(names: list[str]) -> None:
    for name in names:
        data = load(name)
        scaler = StandardScaler().fit(data.X)
        X, X_test = scaler.transform(data.X), scaler.transform(data.X_test)
        rival = OneVsRestClassifier(LogisticRegression(C=WEIGHT_SCALE**2, max_iter=1000))
        _, spent = timed(rival.fit, X, data.y)
        report(name, "LogisticRegression", spent, data.y_test, rival.predict_proba(X_test))
        contestants = {
            "product, SVI": (BNMC(weight_scale=WEIGHT_SCALE), SVI(progress=False)),
            "product, hinge, SVI": (BNMC(loss=Hinge(), weight_scale=WEIGHT_SCALE), SVI(progress=False)),
            "product, Gibbs": (BNMC(weight_scale=WEIGHT_SCALE), Gibbs(20, 40, progress=False)),
            "product, SmallVariance": (BNMC(weight_scale=WEIGHT_SCALE), SmallVariance(progress=False)),
            "and, SVI": (BNMC(loss=Logistic(), joint="and", weight_scale=WEIGHT_SCALE), SVI(progress=False)),
            "and, SmallVariance": (BNMC(joint="and", weight_scale=WEIGHT_SCALE), SmallVariance(progress=False)),
        }
        for label, (model, backend) in contestants.items():
            posterior, spent = timed(backend.fit, model, X, data.y)
            report(name, label, spent, data.y_test, posterior.predict_proba(X_test))


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What it returns, and its CPU seconds."""
    found: list[Any] = []
    spent = seconds(lambda: found.append(function(*arguments)))
    return found[0], spent


def report(name: str, label: str, spent: float, truth: np.ndarray, p: np.ndarray) -> None:
    sets = (p > 0.5).astype(int)
    scores = {
        "ranking loss": label_ranking_loss(truth, p),
        "coverage": coverage_error(truth, p),
        "hamming": hamming_loss(truth, sets),
        "micro F1": f1_score(truth, sets, average="micro"),
        "log loss": log_loss(truth.ravel(), p.ravel().clip(1e-9, 1 - 1e-9)),
    }
    shown = "   ".join(f"{key} {value:.3f}" for key, value in scores.items())
    print(f"{name:9} {label:24} {spent:6.1f} s   {shown}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["speed", "accuracy"])
    parser.add_argument("--topics", type=int, default=40)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--sets", nargs="+", default=["emotions", "yeast", "scene"])
    given = parser.parse_args()
    if given.job == "speed":
        speed(given.topics, given.batch)
    else:
        accuracy(given.sets)
