"""CPU seconds of one thread, for the benchmarks beside this file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["choose", "cold_and_warm", "medians", "seconds"]


def seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def medians(*functions: Callable[[], object], repeats: int = 7) -> list[float]:
    """Median CPU seconds of each, measured in turn so that all see the same machine."""
    return np.median([[seconds(function) for function in functions] for _ in range(repeats)], 0).tolist()


def cold_and_warm(script: str, families: Sequence[str]) -> None:
    """Seconds of `python script first FAMILY` in new processes, without compiled code and with it."""
    for family in families:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
            for name in ("cold", "warm"):
                start = os.times()
                subprocess.run([sys.executable, script, "first", family], env=environment, check=True)
                spent = sum(os.times()[2:4]) - sum(start[2:4])
                print(f"{family}, {name}: {spent:.1f} CPU s, imports included")


def choose(usage: str | None, **jobs: Callable[..., None]) -> None:
    """Run the job that the command line names, with the arguments after it."""
    name, *arguments = sys.argv[1:] or [""]
    if name not in jobs:
        sys.exit(usage)
    jobs[name](*arguments)
