"""Decorators of everything that numba compiles, and a cache of machine code that notices every change of it.

numba keeps the machine code of a function until the function's own file changes. Code of other files that was inlined
in it may change unnoticed, and so may the fields of a tuple that it takes. But numba also tells entries apart by what a
function closes over, so every entry point closes over a digest of all sources. These are the modules of `inference`
whose names begin with an underscore: what is compiled, and the tuples of arrays that it takes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

from numba import njit

# inf keeps its meaning; a division does not look for zero
OPTIONS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy"}

part = njit(**OPTIONS)
inner = njit(inline="always", **OPTIONS)  # a function of its own takes longer to compile


def entry(function: Callable[..., Any], **options: Any) -> Any:
    """A compiled function that Python may call, cached on disk until any of the sources changes."""
    code = function.__code__.replace(co_freevars=("digest",))
    cell = (CellType(source_digest()),)
    keyed = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cell)
    return njit(cache=True, **OPTIONS, **options)(functools.update_wrapper(keyed, function))


def lean_entry(function: Callable[..., Any]) -> Any:
    """An `entry` that makes no arrays of its own, and so counts no references to those that it is given.

    numba counts them whenever one is passed on or sliced: in the visit of a point that takes longer than all else.
    """
    return entry(function, _nrt=False)


@functools.cache
def source_digest() -> str:
    """A digest of the sources of all that is compiled."""
    sources = sorted(path for path in Path(__file__).parents[1].rglob("_*.py") if not path.name.startswith("__"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
