"""The ranks of a fit: processes that hold some of the rows each, and all of the components. Outside such a fit: none.

`regbayes.inference.distributed` says what kernels do with them; models ask through the sums of `sums` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Ranks:
    """A process group of torch.distributed, among whose ranks the rows of a fit are split."""

    group: Any

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

    def objects(self, own: Any) -> list[Any]:
        """What each rank has, in their order; for what is exchanged once in a fit."""
        found = [None] * self.size
        torch.distributed.all_gather_object(found, own, self.group)
        return found

    def _reduced(self, tensor: Tensor, how: Any) -> Tensor:
        total = tensor.detach().to(self.device, copy=True, memory_format=torch.contiguous_format)
        if total.numel():
            torch.distributed.all_reduce(total, how, self.group)
        return total.to(tensor.device)
