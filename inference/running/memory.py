"""What a fit must hold in memory, argument by argument; refused before any work where there is no room for it."""

from __future__ import annotations

from typing import Any, Protocol

from ...models.host import require_room
from ..protocol import KernelData, Model
from ..structures import structure_of
from .sweeps import Schedule


class Sized(Protocol):
    """What a backend says of how much a fit holds; see `Backend`."""

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...

    def truncation_of(self, model: Model) -> str: ...

    def least_steps(self, schedule: Schedule) -> int: ...


def require_room_to_fit(backend: Sized, model: Model, data: KernelData, schedule: Schedule) -> None:
    """Raise ValueError if the components, the chains, the draws or the trace of a fit are more than memory holds."""
    data, options = getattr(data, "first", data), backend.get_params(deep=False)  # of a stream the first rows
    device, (N, D), item = data.X.device, data.X.shape, data.X.dtype.itemsize
    size = structure_of(model).state_size
    if size is not None and (name := backend.truncation_of(model)):
        number = getattr(model, name)
        require_room(name, number, item * size(model, data, number), device)
    if (batch := options.get("batch_size")) and not hasattr(data, "lengths"):  # of sequences no more than there are
        require_room("batch_size", batch, batch * (item * D + 8), device)
    name, number = next(((name, options[name]) for name in _CHAINS if name in options), ("num_chains", 1))
    require_room(name, number, _CHAIN * number)
    steps = {name: options[name] for name in _STEPS if name in options}
    if not steps:
        return
    longest = max(steps, key=lambda name: steps[name])
    require_room(longest, steps[longest], _STEP * number * backend.least_steps(schedule))
    draws = options.get("num_samples", 1) * number
    require_room("num_samples", options.get("num_samples", 1), draws * (_DRAW + N), device)


_CHAINS = ("num_chains", "num_restarts")
_STEPS = ("num_samples", "num_warmup", "thinning", "num_steps", "max_steps")
_CHAIN = 5000  # bytes: the state of a random generator
_STEP = 64  # bytes: two numbers of Python in lists, a value and a time
_DRAW = 200  # bytes: a tensor
