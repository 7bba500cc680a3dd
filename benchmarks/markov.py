"""How fast the recursions over hidden states are, in CPU seconds of one thread, beside hmmlearn.

python benchmarks/markov.py steps       one EM iteration of hmmlearn's GaussianHMM (diag, scaling) / each recursion
python benchmarks/markov.py sweep       the same / a whole blocked sweep of IHMM: emissions, path, parameters,
                                        log joint, 30 in a row as in a fit; also with as many empty states
python benchmarks/markov.py short       the same rows as 2,000 short sequences / as one long one
python benchmarks/markov.py cold        the first path drawn in a new process without any compiled code

hmmlearn is not among the requirements: pip install hmmlearn. Its iteration takes a backward pass and the M step more
than a draw, and computes the emissions itself.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable

import numpy as np
import torch
from timing import choose, medians, seconds

from regbayes.inference.markov.paths import filter_states, sample_paths, smooth, viterbi

NUM_STEPS, NUM_FEATURES = 20_000, 4
NUM_SWEEPS = 30  # in a row, as in a fit: the first after another program finds its data in no cache


def observations(num_states: int) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Rows [N, D] of a chain that stays with probability 0.9, means [K, D], log emission [N, K]."""
    rng = np.random.default_rng(0)
    means = 2 * rng.normal(size=(num_states, NUM_FEATURES))
    states = rng.integers(num_states, size=NUM_STEPS)[
        np.maximum.accumulate(np.arange(NUM_STEPS) * (rng.random(NUM_STEPS) < 0.1))
    ]
    X = means[states] + rng.normal(size=(NUM_STEPS, NUM_FEATURES))
    return X, means, torch.from_numpy(-0.5 * ((X[:, None] - means) ** 2).sum(-1))


def log_tables(num_states: int) -> tuple[torch.Tensor, torch.Tensor]:
    step = np.full((num_states, num_states), 0.1 / num_states) + 0.9 * np.eye(num_states)
    return torch.full((num_states,), 1 / num_states, dtype=torch.float64).log(), torch.from_numpy(step).log()


def recursions(num_states: int, lengths: list[int]) -> dict[str, Callable[[], object]]:
    emission = observations(num_states)[2]
    start, transition = log_tables(num_states)
    uniforms = torch.rand(NUM_STEPS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    path = sample_paths(start, transition, emission, lengths, uniforms)
    log_steps = torch.cat([start[path[:1]], transition[path[:-1], path[1:]]])
    firsts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    log_steps[firsts] = start[path[firsts]]
    slices = log_steps + uniforms.flip(0).log()  # under a path, as in a sweep
    found = {
        "sample_paths": lambda: sample_paths(start, transition, emission, lengths, uniforms),
        "sample_paths, slices": lambda: sample_paths(start, transition, emission, lengths, uniforms, slices),
        "smooth": lambda: smooth(start, transition, emission, lengths),
        "filter_states": lambda: filter_states(start, transition, emission, lengths),
        "viterbi": lambda: viterbi(start, transition, emission, lengths),
    }
    for function in found.values():
        function()  # compiles
    return found


def sweeper(num_states: int, truncation: int) -> Callable[[], object]:
    """Sweeps one after another, as in a fit, from the last state, which has settled; each with the log joint that a fit
    records after it."""
    from regbayes.inference.gibbs import sequence
    from regbayes.models import IHMM, DiagonalGaussian
    from regbayes.models.priors.laws import Truncated

    X, means, _ = observations(num_states)
    model, data = IHMM(DiagonalGaussian(), truncation=truncation).prepare(torch.from_numpy(X))
    data, generator = sequence.prepare_sequences(model, data), torch.Generator().manual_seed(0)
    law = Truncated(model.prior, truncation)
    state = sequence.Paths(law, data).begin(torch.from_numpy(((X[:, None] - means) ** 2).sum(-1).argmin(1)), model)

    def sweeps() -> None:
        nonlocal state
        for _ in range(NUM_SWEEPS):
            state = sequence.sweep(state, data, model, generator, scan="blocked")
            sequence.log_joint(state, data, model, law=law)

    sweeps()
    return sweeps


def fitter(num_states: int) -> Callable[[int], None]:
    """So many EM iterations of hmmlearn."""
    from hmmlearn.hmm import GaussianHMM

    logging.getLogger("hmmlearn").setLevel(logging.ERROR)
    X, means, _ = observations(num_states)
    start, transition = log_tables(num_states)

    def fit(num_iterations: int) -> None:
        settings = {"n_iter": num_iterations, "tol": -np.inf, "init_params": "", "implementation": "scaling"}
        model = GaussianHMM(num_states, "diag", **settings)
        model.startprob_, model.transmat_ = start.exp().numpy(), transition.exp().numpy()
        model.means_, model.covars_ = means.copy(), np.ones_like(means)
        model.fit(X)

    return fit


def beside_hmmlearn(jobs: Callable[[int], dict[str, Callable[[], object]]], number: int = 1) -> None:
    """Jobs that do each thing so many times."""
    for num_states in (10, 50):
        ours, fit = jobs(num_states), fitter(num_states)
        *spent, short, long = medians(*ours.values(), lambda fit=fit: fit(1), lambda fit=fit: fit(4))
        iteration = (long - short) / 3
        for name, value in zip(ours, spent, strict=True):
            ratio, each = iteration * number / value, value / number
            print(f"K={num_states} {name}: {1e3 * iteration:.1f} ms / {1e3 * each:.1f} ms = {ratio:.1f}")


def steps() -> None:
    beside_hmmlearn(lambda num_states: recursions(num_states, [NUM_STEPS]))


def sweep() -> None:
    beside_hmmlearn(
        lambda num_states: {
            "whole sweep": sweeper(num_states, num_states),
            "with as many empty states": sweeper(num_states, 2 * num_states),
        },
        NUM_SWEEPS,
    )


def short() -> None:
    for num_states in (10, 50):
        split, whole = recursions(num_states, [10] * (NUM_STEPS // 10)), recursions(num_states, [NUM_STEPS])
        spent = medians(*split.values(), *whole.values())
        for index, name in enumerate(split):
            ratio = spent[index] / spent[index + len(split)]
            print(f"K={num_states} {name}: {1e3 * spent[index]:.1f} ms, {ratio:.2f} times one long sequence")


def cold() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        for name in ("cold", "warm"):
            subprocess.run([sys.executable, __file__, "first", name], env=environment, check=True)


def first(name: str) -> None:
    import numba

    arguments = *log_tables(3), torch.zeros(5, 3, dtype=torch.float64), [5], torch.full((5,), 0.5)
    spent = seconds(lambda: sample_paths(*arguments))
    print(f"sample_paths, {name}: {spent:.2f} CPU s (numba {numba.__version__} imported before)")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    choose(__doc__, steps=steps, sweep=sweep, short=short, cold=cold, first=first)
