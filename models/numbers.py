"""Conversion of users' numbers, in whatever form, to tensors and arrays that torch computes with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor


def as_tensor(name: str, values: Any, hint: str = "") -> Tensor:
    """Real numbers of any shape [...], in a dtype that torch computes with, and without an autograd graph.

    Raises
    ------
    ValueError    naming the argument, if it does not hold real numbers; the message ends with `hint`.
    """
    if isinstance(values, Tensor):
        require_readable(name, values)
        if values.layout != torch.strided:
            raise ValueError(f"{name} is sparse; expected a dense Tensor: pass {name}.to_dense().")
        numbers = with_graph(values)
    else:
        numbers = torch.from_numpy(as_array(name, values, hint))  # on the CPU, whatever torch's default device
    if numbers.is_complex():
        raise ValueError(f"{name} has complex values. Complex data not supported: pass real numbers.")
    return numbers


def as_array(name: str, values: Any, hint: str = "") -> np.ndarray:
    """A writable array in native byte order and C order, of a dtype wide enough for torch.

    Raises
    ------
    ValueError    as `as_tensor`; also on text, even of digits ("1_000" would be read as a thousand).
    """
    require_unmasked(name, values)
    try:
        plain = values.data if isinstance(values, np.ma.MaskedArray) else values
        array = np.require(plain, requirements=("C", "W"))
        return _computable(array)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read as an array of numbers: {in_words(error)}.{hint}") from None


def in_words(error: Exception) -> str:
    """The message of numpy's error; for ragged lists a clearer one."""
    text = str(error)
    return "its entries differ in length, but need as many numbers each" if "inhomogeneous" in text else text


def require_unmasked(name: str, values: Any) -> None:
    """Raise ValueError on an array with masked entries."""
    if isinstance(values, np.ma.MaskedArray) and values.mask.any():
        raise ValueError(f"{name} has masked entries, which would count. Fill them, or drop their rows.")


def has_text(array: np.ndarray) -> bool:
    """Whether an array holds text, even text of digits."""
    if array.dtype.kind == "O":
        return any(isinstance(entry, str | bytes) for entry in array.flat)
    return array.dtype.kind in "US"


def require_readable(name: str, values: Tensor) -> None:
    """Raise ValueError on a tensor [...] without numbers, or with a precision too low to compute with."""
    if values.is_meta:
        raise ValueError(f"{name} is on the meta device, which holds no numbers. Pass a Tensor on a CPU or a GPU.")
    if values.dtype in {torch.float16, torch.bfloat16} or values.is_quantized:
        raise ValueError(
            f"{name} has dtype {values.dtype}; accepted are float32, float64 and integers: {name}.float()."
        )


def with_graph(values: Tensor) -> Tensor:
    """The values [...], with their autograd graph only inside a Pyro program, as only programs are differentiated."""
    if values.is_inference() and not torch.is_inference_mode_enabled():
        values = values.clone()  # autograd refuses a tensor of inference mode
    return values if am_i_wrapped() else values.detach()


def _computable(array: np.ndarray) -> np.ndarray:
    """The array in a dtype that torch has; TypeError or ValueError if there is none."""
    kind = array.dtype.kind
    if kind == "c":
        return array.astype(np.complex128)
    if has_text(array):
        raise TypeError(f"it has text, of type {array.dtype}")
    if kind == "O" or array.dtype.type in (np.float16, np.longdouble):
        return array.astype(np.float64)
    if kind == "u" and array.dtype.itemsize > 1:
        if array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise ValueError("its integers are beyond 64 bits")
        return array.astype(np.int64)
    if kind not in "biufc":
        raise TypeError(f"its type is {array.dtype}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
