"""What compiled code trusts: it reads and writes where shapes say, wherever that is."""

from __future__ import annotations

from torch import Tensor


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the tensor [...] has this shape: one from a changed file may not."""
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}.")
