"""Files of a fit among ranks: one of what all of them have, and beside it one of the rows of each.

    PATH, PATH.NAME.0-of-2, PATH.NAME.1-of-2

PATH says which the others are. Rows are numbered one rank's after the other's, so that any other ranks find theirs.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ...models.sums import ranks
from .files import foreign, read_file, write_file


class Table(NamedTuple):
    """A tensor in the content of a file that has an entry for each row along one axis."""

    values: Tensor
    axis: int = 0

    def rows(self, some: slice) -> Tensor:
        """A copy of the entries [n, ...] of some rows; none are those of none, as of a state that keeps no rows."""
        if not self.values.shape[self.axis]:
            return self.values
        return self.values.narrow(self.axis, some.start, some.stop - some.start).clone()


@dataclass(frozen=True)
class Shard:
    """Which rows of a fit are here: those of one of its ranks."""

    number: int  # of the rank, from 0 on
    sizes: list[int]  # how many rows each rank has
    name: str  # of the fit, in the names of its files

    @property
    def rows(self) -> slice:
        """Those of this rank among those of all."""
        start = sum(self.sizes[: self.number])
        return slice(start, start + self.sizes[self.number])

    def file(self, path: str | os.PathLike[str]) -> str:
        """Where the rows are that belong to the file at a path."""
        return f"{os.fspath(path)}.{self.name}.{self.number}-of-{len(self.sizes)}"


def shard_of(number: int) -> Shard | None:
    """The shard of a rank that has so many rows; None where one process has all."""
    those = ranks()
    return None if those is None else Shard(those.number, those.objects(number), those.name)


def write_shards(
    path: str | os.PathLike[str],
    kind: str,
    content: dict[str, Any],
    shard: Shard | None,
    exchange: Callable[[str], list[str]] = lambda failure: [failure],
) -> None:
    """As `write_file`; of a shard each `Table` in the content goes into its own file, all else is the first rank's.

    `exchange` says what each rank does: why its rows could not be written, or "". With it, a file that is there is
    whole whenever a rank ends.
    """
    if shard is None:
        write_file(path, kind, content)
        return
    tables, failure = list[Table](), ""
    rest = _parted(content, tables)
    try:
        write_file(shard.file(path), _KIND, {"tables": [table.values for table in tables]})
    except (OSError, ValueError) as error:
        failure = str(error)
    if failures := [*filter(None, exchange(failure))]:
        raise OSError(failures[0])
    if not shard.number:
        write_file(path, kind, rest | {"shards": {"name": shard.name, "sizes": shard.sizes}})
        _remove_others(path, shard.name)


def read_shards(
    path: str | os.PathLike[str],
    kind: str,
    device: Any = None,
    rows: slice | None = None,
    mark: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content,
) -> dict[str, Any]:
    """The content of a file by `write_shards` from however many ranks: of its tables some rows; None: all.

    `mark` makes a `Table` of each that is in the content, of a file that one process wrote; it may refuse the content.

    Raises
    ------
    FileNotFoundError    if there is no such file, or one of its shards is missing.
    ValueError           if one was changed, or is of another kind.
    """
    content, tables = read_file(path, kind, device), list[Table]()
    shards, rest = content.pop("shards", None), _parted(mark(content), tables)

    def values(index: int, axis: int) -> Tensor:
        if shards is None:
            return tables[index].values if rows is None else tables[index].rows(rows)
        return torch.cat([Table(of_shard[index], axis).rows(some) for of_shard, some in parts], axis)

    try:
        parts = [] if shards is None else list(_parts(path, Shard(0, shards["sizes"], shards["name"]), device, rows))
        return cast(dict[str, Any], _joined(rest, values))
    except (IndexError, KeyError, RuntimeError, TypeError) as error:
        raise foreign(f"shards that do not go together: {error}") from None


def _parts(
    path: str | os.PathLike[str], shard: Shard, device: Any, rows: slice | None
) -> Iterator[tuple[list[Tensor], slice]]:
    """The tables of each shard that has some of the rows, and which of its own these are."""
    for number, size in enumerate(shard.sizes):
        each = replace(shard, number=number)
        start = each.rows.start
        some = slice(0, size) if rows is None else slice(max(0, rows.start - start), min(size, rows.stop - start))
        if some.start < some.stop:
            yield read_file(each.file(path), _KIND, device)["tables"], some


def _parted(content: Any, tables: list[Table]) -> Any:
    """The content with the place of each table, which goes to the list, in its stead."""
    if isinstance(content, Table):
        tables.append(content)
        return {_PLACE: [len(tables) - 1, content.axis]}
    if isinstance(content, dict):
        return {key: _parted(inner, tables) for key, inner in content.items()}
    return [_parted(inner, tables) for inner in content] if isinstance(content, list) else content


def _joined(content: Any, table: Callable[[int, int], Tensor]) -> Any:
    """The content with a table in each place, by its index and its axis."""
    if isinstance(content, dict):
        if content.keys() == {_PLACE}:
            return table(*content[_PLACE])
        return {key: _joined(inner, table) for key, inner in content.items()}
    return [_joined(inner, table) for inner in content] if isinstance(content, list) else content


def _remove_others(path: str | os.PathLike[str], name: str) -> None:
    """Remove the shards of what was at a path before."""
    target = Path(path)
    for other in target.parent.glob(f"{glob.escape(target.name)}.*"):
        found = _SHARD.fullmatch(other.name.removeprefix(target.name))
        if found and found[1] != name:
            with suppress(OSError):
                other.unlink()


_KIND, _PLACE = "shard", "place of a table"
_SHARD = re.compile(r"\.([0-9a-f]{16}(?:-\d+)?)\.\d+-of-\d+")
