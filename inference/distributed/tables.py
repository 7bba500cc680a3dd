"""Rows of Parquet and Arrow files, one or several, read by pyarrow: some columns, a part of a file at a time.

Sources of rows and the command line share the functions `dataset_of`, `names_of` and `batches`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray

from ...models.domains import shown
from .sources import Block, RowSource, cut


@dataclass(frozen=True)
class TableRows(RowSource):
    """The rows of a dataset: columns of numbers, and one of labels (or several, of label sets)."""

    dataset: Any
    columns: list[str]  # [D], the names of the features
    targets: list[str]  # of y
    is_matrix: bool  # whether y is [n, C]
    name: str
    path: Path | None = None  # of the file or the folder, without links; None: a dataset

    @classmethod
    def of(cls, X: Any, y: str | list[str] | None, columns: list[str] | None, name: str = "the dataset") -> Self:
        """The dataset at a path, or a dataset itself; see `rows_of`."""
        given = isinstance(X, str | os.PathLike)
        name = repr(os.fspath(X)) if given else name
        with readable(name):
            dataset = dataset_of(X) if given else X
        if not isinstance(dataset, ds.Dataset):
            raise ValueError(
                f"X is {shown(X)}; expected a pyarrow.dataset.Dataset, such as pyarrow.dataset.dataset(path)."
            )
        names = names_of(dataset)
        targets = [] if y is None else [y] if isinstance(y, str) else list(y)
        columns = [found for found in names if found not in targets] if columns is None else list(columns)
        for argument, asked in (("y", targets), ("columns", columns)):
            if unknown := [found for found in asked if found not in names]:
                raise ValueError(f"{argument}: {name} has no column {unknown[0]!r}; its columns are {_listed(names)}.")
        if not columns:
            raise ValueError(f"{name} has no column beside y. Name the features by columns.")
        path = Path(os.path.realpath(X)) if given else None
        found = cls(dataset, columns, targets, y is not None and not isinstance(y, str), name, path)
        for column in [*columns, *(targets if found.is_matrix else [])]:
            found._require_numbers(column)
        return found

    @property
    def num_rows(self) -> int:
        with readable(self.name):
            return int(self.dataset.count_rows())

    @property
    def column_names(self) -> list[str]:
        return self.columns

    def reads(self, path: Path) -> bool:
        files = [Path(os.path.realpath(file)) for file in getattr(self.dataset, "files", [])]
        return path in files or (self.path is not None and self.path in path.parents)

    def named(self, columns: list[str]) -> Self:
        return replace(type(self).of(self.dataset, None, columns, self.name), path=self.path)

    def blocks(self, size: int) -> Iterator[Block]:
        return cut(self._parts(), size)

    def outline(self, size: int) -> Iterator[tuple[int, Any]]:
        if self.targets:
            labels = replace(self, columns=[])
            yield from ((len(X), y) for X, y in labels.blocks(size))
            return
        left = self.num_rows
        while left:
            yield min(size, left), None
            left -= min(size, left)

    def _parts(self) -> Iterator[Block]:
        start = 0
        with readable(self.name):
            for batch in batches(self.dataset, [*self.columns, *self.targets]):
                yield self._rows(batch, start), self._y(batch, start)
                start += len(batch)

    def _rows(self, batch: pa.RecordBatch, start: int) -> NDArray[Any]:
        """The features [n, D], in single precision if all columns have it."""
        kinds = {self.dataset.schema.field(name).type for name in self.columns}
        X = np.empty((len(batch), len(self.columns)), np.float32 if kinds == {pa.float32()} else np.float64)
        for place, name in enumerate(self.columns):
            X[:, place] = self._numbers(batch.column(place), start, name)
        return X

    def _y(self, batch: pa.RecordBatch, start: int) -> Any:
        if not self.targets:
            return None
        columns = batch.columns[-len(self.targets) :]
        if self.is_matrix:
            return np.stack(
                [self._numbers(each, start, name) for each, name in zip(columns, self.targets, strict=True)], 1
            )
        kind = columns[0].type
        if _is_number(kind) and not columns[0].null_count:
            return columns[0].to_numpy(zero_copy_only=False)
        if _is_number(kind):  # null is a missing target
            return columns[0].cast(pa.float64()).to_numpy(zero_copy_only=False)
        self._require_whole(columns[0], start, self.targets[0])
        return np.array(columns[0].to_pylist())

    def _numbers(self, column: pa.Array, start: int, name: str) -> NDArray[Any]:
        self._require_whole(column, start, name)
        found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return found

    def _require_whole(self, column: pa.Array, start: int, name: str) -> None:
        """Raise ValueError on a cell without a value."""
        if column.null_count:
            row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise ValueError(
                f"{self.name} has no value (null) in row {row}, column {name!r}. Fill it, or drop the row."
            )

    def _require_numbers(self, column: str) -> None:
        kind = self.dataset.schema.field(column).type
        if not _is_number(kind):
            raise ValueError(
                f"{self.name} has no numbers in column {column!r}, but {kind}. Encode them, or name the columns of "
                "numbers by columns."
            )


def _is_number(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))


def dataset_of(content: str | os.PathLike[str] | bytes) -> ds.Dataset:
    """The dataset at the path of a file or of a folder of files, or in the bytes of a file.

    Raises
    ------
    FileNotFoundError    if there is no such file.
    ValueError           if it is neither Parquet nor Arrow, or if the files have other columns.
    """
    if isinstance(content, bytes):
        kind = ds.ParquetFileFormat() if content.startswith(_PARQUET) else ds.IpcFileFormat()
        fragment = kind.make_fragment(pa.BufferReader(content))
        return ds.FileSystemDataset([fragment], fragment.physical_schema, kind)
    path, kind = os.fspath(content), _format(Path(content))
    found = ds.dataset(path, format=kind)
    if len(found.files) == 1:
        return found
    schemas = {part.path: part.physical_schema for part in found.get_fragments()}
    first, *others = schemas
    for other in others:
        for file, whole in ((other, first), (first, other)):
            if lost := [name for name in schemas[whole].names if name not in schemas[file].names]:
                raise ValueError(f"{file!r} has no column {lost[0]!r}, but {whole!r} has. Give both the same columns.")
    return ds.dataset(path, _widened(found.schema, list(schemas.values())), kind)


def _widened(first: pa.Schema, every: list[pa.Schema]) -> pa.Schema:
    """The columns of the first file, each with a type that can hold the numbers of this column in every file."""
    fields = []
    for field in first:
        others = (schema.field(place) for schema in every for place in schema.get_all_field_indices(field.name))
        fields.append(reduce(_wider, others, field))
    return pa.schema(fields, first.metadata)


def _wider(one: pa.Field, other: pa.Field) -> pa.Field:
    """The field `one` with a type that can hold the numbers of both; as it is if one has other values than numbers."""
    if one.type == other.type:
        return one
    kinds = [pa.uint8() if pa.types.is_boolean(field.type) else field.type for field in (one, other)]
    with suppress(pa.ArrowException):
        both = [pa.schema([(one.name, kind)]) for kind in kinds]
        return pa.unify_schemas(both, promote_options="permissive").field(0)
    return one


def names_of(dataset: ds.Dataset) -> list[str]:
    """The names of all columns, without the index of a data frame."""
    index = json.loads((dataset.schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    return [name for name in dataset.schema.names if name not in index]


def batches(dataset: ds.Dataset, names: list[str]) -> Iterator[pa.RecordBatch]:
    """All rows with these columns; only a little of the file is in memory at a time, which is also faster."""
    options: dict[str, Any] = {"batch_size": 2**14, "batch_readahead": 2, "fragment_readahead": 1}
    if isinstance(getattr(dataset, "format", None), ds.ParquetFileFormat):
        options["fragment_scan_options"] = ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
    yield from dataset.to_batches(columns=names, **options)


def part_of(dataset: ds.Dataset, number: int, size: int) -> tuple[ds.Dataset, slice]:
    """Part `number` of `size` parts of Parquet files, consecutive whole row groups; also the slice of its rows.

    The parts have about as many rows each. Groups without rows are left out.

    Raises
    ------
    ValueError    if it is of another format, or its row groups do not give each part two rows.
    """
    if not isinstance(dataset.format, ds.ParquetFileFormat):
        raise ValueError("Several ranks read the row groups of a Parquet file, and this is none. Write it as one.")
    every = [group for fragment in dataset.get_fragments() for group in fragment.split_by_row_group()]
    rows = [sum(each.num_rows for each in group.row_groups) for group in every]  # `count_rows` would count all
    groups, sizes = [group for group, own in zip(every, rows, strict=True) if own], [own for own in rows if own]
    ends, places = np.cumsum([0, *sizes]), np.arange(size + 1)  # ends: rows before each group, and all rows
    cuts = np.abs(ends - ends[-1] * places[:, None] / size).argmin(1)  # the first group of each part, and their number
    cuts = np.minimum(np.maximum.accumulate(cuts - places) + places, len(groups) - size + places)  # a group for each
    if len(groups) < size or (np.diff(ends[cuts]) < 2).any():
        raise ValueError(
            f"{len(groups)} row groups are not enough for {size} ranks. Write the file with smaller ones "
            "(row_group_size in pyarrow)."
        )
    own = slice(cuts[number], cuts[number + 1])
    part = ds.FileSystemDataset(groups[own], dataset.schema, dataset.format, dataset.filesystem)
    return part, slice(int(ends[own.start]), int(ends[own.stop]))


@contextmanager
def readable(name: str) -> Iterator[None]:
    """A context in which a broken file, or one with a duplicate name, raises a ValueError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        said = str(error).rstrip(".")
        if "duplicate field names" in said or "Multiple matches for FieldRef" in said:
            raise ValueError(f"{name} has two columns of one name. Rename one of them.") from None
        if "truncated" in said or "not in range" in said:
            raise ValueError(f"{name} has numbers that the type of their column cannot hold: {said}.") from None
        raise ValueError(f"{name} is broken or cut short: {said}. Write it again.") from None


def _format(path: Path) -> str:
    """The format of a file, or of the first file in a folder, by its first bytes."""
    if not path.exists():
        raise FileNotFoundError(f"X is {os.fspath(path)!r}, but there is no such file.")
    first = path
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file() and each.name[0] not in "._")
        if not files:
            raise FileNotFoundError(f"X is {os.fspath(path)!r}, a folder without files.")
        first = files[0]
    with first.open("rb") as file:
        start = file.read(6)
    if not start.startswith((_PARQUET, b"ARROW1")):
        raise ValueError(f"{os.fspath(first)!r} is no Parquet or Arrow file. Write it as one, or pass arrays.")
    return "parquet" if start.startswith(_PARQUET) else "ipc"


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(map(repr, names[:most])) + (f", ... ({len(names)} in all)" if len(names) > most else "")


_PARQUET = b"PAR1"
