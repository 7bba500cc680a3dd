"""A fit that loses ranks at random moments: run by torchrun, which starts all of them again, it goes on by itself.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --nproc-per-node 2 --max-restarts NUM_KILLS tests/killed_ranks.py FOLDER NUM_KILLS

FOLDER gets `steps.txt`, what each start went through, and at the end `posterior.pt` with its shards.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regbayes.inference import Gibbs
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import InfiniteSVM

START = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def fit(group: Any, rank: int, num_samples: int, **files: Any) -> Any:
    """The posterior of a rank, which has 20 or 30 of the rows."""
    X = torch.randn(50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = slice(0, 20) if rank == 0 else slice(20, 50)
    backend = Gibbs(num_samples, 5, scan="slice", num_generative=2, progress=False)
    return backend.fit(InfiniteSVM(), X[rows], (X.prod(1) > 0).long()[rows], group=group, **files)


def main(folder: Path, num_kills: int) -> None:
    """The fit; so many starts end by a kill of one of the ranks, most of them among its sweeps, some before."""
    advance, chance = Sweeps.advance, random.Random(f"{os.environ['TORCHELASTIC_RUN_ID']} {START}")
    victim, seconds, early = chance.randrange(2), chance.uniform(0.0, 0.4), chance.random() < 0.2
    dist.init_process_group("gloo")
    falls = num_kills > START and dist.get_rank() == victim
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))

    def slowly(self: Sweeps, chain: Any, *others: Any) -> None:
        if falls and timer.ident is None:
            timer.start()
        with (folder / "steps.txt").open("a") as file:
            file.write(f"{START} {chain.step}\n")
        time.sleep(0.01)
        advance(self, chain, *others)

    Sweeps.advance = slowly
    if falls and early:
        timer.start()
    file = folder / "chain.pt"
    going_on = {"resume": file} if file.exists() else {}
    found = fit(
        dist.group.WORLD, dist.get_rank(), 20 + 20 * num_kills, checkpoint=file, checkpoint_every=0.0, **going_on
    )
    found.save(folder / "posterior.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
