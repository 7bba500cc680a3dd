"""A device for tests on machines without a GPU: tensors in host memory that behave as those of a GPU do.

A tensor of `DEVICE` says that it lies there. It refuses what a tensor on a GPU refuses: to meet a tensor of the host,
to become an array of numpy, and to be drawn from a generator of the host. Operations run on the CPU, one by one from
Python, so that a fit takes many times as long; nothing can be said of speed, nor of kernels that only CUDA has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

NAME = "pretend"
aten = torch.ops.aten
_COPIES = {aten.copy_.default, aten._to_copy.default, aten.lift_fresh.default, aten._copy_from.default}
_BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
_ALL_TENSORS = {"cat", "stack", "mm", "bmm", "addmm", "index_select", "gather", "scatter", "index_add", "index_add_"}


@contextmanager
def pretend_device() -> Iterator[torch.device]:
    """The device, while it can be used; a test without it is skipped where torch cannot register one from Python."""
    device = register()
    if device is None:
        pytest.skip("this torch registers no device from Python")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(torch, "Generator", Generator)
        stack.enter_context(_Operations())
        stack.enter_context(_Generators())
        yield device


@cache
def register() -> torch.device | None:
    """Tell torch of the device, once in a process and before any gradient: the threads of autograd are made once."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        return None
    module = backend_registration._DummyBackendModule()
    module.get_rng_state = lambda device=None: torch.empty(0)  # the device has no stream of its own
    module.set_rng_state = lambda state, device=None: None
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=module)
    for name, function in {"empty_strided": _empty_strided, "_copy_from": _copy_from}.items():
        _LIBRARY.impl(name, function, "PrivateUse1")
    return torch.device(NAME, 0)


_LIBRARY = torch.library.Library("aten", "IMPL")  # torch.tensor(..., device=...) passes by the mode below


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Tensor:
    return Elsewhere(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _inner(target).copy_(_inner(source))
    return target


class Generator(torch.Generator):
    """A stream of numbers that says on which device it is."""

    elsewhere: bool

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls, "cpu")
        made.elsewhere = torch.device(device).type == NAME
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0) if self.elsewhere else torch.device("cpu")


class Elsewhere(Tensor):
    """A tensor on the device, around one in host memory."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        place: dict[str, Any] = {}
        if inner.layout is torch.strided:
            place = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=register(), **place)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.inner})"

    def __format__(self, how: str) -> str:
        return format(self.item(), how) if self.ndim == 0 else repr(self)

    def tolist(self) -> Any:
        return self.inner.tolist()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, *_: Any) -> Any:
        return self.numpy()


class _Operations(TorchDispatchMode):
    """Operations that make tensors on the device."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


class _Generators(TorchFunctionMode):
    """Refuses a generator of the other device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        stream = (kwargs or {}).get("generator")
        drawn = isinstance(stream, Generator) and isinstance(found, Tensor)
        if drawn and isinstance(found, Elsewhere) != stream.elsewhere:
            raise RuntimeError(f"A tensor of {found.device} was drawn from a generator of {stream.device}.")
        return found


def _run(function: Any, args: Any, kwargs: Any) -> Any:
    """The operation on what lies in host memory, and its result where it belongs."""
    tensors = list(_tensors((*args, *kwargs.values())))
    here = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    if here and function not in _COPIES:
        _require_one_device(function, args, tensors)
    given = [_changed(part, _inner) for part in args]
    options = {name: _changed(part, _inner) for name, part in kwargs.items()}
    asked = kwargs.get("device")
    if asked is not None:
        to_host, here = here, torch.device(asked).type == NAME
        options["device"] = "cpu" if here else asked
        options.pop("pin_memory", None)
        if to_host and not here:
            return function(*given, **options).clone()
    elif function is aten.copy_.default:
        here = isinstance(args[0], Elsewhere)
    found = function(*given, **options)
    if not here:
        return found
    moved = _changed(found, _elsewhere)
    return return_and_correct_aliasing(function, args, kwargs, moved) if _may_alias(function) else moved


@cache
def _may_alias(function: Any) -> bool:
    """Whether a result is one of the arguments, or a view of it."""
    return any(part.alias_info is not None for part in function._schema.returns)


def _require_one_device(function: Any, args: Any, tensors: list[Tensor]) -> None:
    """Raise RuntimeError as CUDA does: a number of the host may take part in most operations, and index a tensor."""
    strict = function._schema.name.removeprefix("aten::") in _ALL_TENSORS
    if function in _BY_INDEX:
        tensors = [args[0], *args[2:3]]
    for tensor in tensors:
        if not isinstance(tensor, Elsewhere) and (strict or tensor.ndim):
            raise RuntimeError(f"{function}: not all are on the same device; a tensor {list(tensor.shape)} is not.")


def _tensors(parts: Iterable[Any]) -> Iterator[Tensor]:
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from _tensors(part)


def _changed(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same arguments or results with each tensor changed."""
    if isinstance(part, Tensor):
        return change(part)
    return type(part)(_changed(each, change) for each in part) if isinstance(part, list | tuple) else part


def _inner(tensor: Tensor) -> Tensor:
    return tensor.inner if isinstance(tensor, Elsewhere) else tensor


def _elsewhere(tensor: Tensor) -> Tensor:
    return tensor if isinstance(tensor, Elsewhere) else Elsewhere(tensor)
