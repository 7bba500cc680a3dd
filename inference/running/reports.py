"""What a process that sweeps a chain for a fit tells it, and how a chain travels."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
from numpy.typing import NDArray
from torch import Tensor

from .chains import Chain

News = dict[str, Any]
"""The fields of a chain, the state of its generator in place of the generator; of values, times, draws the latest."""


@dataclass
class Report:
    """What a worker says of the chain that it is at."""

    index: int
    news: News | None = None  # since its last report; None: the chain has no state
    ended: bool = False  # whether the worker is free for another chain
    warned: list[Warning | str] = field(default_factory=list)
    error: Exception | None = None  # what ended the chain
    refusal: str = ""  # why the worker can do nothing at all


def news_of(chain: Chain, step: int, num_draws: int) -> News:
    """What a chain has done after some steps and draws."""
    # a view would take the storage of the whole along
    draws = [{name: value.clone() for name, value in draw.items()} for draw in chain.draws[num_draws:]]
    latest = {"values": chain.values[step:], "times": chain.times[step:], "draws": draws}
    return {**vars(chain), "generator": chain.generator.get_state(), **latest}


def chain_of(news: News) -> Chain:
    """A chain with nothing else before."""
    generator = torch.Generator()
    generator.set_state(news["generator"])
    return Chain(**{**news, "generator": generator})


def add_news(chain: Chain, news: News) -> None:
    """Add what a chain has done in another process."""
    chain.generator.set_state(news["generator"])
    chain.state, chain.step, chain.seconds = news["state"], news["step"], news["seconds"]
    chain.values += news["values"]
    chain.times += news["times"]
    chain.draws += news["draws"]
    chain.finished = news["finished"]


def packed(content: Any) -> bytes:
    """Any content as bytes, its functions and classes by value where another process could not import them."""
    file = io.BytesIO()
    _Pickler(file).dump(content)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Local functions that keep their results, which they lose, and most tensors, ten times as fast as torch."""
        if isinstance(value, _CACHED) and "<locals>" in value.__qualname__:
            return _cached, (value.__wrapped__, value.cache_parameters())
        if type(value) is Tensor and _is_array(value):
            return _tensor, (value.numpy(),)
        return super().reducer_override(value)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(function)


def _is_array(value: Tensor) -> bool:
    plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
    return plain and value.dtype in _KNOWN and value.is_contiguous()


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array).clone()  # where torch would put it


_KNOWN = {torch.float64, torch.float32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
_CACHED = type(functools.cache(print))
