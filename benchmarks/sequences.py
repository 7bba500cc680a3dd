"""How fast a direct assignment scan of an infinite HMM is, in CPU seconds of one thread, beside hmmlearn.

python benchmarks/sequences.py direct       one scan / one EM iteration of hmmlearn's GaussianHMM
python benchmarks/sequences.py cold         the first scan in a new process without any compiled code
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import logging
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from timing import choose, cold_and_warm

FAMILIES = ("SphericalGaussian", "DiagonalGaussian", "FullGaussian", "MultinomialDirichlet", "PoissonGamma")
NUM_SCANS = 10  # in a row, as in a fit: the first after another program finds its data in no cache


def chain(num_steps: int, num_features: int, num_states: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, D] of a sticky chain and their states 0..K-1, all of them visited."""
    rng = np.random.default_rng(0)
    rows = (0.5 * rng.dirichlet(np.full(num_states, 0.2), num_states) + 0.5 * np.eye(num_states)).cumsum(1)
    states = [0]
    for uniform in rng.random(num_steps - 1):
        states.append(int(np.searchsorted(rows[states[-1]], uniform * rows[states[-1], -1])))
    X = 2 * rng.normal(size=(num_states, num_features))[states] + rng.normal(size=(num_steps, num_features))
    return X, np.unique(states, return_inverse=True)[1]


def scanner(family: str, X: np.ndarray, z: np.ndarray) -> Callable[[], object]:
    """A scan that goes on from its last state, which has settled."""
    from regbayes.inference.gibbs.prepared import prepare_sequences
    from regbayes.inference.gibbs.scans import direct
    from regbayes.inference.gibbs.state import SequenceState
    from regbayes.models import IHMM, likelihoods

    states, num_states = torch.from_numpy(z), int(z.max()) + 1
    model, data = IHMM(getattr(likelihoods, family)()).prepare(torch.from_numpy(X))
    data = prepare_sequences(model, data)
    base = torch.full((num_states + 1,), 1 / (num_states + 1), dtype=torch.float64)
    none, generator = data.X.new_zeros(num_states, 0, 0), torch.Generator().manual_seed(0)
    state = SequenceState(states, none, model.prior.start(data.X), base=base)

    def scan() -> None:
        nonlocal state
        state = direct.scan(state, data, model, generator)

    for _ in range(3):
        scan()
    return scan


def fitter(X: np.ndarray, z: np.ndarray) -> Callable[[int], float]:
    """CPU seconds of so many EM iterations from the true states."""
    from hmmlearn.hmm import GaussianHMM

    logging.getLogger("hmmlearn").setLevel(logging.ERROR)
    num_states = int(z.max()) + 1

    def seconds(num_iterations: int) -> float:
        settings = {"n_iter": num_iterations, "tol": -np.inf, "init_params": "", "implementation": "scaling"}
        hmm = GaussianHMM(num_states, "diag", **settings)
        hmm.startprob_ = np.full(num_states, 1 / num_states)
        hmm.transmat_ = np.full((num_states, num_states), 1 / num_states)
        hmm.means_ = np.stack([X[z == k].mean(0) for k in range(num_states)])
        hmm.covars_ = np.ones_like(hmm.means_)
        start = time.process_time()
        hmm.fit(X)
        return time.process_time() - start

    return seconds


def direct() -> None:
    for num_states in (10, 50):
        X, z = chain(20_000, 4, num_states)
        scan, fit = scanner("DiagonalGaussian", X, z), fitter(X, z)
        ours, theirs = [], []
        for _ in range(9):  # in turn, so that both see the same machine
            start = time.process_time()
            for _ in range(NUM_SCANS):
                scan()
            ours.append((time.process_time() - start) / NUM_SCANS)
            theirs.append((fit(4) - fit(1)) / 3)
        own, other = np.median(ours), np.median(theirs)
        print(f"{num_states} states: {1e3 * own:.1f} ms / {1e3 * other:.1f} ms = {own / other:.2f}")


def first(family: str) -> None:
    rng = np.random.default_rng(0)
    scanner(family, rng.integers(0, 2, (30, 3)).astype(float), np.arange(30) % 3)()


if __name__ == "__main__":
    torch.set_num_threads(1)
    choose(__doc__, direct=direct, cold=partial(cold_and_warm, __file__, FAMILIES), first=first)
