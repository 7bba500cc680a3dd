"""Decorators for everything that numba compiles, and a cache of machine code that depends on all sources.

numba keeps the machine code of a function until the function's own file changes. Code of other files that was inlined,
and the fields of a tuple that the function takes, may change unnoticed. But numba names its cache files after the
function, so the name of every entry point gets a digest of all sources. These are the modules of `models` and
`inference` whose names begin with an underscore, and `scalars`: the compiled code and the tuples of arrays that it
takes. Machine code for a compiled form of another file is kept separately: its digest also includes that file and the
files that it imports. So no cache file is read that needs a module which no longer exists.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from numba import jit, njit
from numba.core import event
from numba.extending import overload

from ...models.compiled.scalars import OPTIONS, UNWRAPPED
from ...models.compiled.scalars import inner as inner
from ...models.compiled.scalars import part as part
from .clock import COMPILATION


def entry(function: Callable[..., Any]) -> Any:
    """A compiled function that Python may call, cached on disk until any of the sources changes."""
    return _kept(function, source_digest(), cache=True, **OPTIONS)


def lean_entry(function: Callable[..., Any]) -> Any:
    """An `entry` that allocates no arrays, and so counts no references to those that it is given.

    numba counts references whenever an array is passed on or sliced, which takes most of the time of a short function.
    """
    return _kept(function, source_digest(), cache=True, _nrt=False, **OPTIONS)


# functions that lean entries call more than once; they take arrays and row numbers, because each slice takes numba
# longer to compile than the call; not callable from Python
lean_part = njit(_nrt=False, **UNWRAPPED)


def entry_of(function: Any, form: Any) -> Any:
    """The entry point for arguments with this compiled form: the function, or a separately compiled copy of it.

    Code for a form with parts that are not ours is not kept for other processes.
    """
    kind: Any = type(form)
    ours = all(map(_is_ours, getattr(form, "parts", ())))
    return _entry_for(function, kind) if ours else _passing_entry(function)


def _is_ours(form: Any) -> bool:
    """Whether the digest covers the class of a form and those of its parts."""
    source = getattr(sys.modules.get(type(form).__module__), "__file__", None)
    return source is not None and Path(source) in sources() and all(map(_is_ours, getattr(form, "parts", ())))


@functools.cache
def _passing_entry(function: Any) -> Any:
    """A copy of an entry point whose machine code is not kept for other processes."""
    return _kept(function.py_func, source_digest(), cache=False, **function.targetoptions)


@functools.cache
def _entry_for(function: Any, form: type) -> Any:
    """`entry_of` for a class; code for a class of a script, a notebook or a function is not kept.

    Other processes could not find such a class by its name.
    """
    source, options = getattr(sys.modules.get(form.__module__), "__file__", None), function.targetoptions
    if source is None or form.__module__ in {"__main__", "__mp_main__"} or "<locals>" in form.__qualname__:
        return _passing_entry(function)
    if Path(source) in sources():
        return function
    named = f"{source_digest()} {form.__module__}:{form.__qualname__} ".encode()
    files = b"\0".join(path.read_bytes() for path in _files_behind(form.__module__))
    return _kept(function.py_func, hashlib.sha256(named + files).hexdigest(), cache=True, **options)


def _files_behind(module: str) -> list[Path]:
    """The file of a module and of all that it imports, from its own package or outside of installed libraries."""
    root, found, waiting = module.partition(".")[0], dict[str, Path](), [module]
    while waiting:
        name = waiting.pop()
        path = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        is_library = bool(_LIBRARIES & {*path.parts}) or path.is_relative_to(sysconfig.get_path("stdlib"))
        if name in found or path.suffix != ".py" or (is_library and name.partition(".")[0] != root):
            continue
        found[name] = path
        if not path.is_relative_to(_package()):  # every digest includes its sources
            waiting += _imported(path, sys.modules[name].__package__ or "")
    return [found[name] for name in sorted(found)]


def _imported(source: Path, package: str) -> Iterator[str]:
    """The names of all modules that a file imports, and of the names that it imports from them."""
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def brought(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that compiled forms may define under this name; forms without it use this one."""

    def choose(form: Any, *arguments: Any) -> Any:
        return getattr(getattr(form, "instance_class", None), function.__name__, function)

    overload(function, jit_options=UNWRAPPED, strict=False)(choose)
    return function


def _kept(function: Callable[..., Any], digest: str, **settings: Any) -> Any:
    """The compiled function, with the digest in the names of its cache files."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    functools.update_wrapper(copy, function)
    copy.__qualname__ = f"{function.__name__}_{digest[:16]}"
    return jit(**{"nopython": True, **settings})(copy)


@functools.cache
def source_digest() -> str:
    """A digest of all sources of compiled code."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources())).hexdigest()


@functools.cache
def sources() -> list[Path]:
    """The files with compiled code."""
    private = [path for name in ("inference", "models") for path in (_package() / name).rglob("_*.py")]
    scalars = _package() / "models" / "compiled" / "scalars.py"
    return sorted([scalars, *(path for path in private if not path.name.startswith("__"))])


def _package() -> Path:
    return Path(__file__).parents[2]


class _Listener(event.Listener):
    """Notifies the clock of compilation, and pauses the garbage collector, which would take a tenth of it."""

    collects = False  # whether the collector runs outside of compilations

    def on_start(self, event: Any) -> None:
        if not COMPILATION.depth:
            self.collects = gc.isenabled()
            gc.disable()
        COMPILATION.start()

    def on_end(self, event: Any) -> None:
        COMPILATION.stop()
        if self.collects and not COMPILATION.depth:
            gc.enable()


event.register("numba:compile", _Listener())
_LIBRARIES = {"site-packages", "dist-packages"}  # folders of installed libraries
