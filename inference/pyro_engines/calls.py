"""The calls of our models in a Pyro program, and the names of their sites in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ...models.base import Model
from ..protocol import KernelData

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a program: (args, kwargs)."""


@dataclass(frozen=True)
class Call:
    """A call of a resolved model's program."""

    program: Callable[[], None]
    model: Model
    data: KernelData  # of the class that the model's `data_type` names
    names: dict[str, str] = field(default_factory=dict)  # name of a site in the model -> name in the program
    latent: set[str] = field(default_factory=set)  # sites without a given value, by the name in the model


def run_program(
    program: Callable[..., Any], arguments: Arguments, values: dict[str, Tensor]
) -> tuple[poutine.Trace, list[Call]]:
    """The trace of a program, given values [...] of sites by name, and the calls of our models in it.

    Raises
    ------
    ValueError    if a call is in a plate, or if two sites have one name, as those of two models without a scope have.
    """
    args, kwargs = arguments
    calls = _Calls()
    tracer = poutine.trace(poutine.condition(program, data=values))
    with calls:
        trace = tracer.get_trace(*args, **kwargs)
    return trace, calls.found


class _Calls(Messenger):
    """Collects the calls that `models.base.announced` reports."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Call] = []
        self.seen: set[str] = set()

    def _pyro_regbayes(self, msg: Any) -> None:
        model, data = msg["args"]
        if plates := [frame.name for frame in msg["cond_indep_stack"] if frame.vectorized]:
            raise ValueError(
                f"The program calls {type(model).__name__} in the plate {plates[0]!r}, where a call would be many "
                "models. Call it in a loop, each time in a scope of its own."
            )
        call = Call(partial(msg["fn"], model, data), model, data)
        self.found.append(call)
        msg["fn"] = _Names(call)(msg["fn"])

    def _pyro_post_sample(self, msg: Any) -> None:
        name = msg["name"]
        if name in self.seen:
            raise ValueError(
                f"The program has two sites named {name!r}. Call each model in a scope of its own: with "
                "pyro.contrib.autoname.scope(prefix='a')."
            )
        self.seen.add(name)


class _Names(Messenger):
    """Handles every site of a call twice: first under the model's name for it, last under the program's name."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call, self.own = call, ""

    def _pyro_sample(self, msg: Any) -> None:
        self.own = msg["name"]

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            return
        self.call.names[self.own] = msg["name"]
        if not msg["is_observed"]:
            self.call.latent.add(self.own)
