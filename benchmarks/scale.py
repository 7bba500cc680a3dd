"""Fits among two processes: what they exchange in a sweep beside docs/scale.md, and what two gain over one.

python benchmarks/scale.py bytes             bytes that a rank gives to all-reduces in a sweep: measured, and predicted
python benchmarks/scale.py wall [ROWS]       seconds of a sweep of one process, of two, and their ratio

The kernels are those of points: small variance, SVI, slice and blocked Gibbs, of DPM and of InfiniteSVM. `wall` needs
an idle machine with two cores.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import multiprocessing
import socket
import sys
import time
from contextlib import closing
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import DPM, InfiniteSVM
from regbayes.models.ranks import Ranks

D, K = 32, 50
MODELS: dict[str, Any] = {"DPM": DPM(truncation=K), "InfiniteSVM": InfiniteSVM(truncation=K)}
BACKENDS: dict[str, Any] = {
    "small variance": SmallVariance(num_components=K, num_restarts=1, max_steps=12, tolerance=0.0),
    "SVI": SVI(num_steps=12, tolerance=None),
    "blocked Gibbs": Gibbs(1, 5, scan="blocked", split_merge=0),
    "slice Gibbs": Gibbs(1, 5, scan="slice", split_merge=0, init="random"),
}


def rows(number: int, first: int = 0, last: int | None = None) -> tuple[Tensor, Tensor]:
    """Some of so many rows [n, D] around K centres, and classes [n]: the same rows, however they are split."""
    stream = torch.Generator().manual_seed(0)
    centers = 3 * torch.randn(K, D, generator=stream, dtype=torch.float64)
    place = torch.randint(K, (number,), generator=stream)
    noise = torch.randn(number, D, generator=stream, dtype=torch.float64)
    return (centers[place] + noise)[first:last].clone(), place[first:last] % 2


def predicted(backend: str, model: str, found: int) -> int:
    """Numbers that a sweep exchanges, of so many components, but for small ones. See docs/scale.md."""
    P = D + 1 if model == "InfiniteSVM" else 0
    classifiers = found * P * (P + 1)
    if backend == "small variance":
        return found * (D + 2) + classifiers
    return found * (2 * D + 2) * (1 if backend == "SVI" else 2) + classifiers


def fit(backend: str, model: str, number: int, rank: int, size: int) -> tuple[float, float, list[int], int]:
    """Wall and CPU seconds of a sweep on average, bytes of each exchange of one without searches, components.

    Sweeps that search for new components take five times as long as others: a median would be of one kind or the other.
    """
    X, y = rows(number, rank * number // size, (rank + 1) * number // size)
    wall, cpu, sent = list[float](), list[float](), list[list[int]]()
    reduced, advance = Ranks._reduced, Sweeps.advance

    def counted(those: Ranks, tensor: Tensor, how: Any) -> Tensor:
        if sent and tensor.numel():
            sent[-1].append(tensor.numel() * tensor.element_size())
        return reduced(those, tensor, how)

    def timed(self: Sweeps, *arguments: Any) -> None:
        sent.append([])
        started, own = time.perf_counter(), time.process_time()
        advance(self, *arguments)
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - own)

    Ranks._reduced, Sweeps.advance = counted, timed
    group = dist.group.WORLD if size > 1 else None
    found = BACKENDS[backend].fit(MODELS[model], X, y if model != "DPM" else None, group=group)
    return mean(wall), mean(cpu), min(sent[-4:], key=sum), found.samples["log_mixture"].shape[1] - 1


def _serve(rank: int, size: int, port: int, pipe: Any, *call: Any) -> None:
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    pipe.send(reductions() if call == () else fit(*call, rank, size))
    if size > 1:
        dist.destroy_process_group()


def reductions() -> tuple[float, float]:
    """Seconds of an all-reduce of one number, and of each byte of a large one."""
    times = []
    for size, repeats in ((1, 500), (2**20, 30)):
        tensor = torch.zeros(size, dtype=torch.float64)
        started = time.perf_counter()
        for _ in range(repeats):
            dist.all_reduce(tensor)
        times.append((time.perf_counter() - started) / repeats)
    return times[0], times[1] / 2**23


def ranks(size: int, *call: Any) -> Any:
    """What the first of so many ranks says of a fit."""
    spawn, pipes = multiprocessing.get_context("spawn"), []
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank in range(size):
        here, there = spawn.Pipe()
        spawn.Process(target=_serve, args=(rank, size, port, there, *call)).start()
        pipes.append(here)
    first, *_ = [pipe.recv() for pipe in pipes]
    return first


def show_bytes() -> None:
    """Each kernel and model in turn."""
    for backend in BACKENDS:
        for model in MODELS:
            *_, sent, found = ranks(2, backend, model, 20_000)
            told = 8 * predicted(backend, model, found)
            print(
                f"{backend:15} {model:12} K {found:3}  {len(sent):3} reductions  {sum(sent):8,} bytes, {told:8,} told"
            )


def show_wall(number: int) -> None:
    """Seven rounds, one and two processes in turn: medians of both, and of their ratios."""
    latency, per_byte = ranks(2)
    print(f"an all-reduce takes {1e6 * latency:.0f} us, and {1e9 * per_byte:.2f} ns a byte")
    for backend in [name for name in BACKENDS if name != "slice Gibbs"]:
        both = [[ranks(size, backend, "DPM", number) for size in (1, 2)] for _ in range(7)]
        one, two = (median(found[place][0] for found in both) for place in (0, 1))
        ratios = sorted(alone[0] / shared[0] for alone, shared in both)
        sent = both[0][1][2]
        told = one / 2 + latency * len(sent) + per_byte * sum(sent)
        print(f"{backend:15} {one:.3f}, {two:.3f} s ({told:.3f} told); {ratios[0]:.2f} to {ratios[-1]:.2f}", end=", ")
        print(f"median {median(ratios):.2f}; CPU", end=" ")
        print(f"{median(alone[1] / shared[1] for alone, shared in both):.2f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["wall"]:
        show_wall(int(sys.argv[2]) if len(sys.argv) > 2 else 10**6)
    else:
        show_bytes()
