"""Checkpoints: files of chains from which the same fit, and no other, goes on bit for bit."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
import types
import typing
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...models.domains import shown
from ..structures import Draw
from .chains import Chain
from .files import foreign, read_file, require_entries, require_target, write_file
from .labels import LABELS
from .plain import inner_name, plain

Fingerprint = dict[str, Any]


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the fit goes on without, and the file is as it was."""


def fingerprint(**parts: Any) -> Fingerprint:
    """What tells a fit from another, by name: values, and digests of tensors and of whatever is long.

    Raises
    ------
    ValueError    if a part holds what no file can keep.
    """
    return dict(_leaves("", {name: _described(name, part) for name, part in parts.items()}))


class Checkpoint:
    """A file that chains are written to, whole or not at all, every so many seconds and at the end."""

    def __init__(self, path: str | os.PathLike[str], every: float, whose: Fingerprint) -> None:
        """Raises ValueError unless the file can be written."""
        require_target("checkpoint", path)
        self._path, self._every, self._whose = path, every, whose
        self._last = time.monotonic()

    def admit(self, chain: Chain) -> None:
        """Raise ValueError if what a chain has is more than a file can keep: before it has done any work."""
        plain(_written(chain), "chain")

    def write(self, chains: list[Chain], *, now: bool = False) -> None:
        """Write the chains if it is time to, or `now`; warn if that fails, since a fit is worth more than its file."""
        if not now and time.monotonic() - self._last < self._every:
            return
        content = {"chains": [_written(chain) for chain in chains], "fingerprint": self._whose}
        try:
            write_file(self._path, "checkpoint", content)
        except (OSError, ValueError) as error:
            warnings.warn(f"No checkpoint: {error}", CheckpointWarning, stacklevel=2)
        self._last = time.monotonic()


def read_chains(
    path: str | os.PathLike[str], state: type[Any], device: torch.device, whose: Fingerprint
) -> list[Chain]:
    """The chains of a checkpoint, with states of this class.

    Raises
    ------
    FileNotFoundError    if there is no such file.
    ValueError           if it was changed, or was written by another fit (names what differs).
    """
    content = read_file(path, "checkpoint", device)
    require_entries(content, "checkpoint", {"fingerprint": dict, "chains": list})
    theirs = content["fingerprint"]
    for name in [*whose, *theirs]:
        one, other = theirs.get(name, "missing"), whose.get(name, "missing")
        if one != other and not (one != one and other != other):  # NaN is itself here
            raise ValueError(
                f"{os.fspath(path)!r} was written by another fit: its {name} is {shown(one)}, here it is "
                f"{shown(other)}. Resume with the same data, model and options; only the number of steps, draws and "
                "chains may grow."
            )
    return [_read_chain(written, state, device) for written in content["chains"]]


def _written(chain: Chain) -> dict[str, Any]:
    """A chain as tensors and plain data."""
    return {
        **{item.name: getattr(chain, item.name) for item in dataclasses.fields(chain)},
        "state": {item.name: getattr(chain.state, item.name) for item in dataclasses.fields(chain.state)},
        "generator": chain.generator.get_state(),
        "values": torch.tensor(chain.values, dtype=torch.float64),
        "times": torch.tensor(chain.times, dtype=torch.float64),
    }


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
    """Types of the fields of a state, of those whose annotation says it."""
    try:
        hints = typing.get_type_hints(state)
    except NameError:  # a class of a user, with annotations that only a type checker can read
        return {}
    found = {}
    for name, hint in hints.items():
        parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else [hint]
        found[name] = tuple(typing.get_origin(part) or part for part in parts)
    return {name: kinds for name, kinds in found.items() if all(isinstance(kind, type) for kind in kinds)}


def _require_steps(written: dict[str, Any]) -> None:
    """Raise ValueError unless a chain has a value and a time of each step, and draws of one kind."""
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
    """What the draws of a chain share, by name: type and number of axes; labels are of whichever integer type."""
    return {name: (torch.int64 if name == LABELS else value.dtype, value.ndim) for name, value in draw.items()}


def _described(name: str, value: Any) -> Any:
    """Plain data with digests for tensors; a data set by its fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _described(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _described(inner_name(name, key), inner) for key, inner in value.items()}
    found = plain(value, name)
    if isinstance(found, Tensor):
        return _digest(found)
    text = repr([_described(name, inner) for inner in found]) if isinstance(found, list | tuple) else found
    return text if not isinstance(text, str) or len(text) <= _LONGEST else _hashed(text.encode())


def _digest(tensor: Tensor) -> str:
    bytes_of = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {list(tensor.shape)} {_hashed(bytes_of)}".removeprefix("torch.")


def _hashed(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(inner_name(name, key), inner)


_LONGEST = 80
_CHAIN = _types(Chain) | {"state": dict} | dict.fromkeys(("generator", "values", "times"), Tensor)  # see `_written`
