"""Checks of arguments for compiled code, which does not check indices itself."""

from __future__ import annotations

import torch
from torch import Tensor


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the tensor [...] has this shape; a tensor from a changed file may not."""
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}.")


def require_labels(name: str, labels: Tensor, number: int, num_places: int) -> None:
    """Raise ValueError unless `labels` [N] are N = `number` indices, int64 in 0..num_places-1."""
    require_shape(name, labels, (number,))
    if labels.dtype != torch.int64:
        raise ValueError(f"{name} is {labels.dtype}; expected int64.")
    least, most = (int(end) for end in labels.aminmax()) if number else (0, -1)
    if least < 0 or most >= num_places:
        raise ValueError(f"{name} has labels from {least} to {most}; expected 0 to {num_places - 1}.")
