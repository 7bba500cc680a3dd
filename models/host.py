"""Where compiled code and numpy may serve in place of tensor operations: on a CPU.

Asked as `host.on_cpu(X)`, by the module, so that a test may run what a GPU would run on tensors of a CPU.
"""

from __future__ import annotations

from typing import Protocol

import torch


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
