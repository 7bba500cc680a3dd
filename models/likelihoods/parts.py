"""The arguments that say which columns of X are of which likelihood, or of which part of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..config import Config
from ..domains import Whole


@dataclass(frozen=True)
class Parts:
    """The domain of pairs (likelihood of one kind, number of columns)."""

    kind: type[Any]
    example: str

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"a sequence of pairs (likelihood, number of columns), such as {self.example}"

    def read(self, value: Any) -> list[tuple[Any, int]]:
        """The pairs; ValueError or TypeError if they are none."""
        if isinstance(value, str | bytes | dict | Config) or not len(value):
            raise ValueError
        pairs = [(part, width) for part, width in value]
        for part, width in pairs:
            if not isinstance(part, self.kind) or isinstance(width, bool) or int(width) != width or width < 1:
                raise ValueError
        return [(part.checked(), int(width)) for part, width in pairs]


def require_width(parts: list[tuple[Any, int]], width: int) -> None:
    """ValueError unless the parts have as many columns as X."""
    total = sum(number for _, number in parts)
    if total != width:
        raise ValueError(f"X has {width} columns, but the blocks have {total}. Give every column a block.")


def with_ends(blocks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the blocks name, in one dict: names of block j end in `_j`."""
    return {f"{name}_{index}": value for index, own in enumerate(blocks) for name, value in own.items()}


def ending(values: dict[str, Any], index: int) -> dict[str, Any]:
    """What belongs to block `index`, by the names that the block itself gives."""
    end = f"_{index}"
    return {name.removesuffix(end): value for name, value in values.items() if name.endswith(end)}


@dataclass(frozen=True)
class Columns:
    """The domain of some columns: how many from the first on, or which."""

    words = "an integer of at least 1, how many columns from the first on, or a list of different ones, such as [0, 2]"

    def read(self, value: Any) -> int | list[int]:
        """The number, or the columns as a list; ValueError or TypeError if they are none."""
        if isinstance(value, str | bytes | dict | set):
            raise ValueError
        value = value.tolist() if hasattr(value, "tolist") else value
        if not hasattr(value, "__len__"):
            return Whole(1, _MOST_COLUMNS).read(value)
        columns = [Whole().read(column) for column in value]
        if not columns or len(set(columns)) < len(columns):
            raise ValueError
        return columns


_MOST_COLUMNS = 2**24


def listed(columns: Any) -> list[int]:
    """The columns by their indices: the first so many, or those of the list."""
    read = Columns().read(columns)
    return list(range(read)) if isinstance(read, int) else read
