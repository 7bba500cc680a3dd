"""Gibbs sampling of a mixture of few rows: N = 100 in the plane, in CPU seconds of one thread.

python benchmarks/small_data.py sweeps       one sweep with all that is kept of it, with the default moves and without
python benchmarks/small_data.py effective    effective draws per CPU second, with the default moves / without
python benchmarks/small_data.py waits        host synchronisations of a slice sweep of InfiniteSVM with moves

The rows are of four Gaussians whose means are drawn `spread` times as wide as they are. Warm-up and start do not count.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro.ops.stats import effective_sample_size
from timing import choose, medians
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regbayes.inference import Gibbs
from regbayes.models import DPM, DiagonalGaussian, FullGaussian, InfiniteSVM

NUM_WARMUP, NUM_DRAWS = 300, 3000
NAMES = "K", "log joint"


def blobs(spread: float, seed: int, num_data: int = 100) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centers = spread * torch.randn(4, 2, generator=generator, dtype=torch.float64)
    z = torch.randint(4, (num_data,), generator=generator)
    return centers[z] + torch.randn(num_data, 2, generator=generator, dtype=torch.float64)


def chain(backend: Gibbs, model: Any, *data: Tensor) -> Callable[[], dict[str, Tensor]]:
    """A sweep and what is kept of it, after the warm-up."""
    kernel, model, rows, _ = backend.prepare(model, *data, *[None] * (3 - len(data)))
    generator, step = torch.Generator().manual_seed(1), 0
    state = kernel.init(model, rows, generator)

    def sweep() -> dict[str, Tensor]:
        nonlocal state, step
        state, step = kernel.sweep(state, rows, model, generator, step), step + 1
        return kernel.draw(state, rows, model)

    for _ in range(NUM_WARMUP):
        sweep()
    return sweep


def backends() -> list[Gibbs]:
    return [Gibbs(num_warmup=NUM_WARMUP), Gibbs(num_warmup=NUM_WARMUP, split_merge=0)]


def sweeps() -> None:
    for family in (DiagonalGaussian, FullGaussian):
        both = [chain(backend, DPM(family()), blobs(3.0, 0)) for backend in backends()]
        found = medians(*(lambda sweep=sweep: [sweep() for _ in range(50)] for sweep in both), repeats=15)
        print(f"{family.__name__}: {20 * found[0]:.2f} ms with moves, {20 * found[1]:.2f} ms without", flush=True)


def rates(sweeps: list[Callable[[], dict[str, Tensor]]]) -> np.ndarray:
    """Effective draws of K and of the log joint per CPU second [chains, 2] of chains that take turns."""
    seconds, series = np.zeros((len(sweeps), 1)), torch.zeros(len(sweeps), NUM_DRAWS, 2, dtype=torch.float64)
    for turn in torch.arange(NUM_DRAWS).split(50):
        for which, sweep in enumerate(sweeps):
            start = time.process_time()
            draws = [sweep() for _ in turn]
            seconds[which] += time.process_time() - start
            found = [[len(draw["weights"]), float(draw["log_joint"])] for draw in draws]
            series[which, turn] = torch.tensor(found, dtype=torch.float64)
    sizes = [effective_sample_size(one.unsqueeze(0), chain_dim=0, sample_dim=1).numpy() for one in series]
    return np.stack(sizes) / seconds


def effective(num_sets: str = "2") -> None:
    gains = []
    for family, spread in ((f, s) for f in (DiagonalGaussian, FullGaussian) for s in (6.0, 3.0, 2.0, 1.0)):
        for seed in range(int(num_sets)):
            X = blobs(spread, seed)
            moves, none = rates([chain(backend, DPM(family()), X) for backend in backends()])
            gains.append(moves / none)
            cells = (f"{name} {a:.0f} / {b:.0f} = {a / b:.2f}" for name, a, b in zip(NAMES, moves, none, strict=True))
            print(f"{family.__name__:17} spread {spread:g} set {seed}:", *cells, sep="   ", flush=True)
    print(
        "geometric means (K, log joint):", np.exp(np.log(gains).mean(0)).round(2), "least:", np.min(gains, 0).round(2)
    )


class Waits(TorchDispatchMode):
    """Counts the operations for whose outcome a GPU would have to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, kinds: Any, arguments: Any = (), options: Any = None) -> Any:
        self.seen["operations"] += 1
        if any(word in str(function) for word in ("_local_scalar_dense", "nonzero", "unique", "equal", "item")):
            self.seen["waits"] += 1
        return function(*arguments, **(options or {}))


def waits(num_sweeps: int = 40) -> None:
    X = blobs(3.0, 0, 200)
    y = (torch.arange(200) % 2).long()
    for when, num_warmup in (("in the warm-up", 10**6), ("after it", 0)):
        sweep = chain(Gibbs(scan="slice", num_warmup=num_warmup), InfiniteSVM(DiagonalGaussian()), X, y)
        with Waits() as counted:
            for _ in range(num_sweeps):
                sweep()
        print(f"{when}:", *(f"{number / num_sweeps:.1f} {what}" for what, number in counted.seen.items()), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    choose(__doc__, sweeps=sweeps, effective=effective, waits=waits)
