"""Files of tables as batches of Arrow columns: text (CSV, perhaps compressed by gzip), Parquet, and Arrow."""

from __future__ import annotations

import csv
import gzip
import io
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, open_csv

from .errors import CommandError, reported
from .progress import bar
from .ranks import rank


@dataclass(frozen=True)
class Source(ABC):
    """A file that is read anew at each use, some rows at a time."""

    path: str  # as messages name it
    content: bytes | None  # of a source that can be read only once, such as standard input

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The names of all columns."""

    @abstractmethod
    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """The rows, with only these columns.

        Raises
        ------
        CommandError    if the file cannot be read to its end as a table.
        """

    def place(self, row: int) -> str:
        """The position of a row, counted from 0, in words for messages."""
        return f"row {self.span.start + row + 1}"

    @cached_property
    def span(self) -> slice:
        """The rows of the file that this source has: all; CommandError as in `batches`."""
        return slice(0, sum(map(len, self.batches(self.names))))

    def own(self) -> Source:
        """The source of this rank's rows; CommandError if the file does not consist of parts."""
        raise CommandError(f"several ranks read the row groups of a Parquet file, and {self.path!r} is none.")

    def opened(self) -> BinaryIO:
        """The bytes of the file."""
        return open(self.path, "rb") if self.content is None else io.BytesIO(self.content)

    @property
    def size(self) -> int:
        """The number of bytes of the file."""
        return Path(self.path).stat().st_size if self.content is None else len(self.content)


def source_of(path: str) -> Source:
    """The file of a path, or standard input for "-"; its first bytes tell its format.

    Raises
    ------
    CommandError    if it is missing, unreadable, or not of the format that its name promises.
    """
    if not path:
        raise CommandError("the path of the table is empty; expected a file, or - for standard input.")
    try:
        once = path == "-" or (Path(path).exists() and not Path(path).is_file())
        content = (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()) if once else None
        found = TextSource("standard input" if path == "-" else path, content)
        with found.opened() as file:
            start = file.read(len(_ARROW))
    except FileNotFoundError:
        raise CommandError(f"there is no file {path!r}.") from None
    except OSError as error:
        raise CommandError(f"{path!r} cannot be read: {error.strerror}.") from None
    if start.startswith((_PARQUET, _ARROW)):
        return ColumnSource(found.path, content)
    if Path(path).suffix in {".parquet", ".arrow", ".feather"}:
        raise CommandError(f"{path!r} is no Parquet or Arrow file, whatever its name says.")
    return found


@dataclass(frozen=True)
class ColumnSource(Source):
    """A Parquet or Arrow (Feather) file, whose columns have types."""

    part: tuple[int, int] = (0, 1)  # of the file's row groups: the index of this part, and the number of parts

    @cached_property
    def names(self) -> list[str]:
        """The names of all columns."""
        from ..inference.distributed.tables import names_of

        with self._readable():
            return names_of(self._dataset)

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """The rows, with only these columns; CommandError as in `Source`, and for implausibly many cells."""
        from ..inference.distributed.tables import batches

        with self._readable():
            most = max(_LEAST_BOUND, _MOST_INFLATION * self.size)
            if (self.span.stop - self.span.start) * len(names) > most:
                raise CommandError(f"{self.path!r} holds over {most:,} cells, more than a file of its size can hold.")
            yield from batches(self._dataset, names)

    @cached_property
    def span(self) -> slice:
        """The indices of the rows in the file; CommandError if it cannot be read."""
        with self._readable():
            return self._rows[1]

    def own(self) -> Source:
        return replace(self, part=rank()) if self.content is None else super().own()

    @property
    def _dataset(self) -> Any:
        return self._rows[0]

    @cached_property
    def _rows(self) -> tuple[Any, slice]:
        """The dataset of this part, and the indices of its rows among all rows."""
        from ..inference.distributed.tables import dataset_of, part_of  # imports torch, which text files do not need

        whole = dataset_of(self.path if self.content is None else self.content)
        return (whole, slice(0, whole.count_rows())) if self.part[1] == 1 else part_of(whole, *self.part)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        from ..inference.distributed.tables import readable

        with reported(), readable(repr(self.path)):
            yield


class TextSource(Source):
    """Cells of text with a header, separated by commas, semicolons or tabs (whichever occurs most in the header).

    Rows of blank cells are skipped. The text is decompressed if it is compressed by gzip.
    """

    @cached_property
    def names(self) -> list[str]:
        """The cells of the header."""
        try:
            return [name.strip() for name in next(self._records(), (0, []))[1]]
        except csv.Error as error:
            hint = "perhaps a quote that is never closed"
            raise CommandError(f"the header of {self.path!r} cannot be read: {error} ({hint}).") from None

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """The rows, with only these columns, as text without surrounding blanks; CommandError as in `Source`."""
        num_seen, chosen = 0, [self.names.index(name) for name in names]  # the header is among the rows read
        for size in _BLOCKS:
            start = 0  # of a batch: with another block size the reading starts again
            try:
                for batch in self._text(size):
                    columns = [pc.utf8_trim_whitespace(batch.column(index)) for index in chosen]
                    yield pa.record_batch(columns, names=names).slice(max(num_seen, 1) - start)
                    start += len(batch)
                    num_seen = max(num_seen, start)
                return
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error):
                    raise self._wrong(str(error)) from None
        raise CommandError(
            f"{self.path!r} is not a CSV file: line {(self._line(num_seen - 1) if num_seen else 0) + 1} has {size:,} "
            "characters or more, perhaps by a quote that is never closed."
        )

    def place(self, row: int) -> str:
        """The line at which a row ends, counted from 0, in words."""
        line = self._line(row + 1)
        return f"line {line}" if line else super().place(row)

    def _text(self, size: int) -> Iterator[pa.RecordBatch]:
        """All rows, the header first, read in blocks of `size` bytes, which no row may exceed."""
        columns = [f"{index}" for index in range(len(self.names))]
        with self._readable(), self._bytes() as file:
            unpacked = cast(_Unpacked, file.raw)
            yield from map(
                _without_blank_rows,
                open_csv(
                    file,
                    ReadOptions(use_threads=False, block_size=size, column_names=columns),
                    ParseOptions(
                        delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=self._skip_blank
                    ),
                    ConvertOptions(column_types=dict.fromkeys(columns, pa.string()), null_values=[]),
                ),
            )
            if unpacked.num_quotes % 2:
                self._require_closed_quotes()

    def _require_closed_quotes(self) -> None:
        """Raise CommandError if a quote is never closed: for Arrow the rest of the file is one cell then."""
        last = 0
        try:
            for line, _ in self._records(strict=True):
                last = line
        except csv.Error as error:
            if "unexpected end of data" in str(error) or "field larger" in str(error):
                raise CommandError(
                    f"{self.path!r} is not a CSV file: a quote in the row after line {last} is never closed."
                ) from None

    def _line(self, record: int) -> int:
        """The line at which a row ends, the header being row 0; 0 if the csv module refuses a cell before it."""
        with suppress(csv.Error):
            return next((line for line, _ in islice(self._records(), record, None)), 0)
        return 0

    def _skip_blank(self, row: Any) -> str:
        return "error" if row.text.replace(self._delimiter, "").strip() else "skip"

    def _wrong(self, said: str) -> CommandError:
        """The error for text that Arrow cannot parse, from Arrow's message."""
        if "UTF8" in said:
            return _not_text(self.path)
        with suppress(csv.Error):
            for line, cells in self._records():
                if len(cells) != len(self.names):
                    return CommandError(
                        f"{self.path}, line {line} has {len(cells)} cells, but the header has {len(self.names)}."
                    )
        return CommandError(f"{self.path!r} is not a CSV file: {said}")

    def _records(self, *, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
        """The rows that are not blank, the header first, each with the line at which it ends; for messages."""
        with self._readable(), self._bytes() as file:
            text = io.TextIOWrapper(file, "utf-8-sig", newline="")
            reader = csv.reader(text, delimiter=self._delimiter, strict=strict)
            yield from ((reader.line_num, row) for row in reader if any(map(str.strip, row)))

    @cached_property
    def _delimiter(self) -> str:
        with self._readable(), self._bytes() as file:
            lines = io.TextIOWrapper(file, "utf-8-sig")
            header = next((line for line in iter(lambda: lines.readline(_LONGEST_LINE), "") if line.strip()), "")
        return max(",;\t", key=header.count)

    @contextmanager
    def _bytes(self) -> Iterator[io.BufferedReader]:
        """The text as bytes, with a progress bar."""
        with self.opened() as stored, bar(self.size, f"reading {Path(self.path).name}", unit="B") as progress:
            yield io.BufferedReader(_Unpacked(self.path, stored, self.size, progress))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError:
            raise _not_text(self.path) from None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise CommandError(
                f"{self.path!r} is compressed by gzip, but broken or cut short. Compress it again."
            ) from None


class _Unpacked(io.RawIOBase):
    """The bytes of a file, decompressed as they are read: a small file may hold more than fits in memory."""

    def __init__(self, path: str, stored: BinaryIO, size: int, progress: Any) -> None:
        self._path, self._stored, self._progress = path, stored, progress
        self._is_packed = stored.read(len(_GZIP)) == _GZIP
        stored.seek(0)
        self._file: Any = gzip.GzipFile(fileobj=stored) if self._is_packed else stored
        self.num_quotes = 0
        self._num_read, self._most = 0, max(_LEAST_BOUND, _MOST_INFLATION * size)

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes; CommandError if they are too many for the size of the file."""
        number: int = self._file.readinto(buffer)
        self._num_read += number
        self.num_quotes += bytes(buffer[:number]).count(b'"')
        if self._is_packed and self._num_read > self._most:
            raise CommandError(
                f"{self._path!r} holds over {self._most:,} characters of text, {_MOST_INFLATION} times its size or "
                "more, as tables hardly do. If it is meant, unpack it first (gunzip) and name that file."
            )
        self._progress.update(self._stored.tell() - self._progress.n)
        return number


def _without_blank_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    is_blank = np.ones(len(batch), dtype=bool)
    for column in batch.columns:
        is_blank &= pc.binary_length(pc.utf8_trim_whitespace(column)).to_numpy() == 0
        if not is_blank.any():
            return batch
    return batch.filter(pa.array(~is_blank))


def _not_text(path: str) -> CommandError:
    return CommandError(f"{path!r} is not a text file in UTF-8. Save it as CSV in UTF-8.")


_GZIP, _PARQUET, _ARROW = b"\x1f\x8b", b"PAR1", b"ARROW1"
_BLOCKS = (2**16, 2**20, 2**24)  # bytes of text in a block; the next size if a row is longer
_LONGEST_LINE = 2**24  # the most bytes in which delimiters are counted
_MOST_INFLATION = 100  # characters of text, or cells, for each byte of a compressed file
_LEAST_BOUND = 2**26
