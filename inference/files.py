"""Files of tensors and plain data: written whole or not at all, read without running code, every changed byte noticed.

    regbayes <schema> <release> <sha256 of the rest of this line and of all that follows>\n
    what torch.save writes

Schema 1 had no first line.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..models.domains import shown
from .plain import plain
from .schema import from_schema_1

try:
    release = version("regbayes")
except PackageNotFoundError:  # a source tree that was never installed
    release = "0+unknown"

SCHEMA = 2


def require_target(name: str, path: Any) -> Path:
    """The file that `path` stands for; `name` is that of the argument.

    Raises
    ------
    ValueError    unless a file can be written there: it is no path, or names a folder, a device, or a folder that is
                  missing, read-only or full.
    """
    whose = f"{name} is {_text(name, path)!r}, "
    try:
        target = Path(path).resolve()
        if not target.parent.is_dir():
            raise ValueError(f"{whose}but there is no folder {str(target.parent)!r}. Make it, or name another file.")
        if target.exists() and not target.is_file():
            raise ValueError(f"{whose}which is a folder or a device. Name a file.")
        with _partial(target) as partial, open(partial, "xb") as file:
            file.write(bytes(4096))
    except OSError as error:
        raise ValueError(f"{whose}where no file can be written: {error.strerror}. Name another file.") from None
    return target


def write_file(path: str | os.PathLike[str], kind: str, content: dict[str, Any]) -> None:
    """Write tensors and plain data so that the file is either the old one or the whole new one.

    Raises
    ------
    ValueError    if the content holds anything else, or a file cannot be written there; `path` is then as it was.
    OSError       if the file cannot be written to its end, as on a full disk; `path` is then as it was.
    """
    content = {name: plain(value, name) for name, value in content.items()} | {"kind": kind}
    target = require_target("path", path)
    with _partial(target) as partial:
        try:
            with open(partial, "xb") as file:
                _write(file, content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        except OSError as error:
            raise type(error)(
                f"{os.fspath(path)!r} could not be written: {error.strerror or error}. It is as it was before."
            ) from error


def read_file(path: str | os.PathLike[str], kind: str, device: Any = None) -> dict[str, Any]:
    """The content of a file written by `write_file`; never runs code from it.

    Raises
    ------
    FileNotFoundError    if there is no such file.
    OSError              if it cannot be read.
    ValueError           if a byte of it was changed, or it is of another kind, or of another schema.
    """
    name = repr(_text(f"The path of the {kind}", path))
    try:
        with open(path, "rb") as file:
            content = _read(file, name, kind, device)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {name}.") from None
    except OSError as error:
        raise type(error)(f"{name} cannot be read: {error.strerror}.") from None
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise ValueError(f"{name} is not a {kind} of regbayes.")
    return content


def require_entries(content: Any, name: str, kinds: dict[str, type]) -> None:
    """Raise ValueError unless `content`, called `name` in messages, is a dict with entries of these types."""
    if not isinstance(content, dict):
        raise ValueError(f"The file has {shown(content)} for its {name}. It was not written by regbayes.")
    for key, kind in kinds.items():
        if not isinstance(content.get(key, _MISSING), kind):
            found = f"{shown(content[key])} for" if key in content else "no"
            raise ValueError(f"The file has {found} {key!r} in its {name}. It was not written by regbayes.")


# -- bytes -------------------------------------------------------------------------------------------------------------


class _Hashed(io.RawIOBase):
    """The part of a file from here on, whose bytes are hashed as they are written."""

    def __init__(self, file: Any, start: bytes) -> None:
        self.file, self.offset, self.sha256 = file, file.tell(), hashlib.sha256(start)
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self.sha256.update(part)
        try:
            return int(self.file.write(part))
        except OSError as error:  # torch puts an error of its own in the place of this one
            self.error = error
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self.file.readinto(buffer))

    def tell(self) -> int:
        return int(self.file.tell()) - self.offset

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        return int(self.file.seek(place + self.offset if whence == os.SEEK_SET else place, whence)) - self.offset


def _write(file: BinaryIO, content: dict[str, Any]) -> None:
    start = f"{SCHEMA} {release}\n".encode()
    head = _MAGIC + start[:-1] + b" "
    file.write(head + bytes(_DIGEST_SIZE) + b"\n")
    body: Any = _Hashed(file, start)
    try:
        torch.save(content, body)
    except RuntimeError:
        raise body.error or OSError("torch could not write it") from None
    file.seek(len(head))
    file.write(body.sha256.hexdigest().encode())


def _read(file: BinaryIO, name: str, kind: str, device: Any) -> Any:
    line = file.readline(_LONGEST_LINE)
    if not line.startswith(_MAGIC):
        file.seek(0)
        try:
            content = _load(file, device)
        except Exception:
            raise _broken(name, kind) from None
        return from_schema_1(content, name, kind)
    parts = line.decode("latin1").removesuffix("\n").split(" ")
    if not line.endswith(b"\n") or len(parts) != 4 or not parts[1].isdecimal():
        raise _broken(name, kind)
    _, schema, written_by, digest = parts
    if int(schema) != SCHEMA:
        raise ValueError(
            f"{name} has schema {schema}, written by regbayes {written_by}; this release reads schemas 1 to {SCHEMA}. "
            "Upgrade regbayes to that version."
        )
    body = _Hashed(file, f"{schema} {written_by}\n".encode("latin1"))
    while part := file.read(_CHUNK):
        body.sha256.update(part)
    if body.sha256.hexdigest() != digest:
        raise _broken(name, kind)
    body.seek(0)
    try:
        return _load(body, device)
    except Exception as error:
        raise ValueError(
            f"{name} is whole, but torch cannot read it here: {error}. If it holds tensors of a device that is not "
            "here, load it with device='cpu'."
        ) from None


def _load(file: Any, device: Any) -> Any:
    return torch.load(file, map_location=device, weights_only=True)


def _text(name: str, path: Any) -> str:
    """The path as text; ValueError if it is none."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{name} is {shown(path)}; expected the path of a file.")
    return text


def _broken(name: str, kind: str) -> ValueError:
    return ValueError(
        f"{name} cannot be read as a {kind}: it is cut short or changed, or not a file that regbayes wrote. "
        "Use an earlier copy."
    )


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A name beside a file to write to, and to take away whatever happens."""
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        yield partial
    finally:
        with suppress(OSError):
            partial.unlink()


_MAGIC = b"regbayes "
_DIGEST_SIZE = 64
_LONGEST_LINE = 256
_CHUNK = 2**20
_MISSING = object()
