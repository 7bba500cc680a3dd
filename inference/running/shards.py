"""Files of a fit among ranks: one with the parts that all ranks share, and one for each rank with its rows.

    PATH, PATH.NAME.0-of-2, PATH.NAME.1-of-2

PATH names the other files. Rows are numbered rank after rank, so that any other number of ranks can find theirs. Parts
of rows, such as the tokens of documents, have an axis of their own, which is numbered in the same way.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from ...models.sums import ranks
from .files import foreign, read_file, write_file


class Table(NamedTuple):
    """A tensor in the content of a file with an entry for each row, or part of a row, along one axis."""

    values: Tensor
    axis: int = 0
    split: str = "N"  # the name of the axis

    def rows(self, parts: Mapping[str, slice]) -> Tensor:
        """A copy of the entries [n, ...] in one part; all if there are none, as in states without rows."""
        some = parts[self.split]
        if not self.values.shape[self.axis]:
            return self.values
        return self.values.narrow(self.axis, some.start, some.stop - some.start).clone()


@dataclass(frozen=True)
class Shard:
    """The rows of one rank, among those of a fit."""

    number: int  # of the rank, from 0
    sizes: dict[str, list[int]]  # number of entries of each rank along each axis; "N": rows
    name: str  # identifies the fit in the names of its files

    @property
    def num_ranks(self) -> int:
        """The number of ranks of the fit."""
        return len(self.sizes["N"])

    @property
    def parts(self) -> dict[str, slice]:
        """The slices of this rank's entries along each axis."""
        ends = {axis: list(accumulate(sizes, initial=0)) for axis, sizes in self.sizes.items()}
        return {axis: slice(*found[self.number : self.number + 2]) for axis, found in ends.items()}

    def file(self, path: str | os.PathLike[str]) -> str:
        """The file with this rank's rows, beside the file at `path`."""
        return f"{os.fspath(path)}.{self.name}.{self.number}-of-{self.num_ranks}"


class Spread(Protocol):
    """The properties of data that `shard_of` needs."""

    @property
    def num_data(self) -> int:
        """N, the number of points or steps."""


def shard_of(data: Spread, number: str) -> Shard | None:
    """The shard of this rank, with these data; None if one process has all data.

    `axes` of data are the numbers of parts of their rows. `number` is the attribute of a stream with its number of
    rows, or with the number of rows that a posterior describes.
    """
    if (those := ranks()) is None:
        return None
    every = those.objects({"N": getattr(data, number, data.num_data)} | getattr(data, "axes", {}))
    return Shard(those.number, {axis: [own[axis] for own in every] for axis in every[0]}, those.name)


def write_shards(
    path: str | os.PathLike[str],
    kind: str,
    content: dict[str, Any],
    shard: Shard | None,
    exchange: Callable[[str], list[str]] = lambda failure: [failure],
) -> None:
    """As `write_file`; each `Table` of a shard goes into its own file, everything else into the first rank's.

    `exchange` tells each rank why the others could not write theirs ("" if they could). With it, an existing file stays
    complete whenever a rank ends or fails, all ranks raise if one cannot write, and the files of all are complete once
    a rank returns.
    """
    if shard is None:
        write_file(path, kind, content)
        return
    tables = list[Table]()
    rest = _parted(content, tables) | {"shards": {"name": shard.name, "sizes": shard.sizes}}
    _on_all(lambda: write_file(shard.file(path), _KIND, {"tables": [table.values for table in tables]}), exchange)
    _on_all(lambda: None if shard.number else write_file(path, kind, rest), exchange)
    if not shard.number:
        _remove_others(path, shard.name)


def _on_all(write: Callable[[], None], exchange: Callable[[str], list[str]]) -> None:
    """Write on this rank; OSError if that fails on another one."""
    failure: OSError | ValueError | None = None
    try:
        write()
    except (OSError, ValueError) as error:
        failure = error
    told = [*filter(None, exchange("" if failure is None else str(failure)))]
    if failure is not None:
        raise failure
    if told:
        raise OSError(told[0])


def read_shards(
    path: str | os.PathLike[str],
    kind: str,
    device: Any = None,
    parts: Mapping[str, slice] | None = None,
    mark: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content,
) -> dict[str, Any]:
    """The content of a file by `write_shards`, from any number of ranks, with these parts of its tables (None: all).

    `mark` turns tensors of a file that one process wrote into `Table`; it may refuse the content.

    Raises
    ------
    FileNotFoundError    if there is no such file, or one of its shards is missing.
    ValueError           if one was changed, or is of another kind.
    """
    content, tables = read_file(path, kind, device), list[Table]()
    shards, rest = content.pop("shards", None), _parted(mark(content), tables)

    def values(index: int, axis: int, split: str) -> Tensor:
        if shards is None:
            return tables[index].values if parts is None else tables[index].rows(parts)
        return torch.cat([Table(of_shard[index], axis, split).rows(some) for of_shard, some in found], axis)

    try:
        found = [] if shards is None else list(_parts(path, Shard(0, shards["sizes"], shards["name"]), device, parts))
        return cast(dict[str, Any], _joined(rest, values))
    except (IndexError, KeyError, RuntimeError, TypeError) as error:
        raise foreign(f"shards that do not go together: {error}") from None


def _parts(
    path: str | os.PathLike[str], shard: Shard, device: Any, parts: Mapping[str, slice] | None
) -> Iterator[tuple[list[Tensor], dict[str, slice]]]:
    """The tables of each shard that has some of the parts, and the slices of its own entries that are needed."""
    for number in range(shard.num_ranks):
        each = replace(shard, number=number)
        some = {axis: _within(own, own if parts is None else parts[axis]) for axis, own in each.parts.items()}
        if any(own.start < own.stop for own in some.values()):
            yield read_file(each.file(path), _KIND, device)["tables"], some


def _within(own: slice, asked: slice) -> slice:
    """The part of a shard's entries that is asked for, counted from its first entry."""
    start, stop = (min(max(end, own.start), own.stop) - own.start for end in (asked.start, asked.stop))
    return slice(start, stop)


def _parted(content: Any, tables: list[Table]) -> Any:
    """The content with a placeholder for each table; tables are appended to the list."""
    if isinstance(content, Table):
        tables.append(content)
        return {_PLACE: [len(tables) - 1, content.axis, content.split]}
    if isinstance(content, dict):
        return {key: _parted(inner, tables) for key, inner in content.items()}
    return [_parted(inner, tables) for inner in content] if isinstance(content, list) else content


def _joined(content: Any, table: Callable[[int, int, str], Tensor]) -> Any:
    """The content with placeholders replaced by table(index, axis, name of the axis)."""
    if isinstance(content, dict):
        if content.keys() == {_PLACE}:
            return table(*content[_PLACE])
        return {key: _joined(inner, table) for key, inner in content.items()}
    return [_joined(inner, table) for inner in content] if isinstance(content, list) else content


def _remove_others(path: str | os.PathLike[str], name: str) -> None:
    """Remove the shards of an earlier file at this path."""
    target = Path(path)
    for other in target.parent.glob(f"{glob.escape(target.name)}.*"):
        found = _SHARD.fullmatch(other.name.removeprefix(target.name))
        if found and found[1] != name:
            with suppress(OSError):
                other.unlink()


_KIND, _PLACE = "shard", "place of a table"
_SHARD = re.compile(r"\.([0-9a-f]{16}(?:-\d+)?)\.\d+-of-\d+")
