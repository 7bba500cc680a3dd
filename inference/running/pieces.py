"""What another process does for a fit: the next sweeps of a chain, half a second of them; and how that travels."""

from __future__ import annotations

import functools
import gc
import io
import os
import random
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from torch import Tensor

from .chains import Chain
from .interrupts import FitStopped, Interrupts
from .sweeps import Sweeps


class NotShared(ValueError):
    """A fit that cannot be sent to another process, or not be read there."""


@dataclass(frozen=True)
class Piece:
    """What a process has done of a chain."""

    chain: bytes | None  # packed, without its draws: all that another process needs to go on; None: it has no state
    news: bytes  # packed: draws, warnings, and the error that has ended it, or None
    ended: bool = False  # whether there is nothing left to do
    stopped: bool = False  # whether the process was told to stop


def begin_work(fit: int) -> None:
    """Prepare a process that works for another one, whose number is given: a forked copy of that has others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the fit, which tells its workers by SIGTERM
    _LISTENING.enter_context(_INTERRUPTS.caught())
    gc.freeze()  # what was imported stays: to look through it takes longer than to let go of a fit


def go_on(file: str, index: int, begun: bytes | None) -> Piece:
    """The next sweeps of a chain of the fit in a file; its first one alone if it has not begun."""
    chain, error = None, None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        try:
            sweeps = _fit_in(file)
            until = time.monotonic() + (_SECONDS if begun else 0.0)
            chain = cloudpickle.loads(begun) if begun else sweeps.start(index, _INTERRUPTS)
            going = sweeps.unfinished(chain)
            while going:
                sweeps.advance(chain, _INTERRUPTS)
                _INTERRUPTS.check()
                going = sweeps.unfinished(chain) and time.monotonic() < until
        except FitStopped:
            pass
        except SystemExit as left:  # as if it was killed
            os._exit(left.code if isinstance(left.code, int) else 1)
        except Exception as raised:
            raised.add_note("In another process:\n" + "".join(traceback.format_exception(raised)))
            error = raised
    ended = error is not None or (chain is not None and not sweeps.unfinished(chain))
    if ended:  # an idle process holds no data
        _FITS.clear()
    return _piece(index, chain, [found.message for found in warned], error, ended)


def packed(content: Any) -> bytes:
    """Any content as bytes, its functions and classes by value where another process could not import them."""
    file = io.BytesIO()
    _Pickler(file).dump(content)
    return file.getvalue()


def packed_chain(chain: Chain) -> bytes:
    """All of a chain but its draws, which only its fit needs."""
    return packed(replace(chain, draws=[]))


def _piece(index: int, chain: Chain | None, warned: list[Any], error: Exception | None, ended: bool) -> Piece:
    try:
        # a view would take the storage of the whole along
        draws = [{name: value.clone() for name, value in draw.items()} for draw in chain.draws] if chain else []
        return Piece(packed_chain(chain) if chain else None, packed((draws, warned, error)), ended, _INTERRUPTS.noted)
    except Exception as error:
        refused = ValueError(f"Chain {index} cannot leave its process: {error!r}. Use num_jobs=1.")
        return Piece(None, packed(([], [], refused)), ended=True)


def _fit_in(file: str) -> Sweeps:
    """The fit that a file holds, read once; a new one finds streams and settings as in a new process."""
    if file not in _FITS:
        _FITS.clear()
        gc.collect()
        try:
            (num_threads, dtype), _FITS[file] = cloudpickle.loads(Path(file).read_bytes())
        except Exception as error:
            raise NotShared(f"another process cannot read the fit: {error!r}") from error
        torch.set_num_threads(num_threads)
        torch.set_default_dtype(dtype)
        torch.set_rng_state(_STREAM)
        np.random.seed()  # noqa: NPY002 (the legacy stream)
        random.seed()
        pyro.clear_param_store()
    return _FITS[file]


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Generators, local functions that keep their results (which they lose), and most tensors: ten times as fast as
        torch does it."""
        if isinstance(value, _CACHED) and "<locals>" in value.__qualname__:
            return _cached, (value.__wrapped__, value.cache_parameters())
        if isinstance(value, torch.Generator):
            return _generator, (value.get_state(),)
        if type(value) is Tensor and _is_array(value):
            return _tensor, (value.numpy(),)
        return super().reducer_override(value)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(function)


def _generator(state: Tensor) -> torch.Generator:
    return torch.Generator().set_state(state)


def _is_array(value: Tensor) -> bool:
    plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
    return plain and value.dtype in _KNOWN and value.is_contiguous()


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array).clone()  # where torch would put it


_SECONDS = 0.5  # of a piece: what is lost where a process is killed
_KNOWN = {torch.float64, torch.float32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
_CACHED = type(functools.cache(print))
_STREAM = torch.get_rng_state()  # of a new process
_FITS: dict[str, Sweeps] = {}  # of a process that works for another: the fit that it is at
_INTERRUPTS, _LISTENING = Interrupts(signal.SIGTERM), ExitStack()
