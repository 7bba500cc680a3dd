"""What the chains of a fit have done so far: all that a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..structures import Draw


@dataclass
class Chain:
    """What one chain (or restart) has done so far."""

    state: Any
    generator: torch.Generator
    step: int = 0
    seconds: float = 0.0
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    finished: bool = False
