"""Output files: each gets its name only when it is complete, and Ctrl-C leaves the old file unchanged."""

from __future__ import annotations

import codecs
import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from .errors import CommandError, Interrupted


def interrupted_name(path: str | Path) -> Path:
    """The file in which partial results are saved if Ctrl-C stops the work on `path`."""
    return Path(f"{path}.interrupted")


def tell_of_older(path: str | Path) -> None:
    """Warn if results saved by an interrupted earlier run are older than this run's; only the user may delete them."""
    kept = interrupted_name(path)
    if kept.exists():
        said = "of an earlier run that was interrupted, is older than the result"
        print(f"regbayes: {str(kept)!r}, {said}.", file=sys.stderr)


def require_other(path: str | Path, *inputs: str | None) -> None:
    """Raise CommandError if a file to write is one of those that the command reads."""
    if os.path.realpath(path) in [os.path.realpath(each) for each in inputs if each is not None]:
        raise CommandError(f"{str(path)!r} is a file that this command reads; writing would lose it. Name another one.")


def check_output(path: str, *inputs: str | None) -> None:
    """Raise CommandError if a file cannot be written here, or is an input; called before the work."""
    if path == "-":
        raise CommandError("'-' is standard output, which takes tables alone. Name a file.")
    require_other(path, *inputs)
    for name in (interrupted_name(path), path):  # the longest name is tested first
        try:
            os.stat(name)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise CommandError(
                f"{path!r} cannot be written: {getattr(error, 'strerror', error)}. Name another file."
            ) from None
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise CommandError(f"there is no folder {str(folder)!r} to write {Path(path).name!r} to.")
    if Path(path).exists() and not Path(path).is_file():
        raise CommandError(f"{path!r} is a folder or a device; name a file to write.")
    if not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise CommandError(f"{path!r} may not be written: no permission.")


def output_folder(path: str) -> Path:
    """The output folder, created before the work so that a bad path fails early."""
    folder = Path(path)
    if path == "-":
        raise CommandError("--out names a folder, which '-' does not; '-' is for tables and --output.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out {path!r} cannot be made a folder: {error.strerror}.") from None
    return folder


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path`; the file becomes `path` when it is complete, and is deleted otherwise."""
    path = Path(os.path.realpath(path))
    partial = path.with_name(f".{path.name[:40]}.{os.getpid()}.partial")  # file systems limit the length of names
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def text_file(path: str) -> Iterator[TextIO]:
    """A text file to write, compressed if its name ends in .gz.

    Raises
    ------
    Interrupted    on Ctrl-C; what was written so far is saved under its `interrupted_name`.
    """
    with replacing(path) as partial:
        opener: Any = gzip.open if path.endswith(".gz") else open
        try:
            with opener(partial, "wt", encoding="utf-8", newline="") as file:
                yield file
        except KeyboardInterrupt:
            kept = interrupted_name(path)
            os.replace(partial, kept)
            raise Interrupted(f"the rows done so far are in {str(kept)!r}; nothing was written to {path!r}.") from None


def standard_output() -> Any:
    """Standard output as a text file to write, in UTF-8 as other files are."""
    buffer = getattr(sys.stdout, "buffer", None)
    return sys.stdout if buffer is None else codecs.getwriter("utf-8")(buffer)


def delimiter_of(path: str) -> str:
    """The delimiter of a table with this name: a tab for .tsv, else a comma."""
    return "\t" if path.removesuffix(".gz").endswith(".tsv") else ","
