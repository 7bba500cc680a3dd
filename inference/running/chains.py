"""What the chains of a fit have done so far: all that a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_type_hints

import torch
from torch import Tensor

from ..structures import Draw

State = Any
"""What a chain goes on from: a frozen dataclass of tensors and plain data, of the kernel's own class."""

OfRows = Annotated[Tensor, "N"]
"""The type of the fields [N, ...] of a state that have an entry for each row: of each rank those of its own."""

PartOfSum = Annotated[Tensor, "sum over ranks"]
"""The type of the fields [...] of a state that are sums over the rows of each rank: their sum over all is what counts.
"""

News = dict[str, Any]
"""The fields of a chain, the state of its generator in place of the generator; of values, times, draws the latest."""


@dataclass
class Chain:
    """What one chain (or restart) has done so far."""

    state: State
    generator: torch.Generator
    step: int = 0
    seconds: float = 0.0
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    finished: bool = False

    def news(self, step: int, num_draws: int) -> News:
        """What another process must know of the chain that knows so many steps and draws of it."""
        # a view would take the storage of the whole along
        draws = [{name: value.clone() for name, value in draw.items()} for draw in self.draws[num_draws:]]
        latest = {"values": self.values[step:], "times": self.times[step:], "draws": draws}
        return {**vars(self), "generator": self.generator.get_state(), **latest}

    def add(self, news: News) -> None:
        """Go to where the chain has come in another process."""
        for name, value in news.items():
            known = getattr(self, name)
            if name == "generator":
                known.set_state(value)
            elif isinstance(known, list):
                known += value
            else:
                setattr(self, name, value)


def chain_of(news: News) -> Chain:
    """A chain of which nothing else is known."""
    chain = Chain(None, torch.Generator())
    chain.add(news)
    return chain


def fields_of(state: type[Any], kind: Any) -> list[str]:
    """Names of the fields of a class of states that are `OfRows`, or `PartOfSum`."""
    try:
        hints = get_type_hints(state, include_extras=True)
    except NameError:  # a class of a user, with annotations that only a type checker can read
        return []
    return [name for name, hint in hints.items() if kind in (hint, *get_args(hint))]
