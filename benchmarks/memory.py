"""Peak memory of the Gibbs scans, of SVI and of small variance at 10^5 rows, each fit in a process of its own.

python benchmarks/memory.py scans [WORD ...]    all scans, or those whose names have one of these words in them
python benchmarks/memory.py limits [WORD ...]   SVI, on all points and in minibatches of 1,000, and small variance
python benchmarks/memory.py fit NAME            one of them

A fit has its customary start and three sweeps, of Gibbs the last two of which are kept as draws. Fits to a quarter of
the rows and to all of them are forks of a process that has the data (the second column) and has loaded machine code:
the bytes are those that they take beside both, and the exponent is that of the growth from one to the other, 1 for
linear.

`BNMC collapsed` is linear too, but not meant for so many rows: its family is a `Product`, which is visited in tensor
code (169 CPU seconds for three sweeps). scan='slice' takes one second for them.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ctypes
import math
import multiprocessing
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from timing import choose, seconds

from regbayes import models as m
from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.models.latent_features import FeatureData

NUM_ROWS, FEW_ROWS = 100_000, 200
Arguments = dict[str, Any]  # of a fit, data among them


# -- data --------------------------------------------------------------------------------------------------------------


def clusters(num_rows: int) -> Arguments:
    """Rows of 20 clusters in 8 columns; a label that is linear in them."""
    rng = np.random.default_rng(0)
    X = 4 * rng.normal(size=(20, 8))[rng.integers(20, size=num_rows)] + rng.normal(size=(num_rows, 8))
    return {"X": X, "y": np.where(X @ rng.normal(size=8) > 0, 1, -1)}


def rows_alone(num_rows: int) -> Arguments:
    return {"X": clusters(num_rows)["X"]}


def sequences(num_rows: int) -> Arguments:
    """Sequences of 100 steps: each stays in its cluster with probability .9."""
    rng = np.random.default_rng(0)
    means, moves = 4 * rng.normal(size=(10, 8)), rng.random(num_rows) > 0.9
    states = rng.integers(10, size=num_rows)[moves.cumsum()]
    return {"X": means[states] + rng.normal(size=(num_rows, 8)), "lengths": [100] * (num_rows // 100)}


def features(num_rows: int) -> Arguments:
    """Rows of 6 binary features in 20 columns; a label that is linear in the features."""
    rng = np.random.default_rng(0)
    bits = rng.random((num_rows, 6)) < 0.3
    X = bits @ (2 * rng.normal(size=(6, 20))) + rng.normal(size=(num_rows, 20))
    return {"X": X, "y": np.where(bits @ rng.normal(size=6) > 0, 1, -1)}


def features_alone(num_rows: int) -> Arguments:
    return {"X": features(num_rows)["X"]}


def label_sets(num_rows: int) -> Arguments:
    """Rows of 20 clusters in 8 columns; 6 labels, each of half of the clusters."""
    rng, X = np.random.default_rng(0), clusters(num_rows)["X"]
    return {"X": X, "y": (X @ rng.normal(size=(8, 6)) > 1).astype(float)}


def documents(num_rows: int) -> Arguments:
    """Documents of 20 tokens of 1,000 words from 10 topics, sparse; a label for half of the topics."""
    rng = np.random.default_rng(0)
    topic = rng.integers(10, size=(num_rows, 1))
    words = (100 * topic + rng.integers(150, size=(num_rows, 20))) % 1000
    places = np.arange(num_rows).repeat(20), words.ravel()
    return {"X": coo_array((np.ones(words.size), places), (num_rows, 1000)).tocsr(), "y": (topic[:, 0] < 5).astype(int)}


def documents_alone(num_rows: int) -> Arguments:
    return {"X": documents(num_rows)["X"]}


# -- fits --------------------------------------------------------------------------------------------------------------


Cases = dict[str, tuple[Any, Any, Callable[[int], Arguments]]]
"""By name a model, a backend and the data of so many rows."""


def scan_cases() -> Cases:
    """Every Gibbs scan of every model."""
    found: dict[str, tuple[Any, str, Callable[[int], Arguments]]] = {}
    several: list[tuple[Any, tuple[str, ...], Callable[[int], Arguments]]] = [
        (m.DPM(), ("collapsed", "slice", "blocked"), rows_alone),
        (m.InfiniteSVM(), ("collapsed", "slice", "blocked"), clusters),
        (m.DDPM(), ("collapsed", "slice", "blocked"), rows_alone),
        (m.IHMM(), ("direct", "beam", "blocked"), sequences),
        (m.DIH(), ("direct", "beam", "blocked"), sequences),
        (m.LatentFeatureModel(), ("collapsed", "slice", "blocked"), features_alone),
        (m.InfiniteLatentSVM(), ("collapsed", "slice", "blocked"), features),
        (m.MultiTaskInfiniteLatentSVM(), ("blocked",), label_sets),
        (m.BNMC(), ("collapsed", "slice", "blocked"), label_sets),
        (m.LDA(num_topics=10), ("collapsed",), documents_alone),
        (m.MedLDA(num_topics=10), ("collapsed",), documents),
    ]
    for model, scans, data in several:
        found |= {f"{type(model).__name__} {scan}": (model, scan, data) for scan in scans}
    for joint in ("and", "multinomial"):
        found[f"BNMC {joint} blocked"] = m.BNMC(joint=joint), "blocked", label_sets
    return {name: (model, _gibbs(model, scan), data) for name, (model, scan, data) in found.items()}


def _gibbs(model: Any, scan: str) -> Gibbs:
    start = "one" if issubclass(model.data_type, FeatureData) else "random"
    return Gibbs(scan=scan, init=start, num_samples=2, num_warmup=1, progress=False)


def limit_cases() -> Cases:
    """SVI and small variance of every model that they serve."""
    data = {
        m.DPM(): rows_alone,
        m.InfiniteSVM(): clusters,
        m.DDPM(): rows_alone,
        m.IHMM(): sequences,
        m.DIH(): sequences,
        m.LatentFeatureModel(): features_alone,
        m.InfiniteLatentSVM(): features,
        m.MultiTaskInfiniteLatentSVM(): label_sets,
        m.BNMC(): label_sets,
        m.LDA(num_topics=10): documents_alone,
        m.MedLDA(num_topics=10): documents,
    }
    backends = {
        "SVI": SVI(num_steps=3, progress=False),
        "SVI in minibatches": SVI(num_steps=3, batch_size=1000, num_full_steps=1, progress=False),
        "small variance": SmallVariance(max_steps=3, progress=False),
    }
    found: Cases = {}
    for model, make in data.items():
        for name, backend in backends.items():
            with suppress(NotImplementedError, ValueError):  # of many tasks all rows alone
                backend.admit(model)
                found[f"{type(model).__name__} {name}"] = model, backend, make
    return found


def fit(name: str) -> None:
    """Print what fits to a quarter of the rows and to all of them take."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, backend, make = (scan_cases() | limit_cases())[name]

    def run(data: Arguments) -> object:
        return backend.fit(model, **data)

    few = make(FEW_ROWS)
    run(few)  # machine code is loaded
    sizes = NUM_ROWS // 4, NUM_ROWS
    (less, _, _), (most, spent, found) = (beyond(run, make(num_rows), few) for num_rows in sizes)
    data = sum(map(size, make(NUM_ROWS).values()))
    numbers = "".join(f"{number / 1e6:10.1f} MB" for number in (data, less, most))
    print(f"{name:32}{numbers}{math.log(most / less, 4):10.2f}{spent:10.1f} s   {found}", flush=True)


def beyond(run: Callable[[Arguments], object], data: Arguments, few: Arguments) -> tuple[int, float, str]:
    """(bytes by which the peak of a run is above what there is before it, CPU seconds, its result), in a fork."""
    context = multiprocessing.get_context("fork")
    results, trim = context.SimpleQueue(), getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:  # what made the data is not there to be used again
        trim(0)

    def work() -> None:
        run(few)  # a fork sees again what it has of libraries when it first uses it
        before, found = peak(), []
        spent = seconds(lambda: found.append(run(data)))
        results.put((peak() - before, spent, repr(found[0])))

    process = context.Process(target=work)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit("The fit failed.")
    return results.get()


def peak() -> int:
    """Bytes of this process at its largest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def size(part: Any) -> int:
    """Bytes of an array, dense or sparse, or of a list of numbers."""
    if hasattr(part, "indptr"):
        return int(part.data.nbytes + part.indices.nbytes + part.indptr.nbytes)
    return int(np.asarray(part).nbytes)


def scans(*words: str) -> None:
    _fit_all(scan_cases(), words)


def limits(*words: str) -> None:
    _fit_all(limit_cases(), words)


def _fit_all(cases: Cases, words: tuple[str, ...]) -> None:
    print(f"{'':32}{'data':>13}{NUM_ROWS // 4:>13}{NUM_ROWS:>13}{'exponent':>10}{'fit':>12}", flush=True)
    for name in cases:
        if not words or any(word in name for word in words):
            subprocess.run([sys.executable, __file__, "fit", name], check=True)


if __name__ == "__main__":
    choose(__doc__, scans=scans, limits=limits, fit=fit)
