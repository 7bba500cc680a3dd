"""Plain data as JSON text that refers to tensors by name.

Text, finite numbers, lists and dicts with text as keys are written as in JSON. Everything else is an object with one
key:

    {"$tensor": name}  {"$tensor": [name, device]}  {"$tuple": [...]}  {"$dict": [[key, value], ...]}
    {"$float": "inf"}  {"$bytes": hex}  {"$dtype": name}  {"$device": name}  {"$axes": [axes, tensor]}

"$axes" is for a tensor whose axes are in another order in memory, as those of Cholesky factors. The file has it in the
order of memory, and `permute(axes)` restores it: products of another memory layout round differently, so that a chain
would not be resumed bit for bit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Getter = Callable[[str, str], Tensor]
"""A function (name, device that the tensor was on) -> tensor."""


def encoded(content: Any) -> tuple[str, dict[str, Tensor]]:
    """ASCII text, and tensors [...] by the name of their place in it, for content as `plain` returns it.

    Raises
    ------
    ValueError    if it is nested too deeply, or has an integer of thousands of digits.
    """
    tensors: dict[str, Tensor] = {}
    value = _encoded(content, "", tensors, 0)
    return json.dumps(value, separators=(",", ":"), allow_nan=False), tensors


def decoded(text: str, tensor: Getter) -> Any:
    """The inverse of `encoded`; lists and dicts are no larger than they are in the text.

    Raises
    ------
    ValueError    if the text is no such content.
    """
    try:
        return _decoded(json.loads(text, object_pairs_hook=_object, parse_constant=_no_number), tensor, 0)
    except (RecursionError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _encoded(value: Any, place: str, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"The content is nested more than {_DEEPEST} deep at {place[:60]!r}, which no file can keep.")
    if isinstance(value, Tensor):
        return _encoded_tensor(value, place, tensors)

    def inner(item: Any, name: Any) -> Any:
        return _encoded(item, f"{place}.{name}".lstrip("."), tensors, depth + 1)

    if isinstance(value, list | tuple):
        items = [inner(item, index) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: inner(item, key) for key, item in value.items()}
        return {"$dict": [[inner(key, "key"), inner(item, key)] for key, item in value.items()]}
    return _encoded_leaf(value)


def _encoded_leaf(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    return {"$device": str(value)} if isinstance(value, torch.device) else value


def _encoded_tensor(value: Tensor, place: str, tensors: dict[str, Tensor]) -> Any:
    strides = value.stride()
    axes = sorted(range(value.ndim), key=lambda axis: -strides[axis])
    if value.is_contiguous() or not value.permute(axes).is_contiguous():
        return {"$tensor": _named(value, place, tensors)}
    back = sorted(range(value.ndim), key=axes.__getitem__)
    return {"$axes": [back, {"$tensor": _named(value.permute(axes), place, tensors)}]}


def _named(tensor: Tensor, place: str, tensors: dict[str, Tensor]) -> Any:
    """Store a tensor under a new name; return the name, with the device unless it is the CPU."""
    name = re.sub(r"[^\w.]", "_", place[-_LONGEST_NAME:], flags=re.ASCII) or "content"
    if name in tensors or name == "__metadata__":
        name = f"{name}~{len(tensors)}"
    tensors[name] = tensor
    return name if tensor.device.type == "cpu" else [name, str(tensor.device)]


def _decoded(value: Any, tensor: Getter, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    if isinstance(value, list):
        return [_decoded(item, tensor, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if not (len(value) == 1 and next(iter(value)).startswith("$")):
        return {key: _decoded(item, tensor, depth + 1) for key, item in value.items()}
    ((tag, inner),) = value.items()
    if tag == "$tensor":
        name, device = (inner, "cpu") if isinstance(inner, str) else inner
        return tensor(name, device)
    if tag == "$axes":
        return _permuted(*(_decoded(item, tensor, depth + 1) for item in inner))
    if tag == "$dict":
        return _object((_key(key, tensor, depth + 2), _decoded(item, tensor, depth + 2)) for key, item in inner)
    if tag == "$tuple" and isinstance(inner, list):
        return tuple(_decoded(item, tensor, depth + 1) for item in inner)
    if tag not in _LEAVES or not isinstance(inner, str):
        raise ValueError(f"it has {tag[:20]!r}")
    return _LEAVES[tag](inner)


def _permuted(axes: Any, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or sorted(map(int, axes)) != list(range(value.ndim)):
        raise ValueError("it has axes that are not those of a tensor")
    return value.permute(axes)


def _object(pairs: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has {str(key)[:60]!r} twice")
        found[key] = value
    return found


def _key(value: Any, tensor: Getter, depth: int) -> Any:
    key = _decoded(value, tensor, depth)
    if isinstance(key, Tensor):
        raise ValueError("a tensor is a key of it")
    return key


def _no_number(text: str) -> Any:
    raise ValueError(f"it has {text}, which is no number")


def _float(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"it has the number {text[:20]!r}")
    return float(text)


def _dtype(text: str) -> torch.dtype:
    found = getattr(torch, text, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"it has the dtype {text[:20]!r}")
    return found


def _device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError:
        raise ValueError(f"it has the device {text[:20]!r}") from None


_LEAVES: dict[str, Callable[[str], Any]] = {
    "$float": _float,
    "$bytes": bytes.fromhex,
    "$dtype": _dtype,
    "$device": _device,
}
_DEEPEST = 100  # levels of lists and dicts
_LONGEST_NAME = 200
