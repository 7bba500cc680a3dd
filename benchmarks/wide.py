"""Gibbs with about as many features as rows, and many classes: 311 rows of 27 classes, 300 Fourier features.

    python benchmarks/wide.py gibbs    CPU seconds a sweep, and the peak memory of the process

The shape of the protein folds, made here. Half of the sweeps are warm-up, with split-merge proposals in each.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import resource
import sys
import time

import numpy as np
import torch

from regbayes.inference import Gibbs
from regbayes.models import InfiniteSVM, RandomFourier

NUM_SWEEPS = 10  # before the draws that are kept, and of these


def main() -> None:
    if sys.argv[1:] != ["gibbs"]:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    y = np.arange(311) % 27
    X = rng.normal(size=(27, 21))[y] + rng.normal(size=(311, 21))
    model = InfiniteSVM(feature_map=RandomFourier(300))
    Gibbs(num_samples=1, num_warmup=1, progress=False).fit(model, X[:60], y[:60])  # loads machine code
    started = time.process_time()
    Gibbs(num_samples=NUM_SWEEPS, num_warmup=NUM_SWEEPS, progress=False).fit(model, X, y)
    print(f"CPU seconds a sweep = {(time.process_time() - started) / (2 * NUM_SWEEPS):.3f}")
    print(f"peak memory, GB = {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.3f}")


if __name__ == "__main__":
    main()
