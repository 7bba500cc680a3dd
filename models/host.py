"""The machine: devices, memory, and the number of threads of an operation.

Callers write `host.on_cpu(X)`, with the module's name, so that a test can run a GPU's code path on tensors of a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock, local
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
    """Whether a loop should check after this step if it may end; on a GPU, where the host would wait, every fourth."""
    return on_cpu(like) or step % 4 == 3


def answers(flags: Iterable[torch.Tensor], like: _Placed) -> Iterator[bool]:
    """The values of flags [] as they are needed; on a GPU, where the host would wait for each, all at once."""
    if on_cpu(like):
        return map(bool, flags)
    known = list(flags)
    return iter(torch.stack(known).tolist() if known else [])


def require_room(name: str, value: Any, num_bytes: float, device: Any = "cpu", *, mend: str = "") -> None:
    """Raise ValueError if an argument needs more bytes than the machine, or the GPU of `device`, has in all.

    Parameters
    ----------
    name, value : the argument
    num_bytes : the least memory that it needs
    mend : what to do; "": take a smaller one
    """
    device = torch.device(device)
    if num_bytes > (room := _room(device)):
        raise ValueError(
            f"{name} is {shown(value)}, which takes at least {num_bytes / 1e9:.3g} GB of memory; "
            f"{'the GPU' if device.type == 'cuda' else 'this machine'} has {room / 1e9:.3g} GB. "
            f"{mend or f'Take a smaller {name}.'}"
        )


@dataclass
class _Contexts:
    """The number of active contexts, of one thread or of all, and the number of threads before the first."""

    running: int = 0
    before: int = 0  # 0: there was none yet


class _Own(local):
    """The contexts of this thread."""

    def __init__(self) -> None:
        self.contexts = _Contexts()


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which operations use one thread: on chunks of rows they end before other threads would start.

    If other programs use the cores, an operation waits for its threads many times as long as it computes. Afterwards
    the calling thread has as many as before. A thread that torch first sees during another's context has one until its
    own context ends, since torch starts a thread with the number that any other has set last.
    """
    own = _OWN.contexts
    with _LOCK:
        known = torch.get_num_threads()
        is_new = known == 1 and not own.before and _ALL.running
        if not own.running:
            own.before = _ALL.before if is_new else known
        if not _ALL.running:
            _ALL.before = known
        own.running, _ALL.running = own.running + 1, _ALL.running + 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            own.running, _ALL.running = own.running - 1, _ALL.running - 1
            if not own.running:
                torch.set_num_threads(own.before)


def in_forks(renew: Callable[[], None]) -> None:
    """Call a function in every process that is forked from this one, where other threads do not go on."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=renew)


def _renew() -> None:
    """Forget the contexts of other threads, and the lock that one of them may hold."""
    global _LOCK
    _LOCK, _ALL.running = Lock(), _OWN.contexts.running


@contextmanager
def usual_torch() -> Iterator[None]:
    """A context in which gradients are recorded and new tensors are on the CPU, whatever the caller has set.

    The default dtype stays the caller's: another thread would see it change.
    """
    elsewhere = torch.get_default_device().type != "cpu"
    with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu") if elsewhere else nullcontext():
        yield


@cache
def _room(device: torch.device) -> float:
    """The bytes of memory in all, used or free; inf if the system does not report them."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        machine = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
    try:
        return min(machine, float(_LIMIT.read_text()))  # the limit of a container
    except (OSError, ValueError):
        return machine


_LIMIT = Path("/sys/fs/cgroup/memory.max")
_LOCK, _ALL, _OWN = Lock(), _Contexts(), _Own()
in_forks(_renew)
