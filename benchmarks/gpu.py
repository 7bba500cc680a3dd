"""From which number of rows a GPU pays, and how many operations a sweep asks of it.

python benchmarks/gpu.py rows [MOST]    seconds a sweep on all cores of the CPU and on the first GPU, for 10^3 rows
                                        of 32 columns up to MOST (10^6); stops where torch finds no GPU
python benchmarks/gpu.py operations     operations a sweep of every model and backend launches, views left out,
                                        counted without a GPU on a device that pretends to be one
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regbayes.inference import SVI, Backend, Gibbs, SmallVariance
from regbayes.models import InfiniteSVM

NUM_SWEEPS = 10
BACKENDS: dict[str, Backend] = {
    "SVI": SVI(num_steps=NUM_SWEEPS, tolerance=0.0, progress=False),
    "small variance": SmallVariance(num_components=50, num_restarts=1, max_steps=NUM_SWEEPS, progress=False),
    "Gibbs, blocked": Gibbs(NUM_SWEEPS, 0, scan="blocked", split_merge=0, progress=False),
}


def main() -> None:
    commands = {"rows": rows, "operations": operations}
    if sys.argv[1:2] not in [[name] for name in commands]:
        sys.exit(__doc__)
    commands[sys.argv[1]]()


def rows() -> None:
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: nothing was measured.")
    most, number = float(sys.argv[2] if len(sys.argv) > 2 else 1e6), 1000
    print(torch.cuda.get_device_name(), "beside", torch.get_num_threads(), "threads")
    while number <= most:
        for name, backend in BACKENDS.items():
            cpu, gpu = (seconds(backend, number, device) for device in ("cpu", "cuda"))
            print(f"{name}, {number} rows: CPU {cpu:.4f} s, GPU {gpu:.4f} s a sweep, CPU / GPU = {cpu / gpu:.2f}")
        number *= 10


def operations() -> None:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from pretend_device import pretend_device
    from sweep_counts import CELLS, counted

    warnings.simplefilter("ignore")
    with pretend_device() as device:
        for way, name in CELLS:
            print(f"{way:20s} {name:20s} {counted(way, name, Launches, device):6.0f}", flush=True)


class Launches(TorchDispatchMode):
    """Counts the operations on tensors that are not on the host; a view launches nothing."""

    number = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, torch.Tensor)]
        self.number += not function.is_view and any(tensor.device.type != "cpu" for tensor in tensors)
        return found


def seconds(backend: Backend, number: int, device: str) -> float:
    """Of a sweep, the start of the fit included; a first, shorter fit loads what is compiled."""
    stream = torch.Generator().manual_seed(0)
    y = torch.randint(10, (number,), generator=stream)
    X = 3 * torch.randn(10, 32, generator=stream)[y] + torch.randn(number, 32, generator=stream)
    X, y, model = X.double().to(device), y.to(device), InfiniteSVM(truncation=50)
    backend.fit(model, X[:500], y[:500])
    start = time.perf_counter()
    backend.fit(model, X, y).log_mixture.sum().item()
    return (time.perf_counter() - start) / NUM_SWEEPS


if __name__ == "__main__":
    main()
