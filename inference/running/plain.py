"""Plain data, the content of files: tensors, numbers, text and similar, in lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...models.domains import shown


def plain(value: Any, name: str) -> Any:
    """The value as tensors and plain data; `name` is its place in messages.

    Scalars and arrays of numpy become Python's numbers and text, tensors and lists. Subclasses become their base class.

    Raises
    ------
    ValueError    if it holds anything else, such as a function, a date or a set, or holds itself.
    """
    try:
        return _plain(value, name)
    except RecursionError:
        raise ValueError(f"{name} holds itself, or is nested too deeply for a file.") from None


def inner_name(name: str, key: Any) -> str:
    """The place of an entry of a dict, for messages. Keys that `to_plain` adds to a configuration are left out."""
    return name if key == "params" else f"{name}.{key}".lstrip(".")


def _plain(value: Any, name: str) -> Any:
    if value is None or type(value) in _KEPT:
        return value
    if isinstance(value, Tensor):
        return _plain_tensor(value, name)
    if isinstance(value, dict):
        return {_plain_key(key, name): _plain(inner, inner_name(name, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(inner, f"{name}[{index}]") for index, inner in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, np.generic | np.ndarray):
        return _plain_numpy(value, name)
    for kind, base in _BASES.items():
        if isinstance(value, kind):
            return base(value)
    raise _refused(value, name)


def _plain_key(key: Any, name: str) -> Any:
    found = _plain(key, f"a key of {name}")
    if isinstance(found, Tensor | list | dict):
        raise _refused(key, f"a key of {name}")
    return found


def _plain_numpy(value: Any, name: str) -> Any:
    kind, size = value.dtype.kind, value.dtype.itemsize
    if isinstance(value, np.ma.MaskedArray) or kind not in "biufUSO" or (kind == "f" and size > 8):
        raise _refused(value, name)
    if isinstance(value, np.generic):
        return value.item()
    if kind in "USO":  # text or objects
        return _plain(value.tolist(), name)
    native = np.array(value, dtype=value.dtype.newbyteorder("="))
    if kind == "u" and size > 1:  # torch hardly supports these
        if size == 8 and native.max(initial=0) > np.iinfo(np.int64).max:
            raise _refused(value, name)
        native = native.astype(np.int64)
    return torch.from_numpy(native)


def _plain_tensor(value: Tensor, name: str) -> Tensor:
    """The tensor without a gradient."""
    if value.layout != torch.strided or value.is_meta or value.dtype not in TENSOR_TYPES:
        raise _refused(value, name)
    return value.detach().as_subclass(Tensor)


def _refused(value: Any, name: str) -> ValueError:
    return ValueError(
        f"{name} is {shown(value)}, which no file can keep: files hold tensors and plain data only. Put a class of "
        "regbayes in its place, or a Config of your own that stores numbers and tensors."
    )


_KEPT = {bool, int, float, str, bytes, torch.dtype, torch.device}
_BASES: dict[type, Callable[[Any], Any]] = {bool: bool, int: int, float: float, str: str.__str__, bytes: bytes}
TENSOR_TYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
"""The types of tensors that files hold, with their names in the files."""
