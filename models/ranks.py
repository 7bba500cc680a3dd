"""The ranks of a fit: processes that hold some of the rows each, and all of the components. Outside such a fit: none.

`regbayes.inference.distributed` says what kernels do with them; models ask through the sums of `sums` alone.
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
    name: str = ""  # of the fit, the same on all of them and of no other fit
    doors: tuple[tuple[str, int], ...] = ()  # host and port of each, where it can be reached as long as it takes part

    @cached_property
    def number(self) -> int:
        """Which of the ranks this is, from 0 on."""
        return int(torch.distributed.get_rank(self.group))

    @cached_property
    def size(self) -> int:
        """How many there are."""
        return int(torch.distributed.get_world_size(self.group))

    @cached_property
    def device(self) -> torch.device:
        """Where tensors must be that they exchange."""
        on_gpu = torch.distributed.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum [...] of the tensors of all ranks, the same bits on each."""
        return self._reduced(tensor, torch.distributed.ReduceOp.SUM)

    def largest(self, tensor: Tensor) -> Tensor:
        """The largest entries [...] among the tensors of all ranks."""
        return self._reduced(tensor, torch.distributed.ReduceOp.MAX)

    def each(self, works: list[Callable[[], T]]) -> list[T]:
        """What each of some functions gives, the same on all ranks."""
        return [work() for work in works]

    def objects(self, own: Any) -> list[Any]:
        """What each rank has, in their order; for what is exchanged now and then."""
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
        """Raises RankLost, with the ranks that are gone, where an exchange fails."""
        try:
            yield
        except RuntimeError as error:
            gone = list[int]()
            for _ in range(_TRIES):  # what has just ended may look alive
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
    ValueError    if it is no group that this process is in.
    RankLost      if a rank does not come.
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
        door.detach()  # open until the process ends, or others would take this rank for the one that is lost
        raise
    finally:
        door.close()


def _opens(door: tuple[str, int]) -> bool:
    """Whether a process listens there: its system answers, whatever it does."""
    try:
        socket.create_connection(door, _PATIENCE).close()
    except OSError:
        return False
    return True


_TRIES, _MOMENT, _PATIENCE = 10, 0.1, 5.0  # seconds
