"""Domains of the arguments that assign columns of X to likelihoods, or to parts of one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..config import Config
from ..domains import Whole


@dataclass(frozen=True)
class Parts:
    """The domain of a list of pairs (likelihood of the class `kind`, number of columns)."""

    kind: type[Any]
    example: str

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"a sequence of pairs ({self.kind.__name__}, number of columns), such as {self.example}"

    def read(self, value: Any) -> list[tuple[Any, int]]:
        """The pairs; ValueError or TypeError if the value is not a list of pairs."""
        if isinstance(value, str | bytes | dict | Config) or not len(value):
            raise ValueError
        pairs = [(part, width) for part, width in value]
        for part, width in pairs:
            if not isinstance(part, self.kind) or isinstance(width, bool) or int(width) != width or width < 1:
                raise ValueError
        return [(part.checked(), int(width)) for part, width in pairs]


def require_width(parts: list[tuple[Any, int]], width: int) -> None:
    """Raise ValueError unless the parts have `width` columns in all."""
    total = sum(number for _, number in parts)
    if total != width:
        raise ValueError(f"X has {width} columns, but the blocks have {total}. Give every column a block.")


def with_ends(blocks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The values of all blocks in one dict, where names of block j get the ending `_j`."""
    return {f"{name}_{index}": value for index, own in enumerate(blocks) for name, value in own.items()}


def ending(values: dict[str, Any], index: int) -> dict[str, Any]:
    """The values of block `index`, under the names without the ending."""
    end = f"_{index}"
    return {name.removesuffix(end): value for name, value in values.items() if name.endswith(end)}


@dataclass(frozen=True)
class Columns:
    """The domain of a set of columns: the number of the first columns, or a list of indices."""

    words = "an integer of at least 1, how many columns from the first on, or a list of different ones, such as [0, 2]"

    def read(self, value: Any) -> int | list[int]:
        """The number, or the columns as a list; ValueError or TypeError if the value is neither."""
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
    """The indices of the columns: 0..n - 1 for a number n, or the list itself."""
    read = Columns().read(columns)
    return list(range(read)) if isinstance(read, int) else read
