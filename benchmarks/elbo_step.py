"""CPU time of one step of coordinate ascent beside one Pyro step of the same truncated model: TraceEnum_ELBO and Adam.

    OMP_NUM_THREADS=1 python benchmarks/elbo_step.py [--rounds 15]
    OMP_NUM_THREADS=1 python benchmarks/elbo_step.py --memory N,D,T    peak memory of a fit beside that of its data

Pyro's step enumerates the assignments and moves a mean-field normal guide of everything else. Both contestants get a
resolved model and CPU seconds of one thread, one step in turn; medians.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.infer.autoguide import AutoNormal
from sklearn.datasets import load_breast_cancer, load_wine
from timing import seconds

from regbayes.inference import SVI
from regbayes.inference.svi.partition import kernel as partition
from regbayes.models import DPM, InfiniteSVM, Logistic


def ours(model, X, y) -> Callable[[], object]:
    """Sticks, family, classifiers, responsibilities and the ELBO, a few steps from the start."""
    data = model.data(X, y)
    state = partition.init(model, data, torch.Generator().manual_seed(0))
    for _ in range(5):
        state = partition.ascend(state, data, model)
    return lambda: partition.ascend(state, data, model)


def pyros(model, X, y) -> Callable[[], object]:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = AutoNormal(poutine.block(model, hide=["assignments"]), init_scale=0.01)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), TraceEnum_ELBO(max_plate_nesting=1))
    svi.step(X, y)
    return lambda: svi.step(X, y)


def compare(name: str, model, X, y, num_rounds: int) -> None:
    X = torch.as_tensor(X)
    y = None if y is None else torch.as_tensor(y)
    model = model.resolve(X, y)
    contestants = ours(model, X, y), pyros(model, X, y)
    own, other = np.median([[seconds(step) for step in contestants] for _ in range(num_rounds)], 0) * 1e3
    print(f"{name:44} {own:8.2f} ms   Pyro {other:8.2f} ms   ratio 1/{other / own:.1f}", flush=True)


def memory(N: int, D: int, T: int) -> None:
    """What a fit with merges holds at most beyond what was there, in units of the rows."""
    generator = torch.Generator().manual_seed(0)
    X = torch.empty(N, D, dtype=torch.float64)
    for rows in X.split(1000):  # nothing as large as X is left behind
        rows.normal_(generator=generator).add_(6.0 * torch.randint(3, (len(rows), 1), generator=generator))
    y, page = X[:, 0] > X[:, 1], os.sysconf("SC_PAGE_SIZE")
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, page * int(Path("/proc/self/statm").read_text().split()[1]))

    backend, model = SVI(num_steps=8, tolerance=None, progress=False), InfiniteSVM(truncation=T)
    backend.fit(model, X[:1000], y[:1000])  # compiles, and fills pools
    before, watcher = page * int(Path("/proc/self/statm").read_text().split()[1]), threading.Thread(target=watch)
    watcher.start()
    spent = seconds(lambda: backend.fit(model, X, y))
    done.set()
    watcher.join()
    print(f"{N} x {D}, T = {T}: {(peak - before) / X.nbytes:.1f} times the rows, {spent:.1f} CPU s")


def main(num_rounds: int) -> None:
    torch.set_num_threads(1)
    pyro.enable_validation(False)
    warnings.filterwarnings("ignore")
    X, y = load_wine(return_X_y=True)
    compare("DPM diagonal, wine 178 x 13, T = 20", DPM(truncation=20), X, None, num_rounds)
    compare("hinge 3 classes, wine 178 x 13, T = 20", InfiniteSVM(truncation=20), X, y, num_rounds)
    X, y = load_breast_cancer(return_X_y=True)
    compare("hinge, breast cancer 569 x 30, T = 20", InfiniteSVM(truncation=20), X, y, num_rounds)
    compare("logistic, breast cancer 569 x 30, T = 20", InfiniteSVM(loss=Logistic()), X, y, num_rounds)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 10)) + 4 * rng.integers(3, size=(20_000, 1))
    y = (X[:, 0] > X.mean(0)[0]).astype(int)
    compare("hinge, 20000 x 10, T = 20", InfiniteSVM(truncation=20), X, y, num_rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory", metavar="N,D,T")
    options = parser.parse_args()
    if options.memory:
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore")
        memory(*map(int, options.memory.split(",")))
    else:
        main(options.rounds)
