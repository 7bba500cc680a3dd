"""What tells a fit from another: values by name, and digests of tensors, the same however ranks split the rows."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from ...models.sparse import Rows
from ...models.sums import all_rows, all_sum, among, ranks, row_chunks, span
from .plain import inner_name, plain

Fingerprint = dict[str, Any]


def fingerprint(**parts: Any) -> Fingerprint:
    """What tells a fit from another, by name: values, and digests of tensors and of whatever is long.

    Raises
    ------
    ValueError    if a part holds what no file can keep.
    """
    return dict(_leaves("", {name: _described(name, part) for name, part in parts.items()}))


def _described(name: str, value: Any) -> Any:
    """Plain data with digests for tensors; a data set by its fields, but for those that follow from others."""
    if hasattr(value, "rows"):  # of exchangeable rows, `RowData`
        keys = [item.name for item in dataclasses.fields(cast(Any, value)) if item.name not in value.follow]
        return {key: _digest_of_rows(getattr(value, key)) for key in keys}
    if hasattr(value, "sampled"):  # `Stream`
        return _described_sources(name, value)
    if hasattr(value, "starts"):  # `Sequences`
        known = torch.zeros_like(value.starts).index_fill(0, value.steps, True)
        lengths = _described("lengths", all_rows(torch.tensor(value.lengths)).tolist())
        return _described("points", value.points) | {"steps": _digest_of_rows(known), "lengths": lengths}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _described(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _described(inner_name(name, key), inner) for key, inner in value.items()}
    found = plain(value, name)
    if isinstance(found, Tensor):
        return _digest(found)
    text = repr([_described(name, inner) for inner in found]) if isinstance(found, list | tuple) else found
    return text if not isinstance(text, str) or len(text) <= _LONGEST else _hashed(text.encode())


def _described_sources(name: str, value: Any) -> dict[str, Any]:
    """The streams of all ranks, each by its own number, as far as a fit reads them before its first step."""
    with among(None):
        first = repr([_described(name, part) for part in value.sampled()])
    own = {"rows": value.num_own, "columns": value.X.shape[1], "largest block": value.largest}
    own |= {"first rows": _hashed(first.encode()), "blocks": _hashed(repr(value.marks).encode())}
    every = [own] if (those := ranks()) is None else those.objects(own)
    return {"sources": len(every), **{str(rank): each for rank, each in enumerate(every)}}


def _digest(tensor: Tensor) -> str:
    bytes_of = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {list(tensor.shape)} {_hashed(bytes_of)}".removeprefix("torch.")


def _digest_of_rows(table: Rows | None) -> str:
    """A digest of the rows [N, ...] of all ranks: the sum of one number a row, made from its entries and its place."""
    if table is None:
        return "none"
    start, total = span(len(table))
    found = torch.zeros((), dtype=torch.int64, device=table.device)
    for rows in row_chunks(table, 4 * table.shape[1:].numel()):
        some = table[rows]
        places = torch.arange(start + rows.start, start + rows.start + len(some), device=table.device)
        if isinstance(some, Tensor):
            entries = _words(some.reshape(len(some), table.shape[1:].numel()))
            sums = _mixed(entries + _mixed(torch.arange(entries.shape[1], device=table.device))).sum(1)
        else:
            entries = _mixed(_words(some.values) + _mixed(some.columns))
            sums = torch.zeros_like(places).index_add(0, some.row_index, entries)
        found += _mixed(sums + _mixed(places)).sum()
    kind, shape = "" if isinstance(table, Tensor) else " sparse", [total, *table.shape[1:]]
    return f"{table.dtype}{kind} {shape} {int(all_sum(found)) % 2**64:016x}".removeprefix("torch.")


def _words(entries: Tensor) -> Tensor:
    """The bits of numbers [...], as int64."""
    return entries.contiguous().view(_WORDS[entries.element_size()]).long()


def _mixed(words: Tensor) -> Tensor:
    """Numbers [...] int64 all of whose bits depend on all bits of those given (Stafford 2011, mix 13)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        words = (words ^ (words >> shift & (1 << 64 - shift) - 1)) * factor
    return words ^ (words >> 31 & (1 << 33) - 1)


def _hashed(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(inner_name(name, key), inner)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LONGEST = 80
