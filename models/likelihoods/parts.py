"""The argument that says which columns of X are of which likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import Config


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
