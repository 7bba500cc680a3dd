"""Files of tensors and plain data: written atomically, read without running code, and checked against changes.

A file has the safetensors format: the length of a header, the header as JSON, and the tensors one after another. The
header begins with

    {"__metadata__":{"regbayes":"<schema> <release> <sha256 of the file, zeros in this place>","kind":...,"content":...

and `content` is JSON with everything that is not a tensor (see `encoding`). The digest detects accidents, such as a
damaged disk or an incomplete copy. It is no signature: whoever changes a file on purpose can also write the digest that
fits.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...models.domains import shown
from .encoding import decoded, encoded
from .plain import TENSOR_TYPES, plain

try:
    release = version("regbayes")
except PackageNotFoundError:  # a source tree that was never installed
    release = "0+unknown"

SCHEMA = 3


def path_text(name: str, path: Any) -> str:
    """The path as text; ValueError if it is no path. `name` is the argument's name in messages."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{name} is {shown(path)}; expected the path of a file.")
    return text


def require_target(name: str, path: Any) -> Path:
    """The file that `path` refers to; `name` is the argument's name in messages.

    Raises
    ------
    ValueError    unless a file can be written there: it is no path, or names a folder, a device, or a folder that is
                  missing, read-only or full, or a link that leads to itself.
    """
    whose = f"{name} is {path_text(name, path)!r}, "
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise ValueError(f"{whose}a link that leads to itself. Name a file.")
        if not target.parent.is_dir():
            raise ValueError(f"{whose}but there is no folder {str(target.parent)!r}. Make it, or name another file.")
        if target.exists() and not target.is_file():
            raise ValueError(f"{whose}which is a folder or a device. Name a file.")
        with partial_file(target) as partial, open(partial, "xb") as file:
            file.write(bytes(4096))
    except OSError as error:
        raise ValueError(f"{whose}where no file can be written: {error.strerror}. Name another file.") from None
    return target


def write_file(path: str | os.PathLike[str], kind: str, content: dict[str, Any]) -> None:
    """Write tensors and plain data atomically: the file is the old one or the complete new one.

    Tensors are not copied in memory, except one at a time those on another device or with gaps.

    Raises
    ------
    ValueError    if the content holds anything else, or a file cannot be written there; `path` is then as it was.
    OSError       if the file cannot be written to its end, as on a full disk; `path` is then as it was.
    """
    parts = _parts(kind, {name: plain(value, name) for name, value in content.items()})
    target = require_target("path", path)
    with partial_file(target) as partial:
        try:
            with open(partial, "xb") as file:
                _write(file, parts)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        except OSError as error:
            raise type(error)(
                f"{os.fspath(path)!r} could not be written: {error.strerror or error}. It is as it was before."
            ) from error


def read_file(path: str | os.PathLike[str], kind: str, device: Any = None) -> dict[str, Any]:
    """The content of a file written by `write_file`; never runs code from it, nor reads more than its size.

    Parameters
    ----------
    device : where the tensors go; None: where they were

    Raises
    ------
    FileNotFoundError    if there is no such file.
    OSError              if it cannot be read.
    ValueError           if a byte of it was changed, or it is of another kind, or of another schema.
    """
    name = repr(path_text(f"The path of the {kind}", path))
    try:
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            raise ValueError(f"{name} is a pipe or a device, not a file that regbayes wrote.")
        with open(path, "rb") as file:
            _require_whole(file, name, kind)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {name}.") from None
    except OSError as error:
        raise type(error)(f"{name} cannot be read: {error.strerror}.") from None
    try:
        with safe_open(os.fspath(path), "pt") as opened:
            return _content(opened, name, kind, device)
    except SafetensorError as error:
        raise ValueError(f"{name} was not written by regbayes: {error}.") from None


def foreign(what: str) -> ValueError:
    """The error for content that regbayes does not write."""
    return ValueError(f"The file has {what}. It was not written by regbayes.")


def require_entries(content: Any, name: str, kinds: dict[str, type]) -> None:
    """Raise ValueError unless `content`, called `name` in messages, is a dict with entries of these types."""
    if not isinstance(content, dict):
        raise foreign(f"{shown(content)} for its {name}")
    for key, kind in kinds.items():
        if not isinstance(content.get(key, _MISSING), kind):
            found = f"{shown(content[key])} for" if key in content else "no"
            raise foreign(f"{found} {key!r} in its {name}")


# -- bytes -------------------------------------------------------------------------------------------------------------


def _parts(kind: str, content: dict[str, Any]) -> Iterator[Any]:
    """The bytes of a file in parts: the start, with zeros for the digest, and each tensor."""
    text, tensors = encoded(content)
    entries, end = {}, 0
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # aligned offsets
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": TENSOR_TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    metadata = {"regbayes": f"{SCHEMA} {release} {_OPEN}", "kind": kind, "content": text}
    header = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > _LONGEST:
        raise ValueError(
            f"The {kind} has {len(tensors)} tensors and {len(text)} characters of other data, more than the "
            f"{_LONGEST // 10**6} MB that a file can keep of them. Put numbers into tensors, or keep fewer draws."
        )
    return chain([len(header).to_bytes(8, "little") + header], map(_bytes_of, tensors.values()))


def _bytes_of(tensor: Tensor) -> Any:
    flat = tensor.cpu().contiguous().as_strided((tensor.numel(),), (1,))  # reshape keeps odd strides of one element
    return flat.view(torch.uint8).numpy()


def _write(file: BinaryIO, parts: Iterator[Any]) -> None:
    whole, place = hashlib.sha256(), -1
    for part in parts:
        place = part.index(_OPEN.encode()) if place < 0 else place
        whole.update(part)
        file.write(part)
    file.seek(place)
    file.write(whole.hexdigest().encode())


def _require_whole(file: BinaryIO, name: str, kind: str) -> None:
    """Raise ValueError unless a file's digest is that of its bytes and its schema that of this release."""
    start = file.read(_CHUNK)
    found = _START.match(start)
    if not found:
        raise _broken(name, kind)
    schema, written_by, digest = (part.decode() for part in found.groups())
    if int(schema) != SCHEMA:
        raise ValueError(
            f"{name} has schema {schema}, written by regbayes {written_by}; this release reads schema {SCHEMA}. "
            "Read it with that version, or a later one of that schema."
        )
    whole = hashlib.sha256(start[: found.start(3)] + _OPEN.encode() + start[found.end(3) :])
    while part := file.read(_CHUNK):
        whole.update(part)
    if whole.hexdigest() != digest:
        raise _broken(name, kind)


def _content(opened: Any, name: str, kind: str, device: Any) -> dict[str, Any]:
    metadata, found, names = opened.metadata(), dict[str, Tensor](), set(opened.keys())
    if metadata.get("kind") != kind:
        raise ValueError(f"{name} is not a {kind} of regbayes.")

    def tensor(key: str, place: str) -> Tensor:
        if key not in names:
            raise ValueError(f"it has no tensor {key[:60]!r}")
        if key not in found:
            found[key] = _on(opened.get_tensor(key), device if device is not None else place, name)
        return found[key]

    try:
        content = decoded(metadata.get("content", ""), tensor)
    except _Elsewhere:
        raise
    except ValueError as error:
        raise ValueError(f"{name} was not written by regbayes: {error}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{name} was not written by regbayes: it has {shown(content)} for its content.")
    return content


class _Elsewhere(ValueError):
    """The file names a device that this machine does not have."""


def _on(tensor: Tensor, device: Any, name: str) -> Tensor:
    """A copy of a tensor on a device; the library's own tensor is a view of the file, which may change."""
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it has no memory")
        return tensor.clone() if torch.device(device).type == "cpu" else tensor.to(device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise _Elsewhere(
            f"{name} is whole, but its tensors cannot be put on the device {device!r} here: "
            f"{str(error).splitlines()[0]}. Load it with device='cpu'."
        ) from None


def _broken(name: str, kind: str) -> ValueError:
    return ValueError(
        f"{name} cannot be read as a {kind}: it is cut short or changed, or not a file that regbayes wrote. "
        "Use an earlier copy."
    )


@contextmanager
def partial_file(target: Path) -> Iterator[Path]:
    """A temporary name beside a file, removed at the end whatever happens."""
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        yield partial
    finally:
        with suppress(OSError):
            partial.unlink()


_OPEN = "0" * 64  # in the place of the digest
_START = re.compile(rb'.{8}\{"__metadata__":\{"regbayes":"(\d{1,9}) ([!#-~]{1,100}) ([0-9a-f]{64})"', re.DOTALL)
_LONGEST = 100_000_000  # the library's limit on a header
_CHUNK = 2**20
_MISSING = object()
