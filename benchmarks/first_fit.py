"""What a first fit costs before any machine code is kept: CPU seconds of a fresh process, less its imports.

    python benchmarks/first_fit.py [WORD ...]    models whose name has one of the words; all of them
    python benchmarks/first_fit.py one MODEL BACKEND    in this process

Each model with its defaults under each backend, on 60 made-up rows, with an empty folder of numba's. The next
fit in the same process is what all later ones cost.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

BACKENDS = {
    "SmallVariance": ("SmallVariance", {"max_steps": 3}),
    "SVI": ("SVI", {"num_steps": 3}),
    "SVI averaging": ("SVI", {"num_steps": 3, "rule": "averaging"}),
    "Gibbs": ("Gibbs", {"num_samples": 2, "num_warmup": 2}),
    "Gibbs blocked": ("Gibbs", {"num_samples": 2, "num_warmup": 2, "scan": "blocked"}),
}
WORDS = ("MedLDA", "LDA")  # models of counts
MODELS = {
    **dict.fromkeys(("DPM", "LatentFeatureModel", "LDA"), ("SmallVariance", "SVI", "Gibbs", "Gibbs blocked")),
    "DDPM": ("SmallVariance", "SVI", "Gibbs", "Gibbs blocked"),
    "InfiniteSVM": tuple(BACKENDS),
    **dict.fromkeys(("IHMM", "DIH"), ("SmallVariance", "SVI", "Gibbs", "Gibbs blocked")),
    "BNMC": ("SmallVariance", "SVI", "Gibbs", "Gibbs blocked"),
    "InfiniteLatentSVM": tuple(BACKENDS),
    "MultiTaskInfiniteLatentSVM": ("SmallVariance", "SVI", "SVI averaging", "Gibbs blocked"),
    "MedLDA": ("SVI", "SVI averaging", "Gibbs"),
} | {"LDA": ("SVI", "Gibbs")}


def data(model: str) -> tuple[Any, Any, Any]:
    """X, y and lengths of 60 rows."""
    import numpy as np

    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=60)
    X = rng.normal(size=(3, 5))[labels] * 2 + rng.normal(size=(60, 5))
    if model in WORDS:
        X = rng.poisson(3 * np.abs(X))
    y: Any = labels
    if model in ("BNMC", "MultiTaskInfiniteLatentSVM"):
        y = (rng.random((60, 3)) < 0.4).astype(float)
    unlabelled = model in ("DPM", "DDPM", "IHMM", "DIH", "LDA", "LatentFeatureModel")
    return X, None if unlabelled else y, [30, 30] if model in ("IHMM", "DIH") else None


def one(name: str, backend: str) -> None:
    """A first fit, the next one, and what was compiled."""
    import torch

    torch.set_num_threads(1)
    from regbayes import inference, models

    X, y, lengths = data(name)
    model, (kind, options) = getattr(models, name)(), BACKENDS[backend]
    seconds: list[float] = []
    for _ in range(2):
        started = time.process_time()
        getattr(inference, kind)(progress=False, **options).fit(model, X, y, lengths=lengths)
        seconds.append(time.process_time() - started)
    print(f"{name}, {backend}: first fit {seconds[0]:.2f} s, the next {seconds[1]:.2f} s", flush=True)


def main() -> None:
    """Each in a process of its own; at the end the longest first fit of `InfiniteLatentSVM`, and of the others."""
    words, longest = sys.argv[1:], {"InfiniteLatentSVM": 0.0, "others": 0.0}
    for name, backends in MODELS.items():
        if words and not any(word.lower() in name.lower() for word in words):
            continue
        for backend in backends:
            with tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": folder}
                command = [sys.executable, __file__, "one", name, backend]
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
            print(done.stdout.strip() or (done.stderr.strip() or "no word").splitlines()[-1], flush=True)
            found = re.search(r"first fit ([\d.]+)", done.stdout)
            kind = name if name in longest else "others"
            longest[kind] = max(longest[kind], float(found[1]) if found else float("inf"))
    for kind, seconds in longest.items():
        print(f"longest first fit of {kind} = {seconds:.2f} s")


if __name__ == "__main__":
    one(*sys.argv[2:]) if sys.argv[1:2] == ["one"] else main()
