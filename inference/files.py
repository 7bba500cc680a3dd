"""Files of tensors and plain data: written whole or not at all, read without running code."""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

try:
    release = version("regbayes")
except PackageNotFoundError:  # a source tree that was never installed
    release = "0+unknown"

SCHEMA = 2


def plain(value: Any, name: str) -> Any:
    """The value as tensors and plain data; `name` says in a message where it stands.

    Raises
    ------
    ValueError    if it holds anything else, such as a function.
    """
    if isinstance(value, dict):
        return {key: plain(inner, _inner_name(name, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        items = [plain(inner, f"{name}[{index}]") for index, inner in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, _PLAIN):
        return value
    raise ValueError(
        f"{name} is {value!r}, which no file can keep: files hold tensors and plain data only. Put a class of regbayes "
        "in its place, or a Config of your own that stores numbers and tensors."
    )


def write_file(path: str | os.PathLike[str], kind: str, content: dict[str, Any]) -> None:
    """Write tensors and plain data so that the file is either the old one or the whole new one.

    Raises
    ------
    ValueError    if the content holds anything else; `path` is then as it was.
    """
    content = {name: plain(value, name) for name, value in content.items()}
    content |= {"kind": kind, "schema": SCHEMA, "version": release}
    folder = Path(path).resolve().parent
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_file(path: str | os.PathLike[str], kind: str, device: Any = None) -> dict[str, Any]:
    """The content of a file written by `write_file`; never runs code from it.

    Raises
    ------
    FileNotFoundError    if there is no such file.
    ValueError           if it is cut short, of another kind, or of another schema.
    """
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r}.") from None
    except Exception as error:
        raise ValueError(
            f"{os.fspath(path)!r} cannot be read as a {kind} ({type(error).__name__}). It is cut short, or not a file "
            "that regbayes wrote; use an earlier copy."
        ) from None
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise ValueError(f"{os.fspath(path)!r} is not a {kind} of regbayes.")
    if content["schema"] != SCHEMA:
        mend = "Upgrade regbayes to that version" if content["schema"] > SCHEMA else "Fit again, or use that version"
        raise ValueError(
            f"{os.fspath(path)!r} has schema {content['schema']}, written by regbayes {content['version']}; this "
            f"release reads schema {SCHEMA}. {mend}."
        )
    return content


def _inner_name(name: str, key: Any) -> str:
    """Where an entry of a dict stands; what `to_plain` adds to describe a configuration goes unsaid."""
    return name if key == "params" else f"{name}.{key}"


_PLAIN = (Tensor, str, bytes, bool, int, float, torch.dtype, torch.device)
