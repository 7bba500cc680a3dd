"""Docstrings as they are read in the code, made into reStructuredText for the API reference.

Ours are plain text: names in single backticks, equations indented or set by columns, sections underlined, with one
entry a line (`name : type   what it is`) and its continuation indented. Nothing in them is markup, so that `*` and `|`
are what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from typing import Any

SECTION = re.compile(r"-{3,}\s*$")
ENTRY = re.compile(r"(?P<name>\S.*?)(?: : |\s{2,}|$)(?P<text>.*)")


def escape(text: str) -> str:
    """Text in which nothing but what stands in backticks is markup."""

    def piece(found: re.Match[str]) -> str:
        return f"\\ ``{found[1]}``\\ " if found[1] else f"\\{found[0]}"

    return re.sub(r"`+([^`]+)`+|[*|\\_`]", piece, text)


def blocks(lines: list[str]) -> Iterator[list[str]]:
    """Runs of lines between blank ones."""
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def prose(lines: list[str]) -> Iterator[str]:
    """Paragraphs; equations and what is set by columns as literal blocks; examples as they are."""
    for block in blocks(lines):
        if block[0].lstrip().startswith(">>>"):
            yield from block
        elif any(re.search(r"\S {3,}\S", line) for line in block) or block[0][:1] == " ":
            yield from ["::", "", *(f"    {line}" for line in block)]
        else:
            yield escape(" ".join(line.strip() for line in block))
        yield ""


def entries(lines: list[str]) -> Iterator[str]:
    """A definition list of what a section names."""
    for line in lines:
        if not line.strip():
            yield ""
        elif line[:1] != " " and (found := ENTRY.fullmatch(line)):
            yield from ["", f"``{found['name'].strip('`')}``", f"    {escape(found['text']) or '-'}"]
        else:
            yield f"    {escape(line.strip())}"
    yield ""


def convert(lines: list[str]) -> list[str]:
    """A docstring's lines in reStructuredText."""
    starts = [i for i in range(len(lines) - 1) if lines[i].strip() and SECTION.fullmatch(lines[i + 1].strip())]
    out = list(prose(lines[: starts[0]] if starts else lines))
    for start, end in pairwise([*starts, len(lines)] if starts else []):
        title, body = lines[start].strip(), lines[start + 2 : end]
        out += ["", f".. rubric:: {title}", ""]
        out += prose(body) if title in ("References", "Examples", "Source", "Sources", "Notes") else entries(body)
    return out


def signature(obj: Any) -> str | None:
    """The arguments of a dataclass with their defaults as one would write them; None for anything else."""
    if not (isinstance(obj, type) and is_dataclass(obj)):
        return None
    shown = []
    for field in (field for field in fields(obj) if field.init):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        shown.append(field.name if default is MISSING else f"{field.name}={default!r}")
    return f"({', '.join(shown)})"


def setup(app: Any) -> dict[str, Any]:
    """Convert every docstring that autodoc reads, and write out the defaults of configurations."""

    def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        lines[:] = convert(lines)

    def sign(app: Any, what: str, name: str, obj: Any, options: Any, args: str, returns: str) -> Any:
        found = signature(obj)
        return None if found is None else (found, returns)

    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", sign)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
