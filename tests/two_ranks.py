"""Two ranks that serve many tests: processes with a group of torch.distributed, started once in a run.

A task is a function of a module that the ranks can import, called on both with the process group and its rank. While
it runs a watch compares, before each exchange, where in the package it is made, of what shape and in what dtype: a sum
that one rank makes and the other does not is an error on both, at once, and not a hang.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import socket
import sys
import threading
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbayes.models.ranks import Ranks

_SECONDS = 60  # for which a rank waits for the other one, and a test for both


class TwoRanks:
    """The processes, and a pipe to each."""

    def __init__(self) -> None:
        self.pipes: list[Any] = []
        self.processes: list[Any] = []

    def outcomes(self, task: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """What the task returns on each rank, or the exception that it raises there."""
        if not self.processes:
            self._start()
        for pipe in self.pipes:
            pipe.send_bytes(pickle.dumps((task, args, options)))  # tensors by value: none is shared
        found: dict[Any, Any] = {}
        while waiting := [pipe for pipe in self.pipes if pipe not in found]:
            failed = any(isinstance(each, BaseException) for each in found.values())
            ready = wait(waiting, 5 if failed else 3 * _SECONDS)
            found |= {pipe: _heard(pipe) for pipe in ready}
            if not ready:  # it waits for the other one, which has left
                found |= {pipe: TimeoutError("a rank has not answered") for pipe in waiting}
        outcomes = [found[pipe] for pipe in self.pipes]
        if any(isinstance(each, TimeoutError | EOFError) for each in outcomes):
            self.close()  # the next task starts new ones
        return outcomes

    def __call__(self, task: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """What the task returns on each rank."""
        found = self.outcomes(task, *args, **options)
        for each in sorted(found, key=lambda each: isinstance(each, TimeoutError)):
            if isinstance(each, BaseException):
                raise each
        return found

    def close(self) -> None:
        """End both."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            process.terminate()
            process.join()
            pipe.close()
        self.pipes, self.processes = [], []

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(2):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(rank, port, there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)


@dataclass
class Thread:
    """One of two ranks that are threads of one process: many short exchanges take less time so."""

    number: int
    parts: list
    barrier: Any
    size: int = 2
    name: str = "threads"

    def objects(self, own):
        self.parts[self.number] = own
        self.barrier.wait(60)
        found = list(self.parts)
        self.barrier.wait(60)
        return found

    def sum(self, tensor):
        first, second = self.objects(tensor.clone())
        assert (first.shape, first.dtype) == (second.shape, second.dtype)
        return first + second

    def largest(self, tensor):
        return torch.maximum(*self.objects(tensor.clone()))


def on_threads(task: Callable[[int, Thread], Any]) -> list[Any]:
    """What a task, called with its rank and the ranks that it is one of, returns on each of two."""
    parts, barrier = [None, None], threading.Barrier(2)

    def own(rank: int) -> Any:
        try:
            return task(rank, Thread(rank, parts, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(2) as pool, _without_locks():
        tasks = [pool.submit(own, rank) for rank in range(2)]
        errors = [error for each in tasks if (error := each.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [each.result() for each in tasks]


@contextmanager
def _without_locks() -> Iterator[None]:
    """Until Python 3.12 the lock of a cached property is that of all objects, and a thread that meets the other one
    inside holds it."""
    locked = [each for each in gc.get_objects() if type(each) is cached_property and hasattr(each, "lock")]
    before = [each.lock for each in locked]
    for each in locked:
        each.lock = nullcontext()
    try:
        yield
    finally:
        for each, lock in zip(locked, before, strict=True):
            each.lock = lock


def split(rows: Any, rank: int, first: int) -> Any:
    """The first so many rows, or what is left of them; of None nothing."""
    return None if rows is None else (rows[:first], rows[first:])[rank]


@contextmanager
def watched() -> Iterator[list[str]]:
    """A context in which both ranks must make the same exchanges; where they were made, so far."""
    places, reduce = list[str](), Ranks._reduced

    def reduced(those: Ranks, tensor: Tensor, how: Any) -> Tensor:
        places.append(f"{_place()}: {tuple(tensor.shape)} of {tensor.dtype}")
        own = torch.tensor([zlib.crc32(places[-1].encode())])
        every = [torch.zeros_like(own) for _ in range(those.size)]
        with those.answering():
            dist.all_gather(every, own, those.group)
        if any(int(other) != int(own) for other in every):
            raise AssertionError(f"rank {those.number} exchanges, unlike the other one, at {places[-1]}")
        return reduce(those, tensor, how)

    Ranks._reduced = reduced
    try:
        yield places
    finally:
        Ranks._reduced = reduce


def _place() -> str:
    """The nearest call that is not of the seams themselves."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.endswith(("ranks.py", "sums.py", "collectives.py", "picked.py")) and frame.f_back:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _heard(pipe: Any) -> Any:
    """What a rank says; EOFError of one that has ended."""
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError as error:
        return error


def _serve(rank: int, port: int, pipe: Any) -> None:
    sys.path.append(str(Path(__file__).parents[1]))  # of `tests`, wherever the run was started
    torch.set_num_threads(1)
    address, limit = f"tcp://127.0.0.1:{port}", timedelta(seconds=_SECONDS)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=limit)
    while True:
        try:
            task, args, options = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            with warnings.catch_warnings(), watched():
                warnings.simplefilter("ignore")
                found = task(dist.group.WORLD, rank, *args, **options)
        except BaseException as error:
            error.add_note("".join(traceback.format_exception(error)))
            found = error
        pipe.send_bytes(pickle.dumps(found))
