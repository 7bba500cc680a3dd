"""The machine: where compiled code serves, and whether there is room in memory, found out before any work.

Where code asks `host.on_cpu(X)`, by the module, a test may run what a GPU would run on tensors of a CPU.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from .domains import shown


class _Placed(Protocol):
    @property
    def device(self) -> torch.device: ...


def on_cpu(like: _Placed) -> bool:
    """Whether a tensor, or sparse rows, are on a CPU."""
    return like.device.type == "cpu"


def looks(like: _Placed, step: int) -> bool:
    """Whether a loop asks after this step, from 0, if it may end: always, or on a GPU, where the host would wait, in
    every fourth."""
    return on_cpu(like) or step % 4 == 3


def require_room(name: str, value: Any, num_bytes: float, device: Any = "cpu", *, mend: str = "") -> None:
    """Raise ValueError if an argument asks for more bytes than the machine, or the GPU of `device`, has in all.

    Parameters
    ----------
    name, value : the argument
    num_bytes : the least that what it asks for takes
    mend : what to do; "": take a smaller one
    """
    device = torch.device(device)
    if num_bytes > (room := _room(device)):
        raise ValueError(
            f"{name} is {shown(value)}, which takes at least {num_bytes / 1e9:.3g} GB of memory; "
            f"{'the GPU' if device.type == 'cuda' else 'this machine'} has {room / 1e9:.3g} GB. "
            f"{mend or f'Take a smaller {name}.'}"
        )


@cache
def _room(device: torch.device) -> float:
    """Bytes of memory in all, used or free; infinite where the system does not say."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        machine = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
    try:
        return min(machine, float(_LIMIT.read_text()))  # of a container
    except (OSError, ValueError):
        return machine


_LIMIT = Path("/sys/fs/cgroup/memory.max")
