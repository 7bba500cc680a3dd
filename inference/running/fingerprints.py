"""Fingerprints of fits: values by name and digests of tensors, which do not depend on how ranks split the rows."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from ...models.domains import shown
from ...models.sparse import Rows
from ...models.sums import all_rows, all_sum, among, ranks, row_chunks, span
from ..distributed.collectives import on_all
from .plain import inner_name, plain

Fingerprint = dict[str, Any]


def fingerprint(**parts: Any) -> Fingerprint:
    """The fingerprint of a fit: values by name, with digests in place of tensors and long texts.

    Raises
    ------
    ValueError    if a part holds what no file can keep.
    """
    return dict(_leaves("", {name: _described(name, part) for name, part in parts.items()}))


def difference(theirs: Fingerprint, ours: Fingerprint) -> str:
    """The first difference between a checkpoint's fit and this one, with a remedy; "" if there is none.

    What both have comes first: an option may decide which others count, as `batch_size` does.
    """
    for name in sorted([*ours, *theirs], key=lambda name: not (name in ours and name in theirs)):
        one, other = theirs.get(name, "missing"), ours.get(name, "missing")
        if one != other and not (one != one and other != other):  # NaN counts as equal to NaN
            return _difference(name, one, other)
    return ""


def _difference(name: str, theirs: Any, ours: Any) -> str:
    if name == "data.sources" and "missing" not in (theirs, ours):
        return (
            f"it had {theirs} source(s) of rows, one for each rank, and this one has {ours}. A step of SVI sees a "
            f"block of each, so it would see others. Resume with {theirs} rank(s) that have the sources from before, "
            "or fit anew; SmallVariance goes on with any number of ranks."
        )
    what, place = name.removeprefix("data.").removeprefix("points."), "the fit of the checkpoint"
    number, _, key = what.partition(".")
    if key in _NUMBERS and "missing" not in (theirs, ours):
        return (
            f"source {number} has {_NUMBERS[key].format(ours)}, but {_NUMBERS[key].format(theirs)} in {place}. {_SAME}"
        )
    what = f"source {number}" if key == "first rows" else _NAMES.get(what, what)
    found = [_DIGEST.fullmatch(str(each)) for each in (theirs, ours)]
    if found[0] and found[1]:
        for index, has in enumerate(("numbers of type", "shape"), 1):
            one, other = found[0][index], found[1][index]
            if one != other:
                return f"{what} has {has} {other}, but {has} {one} in {place}. {_SAME}"
    if _is_digest(theirs) and _is_digest(ours):
        rows = "other rows" if name.startswith("data.") else "other values"
        return f"{what} has {rows} than {place}. {_SAME}"
    return f"its {name} is {shown(theirs)}, here it is {shown(ours)}. {_SAME}"


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and bool(_DIGEST.fullmatch(value) or _HASH.fullmatch(value))


def _described(name: str, value: Any) -> Any:
    """Plain data with digests in place of tensors; of a data set the fields that do not follow from others."""
    if hasattr(value, "rows"):  # `RowData`: exchangeable rows
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
    """The rows of the streams of all ranks together if a fit reads all of them in each sweep; otherwise each stream.

    Of a single stream it describes the rows that a fit reads before its first step.
    """
    if value.marks:
        return _described_passes(value)
    with among(None):
        first = repr([_described(name, part) for part in value.sampled()])
    own = {"rows": value.num_own, "columns": value.X.shape[1], "largest block": value.largest}
    own |= {"first rows": _hashed(first.encode())}
    every = [own] if (those := ranks()) is None else those.objects(own)
    return {"sources": len(every), **{str(rank): each for rank, each in enumerate(every)}}


def _described_passes(value: Any) -> dict[str, Any]:
    """`_described_sources` for fits that read all rows, whatever the blocks and ranks; takes one more pass."""
    at, total = span(value.num_own)
    kept = [key for key in ("X", "targets") if getattr(value.first, key).shape[1]]

    def passed() -> Tensor:
        start, found = at, torch.zeros(len(kept), dtype=torch.int64, device=value.X.device)
        for data in value.each():
            found += torch.stack([_sum_of_rows(getattr(data, key), start) for key in kept])
            start += data.num_data
        return found

    sums = all_sum(on_all(passed, "go on")).tolist()
    return {key: _shown(getattr(value.first, key), total, each) for key, each in zip(kept, sums, strict=True)}


def _digest(tensor: Tensor) -> str:
    bytes_of = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {list(tensor.shape)} {_hashed(bytes_of)}".removeprefix("torch.")


def _digest_of_rows(table: Rows | None) -> str:
    """A digest of the rows [N, ...] of all ranks: the sum over rows of a hash of the row's entries and its number."""
    if table is None:
        return "none"
    start, total = span(len(table))
    return _shown(table, total, int(all_sum(_sum_of_rows(table, start))))


def _sum_of_rows(table: Rows, start: int) -> Tensor:
    """The sum [] of the hashes of rows [n, ...]; the first one has number `start` among all rows."""
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
    return found


def _shown(table: Rows, total: int, found: int) -> str:
    """The digest of `total` rows like those of a table, from the sum of their hashes."""
    kind, shape = "" if isinstance(table, Tensor) else " sparse", [total, *table.shape[1:]]
    return f"{table.dtype}{kind} {shape} {found % 2**64:016x}".removeprefix("torch.")


def _words(entries: Tensor) -> Tensor:
    """The bits of numbers [...], as int64."""
    return entries.contiguous().view(_WORDS[entries.element_size()]).long()


def _mixed(words: Tensor) -> Tensor:
    """Hashes [...] int64 in which every bit depends on all bits of the argument (Stafford 2011, mix 13)."""
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
_NUMBERS = {"rows": "{} rows", "columns": "{} columns", "largest block": "blocks of up to {} rows"}
_NAMES = {"targets": "y", "x": "X", "weights": "sample_weight", "loss_weights": "loss_weight"}
_HASH = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"(\w+(?: sparse)?) (\[[\d, ]*\]) [0-9a-f]{16,32}")
_SAME = (
    "Resume with the same data, model and options; only the number of draws, chains, restarts and steps may grow, and "
    "that of stochastic steps if num_full_steps=0."
)
