"""The ranks of a fit: processes each of which holds some of the rows, and all of the components.

`regbayes.inference.distributed` describes how kernels use ranks; models use only the sums of the module `sums`.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from .domains import shown

T = TypeVar("T")


class RankLost(RuntimeError):
    """A rank of a fit has ended, or does not answer within the timeout of its group."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """A process group of torch.distributed, among whose ranks the rows of a fit are split."""

    group: Any
    name: str = ""  # of the fit: the same on all ranks, and different from that of any other fit
    doors: tuple[tuple[str, int], ...] = ()  # host and port of each, open as long as it takes part

    @cached_property
    def number(self) -> int:
        """The number of this rank, from 0 on."""
        return int(torch.distributed.get_rank(self.group))

    @cached_property
    def size(self) -> int:
        """The number of ranks."""
        return int(torch.distributed.get_world_size(self.group))

    @cached_property
    def device(self) -> torch.device:
        """The device on which tensors must be to be exchanged."""
        on_gpu = torch.distributed.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum [...] of the tensors of all ranks, bitwise the same on each rank."""
        return self._reduced(tensor, torch.distributed.ReduceOp.SUM)

    def largest(self, tensor: Tensor) -> Tensor:
        """The elementwise maximum [...] of the tensors of all ranks."""
        return self._reduced(tensor, torch.distributed.ReduceOp.MAX)

    def each(self, works: list[Callable[[], T]]) -> list[T]:
        """The results of several functions, the same on all ranks."""
        return [work() for work in works]

    def objects(self, own: Any) -> list[Any]:
        """The objects of all ranks, in order; for rare exchanges."""
        found = [None] * self.size
        with self.answering():
            torch.distributed.all_gather_object(found, own, self.group)
        return found

    def _reduced(self, tensor: Tensor, how: Any) -> Tensor:
        total = tensor.detach().to(self.device, copy=True, memory_format=torch.contiguous_format)
        if total.numel():
            with self.answering():
                torch.distributed.all_reduce(total, how, self.group)
        return total.to(tensor.device)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A context that raises RankLost, naming the lost ranks, if an exchange fails."""
        try:
            yield
        except RuntimeError as error:
            gone = list[int]()
            for _ in range(_TRIES):  # a process that has just ended may still seem alive
                time.sleep(_MOMENT)
                if gone := [rank for rank, door in enumerate(self.doors) if rank != self.number and not _opens(door)]:
                    break
            which = f"Rank {', '.join(map(str, gone))} of {self.size} has ended, or its machine does not answer"
            if not gone:
                which = f"The {self.size} ranks do not hear of one another, though none of them has ended"
            raise RankLost(
                f"{which} ({str(error).splitlines()[0]}). Start them again, from a checkpoint if there is one."
            ) from error


@contextmanager
def meeting(group: Any) -> Iterator[Ranks]:
    """A context in which the ranks of a process group take part in a fit.

    Raises
    ------
    ValueError    if it is not a process group that includes this process.
    RankLost      if a rank does not join.
    """
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized() and isinstance(group, dist.ProcessGroup)):
        raise ValueError(
            f"group is {shown(group)}; expected a process group that this rank is in, such as dist.group.WORLD after "
            "dist.init_process_group()."
        )
    door = socket.create_server(("", 0))
    try:
        own = (socket.gethostname(), door.getsockname()[1]), secrets.token_hex(8)
        doors, names = zip(*Ranks(group).objects(own), strict=True)
        yield Ranks(group, names[0], doors)
    except RankLost:
        door.detach()  # kept open until the process ends, or others would take this rank for the lost one
        raise
    finally:
        door.close()


def _opens(door: tuple[str, int]) -> bool:
    """Whether a process listens at this host and port; its operating system answers, whatever the process does."""
    try:
        socket.create_connection(door, _PATIENCE).close()
    except OSError:
        return False
    return True


_TRIES, _MOMENT, _PATIENCE = 10, 0.1, 5.0  # the last two in seconds
