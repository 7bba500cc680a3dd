"""Checkpoints: files of chains from which the same fit, and no other, can be resumed bit for bit."""

from __future__ import annotations

import dataclasses
import os
import time
import types
import typing
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...models.ranks import Ranks
from ...models.sums import all_sum, ranks
from ...models.warning import warn
from ..structures import Draw
from .chains import LABELS, SUM, Chain, shares_of
from .files import foreign, require_entries, require_target, write_file
from .fingerprints import Fingerprint, difference, fingerprint
from .plain import plain
from .shards import Shard, Table, read_shards, write_shards


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the fit goes on without it, and the file is unchanged."""


class Checkpoint:
    """A file to which chains are written atomically, every so many seconds and at the end.

    Ranks write one together, each its own rows (see `shards`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: float,
        whose: Fingerprint,
        shard: Shard | None,
        tables: Mapping[str, str],
    ) -> None:
        """Raises ValueError unless the file can be written.

        `tables` are the first axes of the entries of draws, by name.
        """
        require_target("checkpoint", path)
        self._path, self._every, self._whose, self._shard, self._tables = path, every, whose, shard, tables
        self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self._last >= self._every

    def admit(self, chain: Chain) -> None:
        """Raise ValueError if a chain contains something that a file cannot hold; called before any work."""
        plain(_written(chain), "chain")

    def write(self, chains: list[Chain]) -> None:
        """Write the chains; only warn if that fails, so that the fit is not lost."""
        content = {"chains": [_written(chain) for chain in chains], "fingerprint": self._whose}
        try:
            if self._shard is None or (those := ranks()) is None:
                write_file(self._path, "checkpoint", content)
            else:
                content = _marked(content, type(chains[0].state), self._tables, self._shard)
                _require_together(content, those)
                shard = replace(self._shard, name=f"{self._shard.name}-{sum(chain.step for chain in chains)}")
                write_shards(self._path, "checkpoint", content, shard, those.objects)
        except (OSError, ValueError) as error:
            warn(f"No checkpoint: {error}", CheckpointWarning)
        self._last = time.monotonic()


def read_chains(
    path: str | os.PathLike[str],
    state: type[Any],
    device: torch.device,
    whose: Fingerprint,
    shard: Shard | None,
    tables: Mapping[str, str],
) -> list[Chain]:
    """Read the chains of a checkpoint, with states of this class; a rank gets the rows of its shard.

    Raises
    ------
    FileNotFoundError    if there is no such file.
    ValueError           if it was changed, or was written by another fit (names what differs).
    """

    def mark(content: dict[str, Any]) -> dict[str, Any]:
        require_entries(content, "checkpoint", {"fingerprint": dict, "chains": list})
        if differs := difference(content["fingerprint"], whose):
            raise ValueError(f"{os.fspath(path)!r} was written by another fit: {differs}")
        return content if shard is None else _marked(content, state, tables, shard)

    content = read_shards(path, "checkpoint", device, None if shard is None else shard.parts, mark)
    chains = [_read_chain(written, state, device) for written in content["chains"]]
    for name in _sums_of(state) if shard is not None and shard.number else []:  # the first rank has the sum
        for chain in chains:
            chain.state = replace(chain.state, **{name: torch.zeros_like(getattr(chain.state, name))})
    return chains


def _marked(content: dict[str, Any], state: type[Any], tables: Mapping[str, str], shard: Shard) -> dict[str, Any]:
    """The content with a `Table` for each part that is split among ranks: fields of states, and entries of draws."""

    def mark(part: dict[str, Any], axes: Mapping[str, str]) -> dict[str, Any]:
        own = {name: axis for name, axis in axes.items() if axis in shard.sizes and isinstance(part.get(name), Tensor)}
        return part | {name: Table(part[name], split=axis) for name, axis in own.items()}

    def of_chain(chain: dict[str, Any]) -> dict[str, Any]:
        draws = [mark(draw, tables) for draw in chain["draws"]]
        return chain | {"state": mark(chain["state"], shares_of(state)), "draws": draws}

    return content | {"chains": [of_chain(chain) for chain in content["chains"]]}


def _require_together(content: dict[str, Any], those: Ranks) -> None:
    """Raise ValueError on all ranks unless the parts that are not split are the same on each."""
    chains = [{name: chain[name] for name in ("state", "generator", "values", "step")} for chain in content["chains"]]
    states = [
        {name: part for name, part in chain.pop("state").items() if not isinstance(part, Table)} for chain in chains
    ]
    own = fingerprint(chains=dict(enumerate(chains)), states=dict(enumerate(states)))
    first, *others = those.objects(own)
    for rank, each in enumerate(others, 1):
        if differs := [name for name, value in each.items() if value != first[name]]:
            name = differs[0].removeprefix("states.0.")
            raise ValueError(f"ranks 0 and {rank} of {those.size} differ in {name}, which their files do not keep.")


def _written(chain: Chain) -> dict[str, Any]:
    """A chain as tensors and plain data; sums over ranks are complete."""
    parts = _sums_of(type(chain.state))
    state = {item.name: getattr(chain.state, item.name) for item in dataclasses.fields(chain.state)}
    return {
        **{item.name: getattr(chain, item.name) for item in dataclasses.fields(chain)},
        "state": state | {name: all_sum(state[name]) for name in parts},
        "generator": chain.generator.get_state(),
        "values": torch.tensor(chain.values, dtype=torch.float64),
        "times": torch.tensor(chain.times, dtype=torch.float64),
    }


def _sums_of(state: type[Any]) -> list[str]:
    """The names of a state's fields that are sums over ranks, of which each rank has its part."""
    return [name for name, share in shares_of(state).items() if share == SUM]


def _read_chain(written: Any, state: type[Any], device: torch.device) -> Chain:
    require_entries(written, "chain", _CHAIN)
    names = {item.name for item in dataclasses.fields(state)}
    if written["state"].keys() != names or written.keys() != {item.name for item in dataclasses.fields(Chain)}:
        raise ValueError(
            f"The file has a state of {sorted(map(str, written['state']))}; the kernel's own is of {sorted(names)}. "
            "Resume with the version of regbayes that wrote it."
        )
    require_entries(written["state"], "state", _types(state))
    _require_steps(written)
    generator = torch.Generator(device)
    try:
        generator.set_state(written["generator"].cpu())
    except (RuntimeError, TypeError) as error:
        raise foreign(f"no state of a generator: {error}") from None
    lists = {name: written[name].tolist() for name in ("values", "times")}
    return Chain(**{**written, **lists, "state": state(**written["state"]), "generator": generator})


def _types(state: type[Any]) -> dict[str, Any]:
    """The types of the fields of a state with plain types as annotations."""
    try:
        hints = typing.get_type_hints(state)
    except NameError:  # a user's class, with annotations that only a type checker can read
        return {}
    found = {}
    for name, hint in hints.items():
        parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else [hint]
        found[name] = tuple(typing.get_origin(part) or part for part in parts)
    return {name: kinds for name, kinds in found.items() if all(isinstance(kind, type) for kind in kinds)}


def _require_steps(written: dict[str, Any]) -> None:
    """Raise ValueError unless a chain has a value and a time for each step, and draws of one kind."""
    step, draws = written["step"], written["draws"]
    for name in ("values", "times"):
        found = written[name]
        if found.shape != (step,) or found.dtype != torch.float64 or not found.isfinite().all():
            raise foreign(f"{name} of shape {list(found.shape)} and type {found.dtype} for {step} steps")
    for draw in draws:
        require_entries(draw, "draws", dict.fromkeys([*draw, *draws[0]] if isinstance(draw, dict) else [], Tensor))
        if kind_of(draw) != kind_of(draws[0]):
            raise foreign("draws of several kinds in one chain")


def kind_of(draw: Draw) -> dict[str, tuple[torch.dtype, int]]:
    """Type and number of axes of each entry of a draw, which all draws share; assignments may have any integer type."""
    return {name: (torch.int64 if name == LABELS else value.dtype, value.ndim) for name, value in draw.items()}


_CHAIN = _types(Chain) | {"state": dict} | dict.fromkeys(("generator", "values", "times"), Tensor)  # see `_written`
