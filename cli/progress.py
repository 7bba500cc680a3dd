"""Progress bars, on a terminal only."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def bar(total: int, text: str, *, hidden: bool = False, **options: Any) -> Any:
    """A bar on standard error that appears after two seconds and disappears when it is done."""
    options = {"unit_scale": True, "leave": False, "delay": _SECONDS, "file": sys.stderr} | options
    return tqdm(total=total, desc=text, disable=True if hidden else None, **options)


_SECONDS = 2.0
