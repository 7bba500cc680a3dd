"""Decorators of everything that numba compiles, and a cache of machine code that notices every change of it.

numba keeps the machine code of a function until the function's own file changes. Code of other files that was inlined
in it may change unnoticed, and so may the fields of a tuple that it takes. But numba names its own files after the
function, so every entry point has a digest of all sources in its name. These are the modules of `models` and
`inference` whose names begin with an underscore, and `scalars`: what is compiled, and the tuples of arrays that it
takes. Machine code for a compiled form of another file is kept apart, by a digest of that file, and of the files that
it imports, as well. So nobody reads a file of numba's that needs a module which is gone.
"""

from __future__ import annotations

import ast
import functools
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

from ...models.compiled.scalars import OPTIONS
from ...models.compiled.scalars import inner as inner
from ...models.compiled.scalars import part as part
from .clock import COMPILATION


def entry(function: Callable[..., Any]) -> Any:
    """A compiled function that Python may call, cached on disk until any of the sources changes."""
    return _kept(function, source_digest(), cache=True, **OPTIONS)


def lean_entry(function: Callable[..., Any]) -> Any:
    """An `entry` that makes no arrays of its own, and so counts no references to those that it is given.

    numba counts them whenever one is passed on or sliced: in the visit of a point that takes longer than all else.
    """
    return _kept(function, source_digest(), cache=True, _nrt=False, **OPTIONS)


# what lean entries call more than once: given arrays and the numbers of rows, no rows, each of which takes numba longer
# than the call; Python cannot call it
lean_part = njit(_nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)


def entry_of(function: Any, form: Any) -> Any:
    """An entry point for arguments that hold a compiled form: itself, or for a form of a file that is not among the
    sources one whose machine code is kept apart."""
    kind: Any = type(form)
    return _entry_for(function, kind)


@functools.cache
def _entry_for(function: Any, form: type) -> Any:
    """A class of a script, a notebook or a function cannot be found by name in another process: its machine code is not
    kept."""
    source, options = getattr(sys.modules.get(form.__module__), "__file__", None), function.targetoptions
    if source is None or form.__module__ in {"__main__", "__mp_main__"} or "<locals>" in form.__qualname__:
        return _kept(function.py_func, source_digest(), cache=False, **options)
    if Path(source) in sources():
        return function
    named = f"{source_digest()} {form.__module__}:{form.__qualname__} ".encode()
    files = b"\0".join(path.read_bytes() for path in _files_behind(form.__module__))
    return _kept(function.py_func, hashlib.sha256(named + files).hexdigest(), cache=True, **options)


def _files_behind(module: str) -> list[Path]:
    """The file of a module and those of all that it imports: of its own package, and outside of installed libraries."""
    root, found, waiting = module.partition(".")[0], dict[str, Path](), [module]
    while waiting:
        name = waiting.pop()
        path = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        is_library = bool(_LIBRARIES & {*path.parts}) or path.is_relative_to(sysconfig.get_path("stdlib"))
        if name in found or path.suffix != ".py" or (is_library and name.partition(".")[0] != root):
            continue
        found[name] = path
        if not path.is_relative_to(_package()):  # its sources are in every digest
            waiting += _imported(path, sys.modules[name].__package__ or "")
    return [found[name] for name in sorted(found)]


def _imported(source: Path, package: str) -> Iterator[str]:
    """The names of all that a file imports, of modules and of what is taken from them."""
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def brought(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a compiled form that each form brings under its name; those that leave it out have this one."""

    def choose(form: Any, *arguments: Any) -> Any:
        return getattr(getattr(form, "instance_class", None), function.__name__, function)

    overload(function, jit_options=OPTIONS, strict=False)(choose)
    return function


def _kept(function: Callable[..., Any], digest: str, **settings: Any) -> Any:
    """The function compiled, its machine code in files that have the digest in their names."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    functools.update_wrapper(copy, function)
    copy.__qualname__ = f"{function.__name__}_{digest[:16]}"
    return jit(**{"nopython": True, **settings})(copy)


@functools.cache
def source_digest() -> str:
    """A digest of the sources of all that is compiled."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources())).hexdigest()


@functools.cache
def sources() -> list[Path]:
    """The files of all that is compiled."""
    private = [path for name in ("inference", "models") for path in (_package() / name).rglob("_*.py")]
    scalars = _package() / "models" / "compiled" / "scalars.py"
    return sorted([scalars, *(path for path in private if not path.name.startswith("__"))])


def _package() -> Path:
    return Path(__file__).parents[2]


class _Listener(event.Listener):
    """Tells the clock of compilation."""

    def on_start(self, event: Any) -> None:
        COMPILATION.start()

    def on_end(self, event: Any) -> None:
        COMPILATION.stop()


event.register("numba:compile", _Listener())
_LIBRARIES = {"site-packages", "dist-packages"}  # folders of theirs
