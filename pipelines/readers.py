"""Input files to parsed blocks: text (plain or gzip) and Parquet, a few MiB at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import columns
from pipelines.errors import UserError
from pipelines.formats import Schema
from pipelines.layout import parquet_layout, text_layout
from pipelines.parse import PADDING, BadLine, Block, parse_lines

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 20
BATCH_ROWS = 16_384


class Read(NamedTuple):
    """What one step of reading gave."""

    block: Block
    bad: list[BadLine]
    """The first bad lines of the block."""
    n_bad: int
    position: int
    """Bytes of the file read so far (of a Parquet file: estimated from its rows)."""


@dataclass(frozen=True)
class Reader:
    """How to read files of one format."""

    format: str
    schema: Schema
    serve: bool = False
    """Files may lack the label, which then is 0."""

    def read(self, path: Path) -> Iterator[Read]:
        """The rows of a file, in order, in blocks.

        Raises:
            UserError: the file does not fit the format, is damaged, or has an endless line.
        """
        if self.format in ("criteo-parquet", "parquet"):
            return self._parquet(path)
        return self._text(path)

    def _text(self, path: Path) -> Iterator[Read]:
        layout = None
        line = 1
        for buf, start, size, position in _text_blocks(path):
            if layout is None:
                head = bytes(buf[start : min(size, start + (1 << 20))]).decode(errors="replace").split("\n")
                head = [text.removesuffix("\r") for text in head[:-1][:100]] or head[:1]
                layout, header = text_layout(self.format, self.schema, head, str(path), self.serve)
                if header:
                    start = bytes(buf[start:size]).index(b"\n") + 1 + start
                    line += 1
            block, lines, bad, n_bad = parse_lines(buf[start:], size - start, layout, line)
            line += lines
            yield Read(block, bad, n_bad, position)

    def _parquet(self, path: Path) -> Iterator[Read]:
        size = path.stat().st_size
        try:
            with pq.ParquetFile(path, buffer_size=1 << 18, pre_buffer=False) as file:
                names = file.schema_arrow.names
                layout = parquet_layout(self.format, self.schema, names, str(path), self.serve)
                wanted = [name for name, kind in zip(names, layout.fields.kind, strict=True) if kind]
                row = 0
                for batch in file.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False):
                    by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
                    arrays = [by_name.get(name) for name in names]
                    block, bad, n_bad = columns.to_block(arrays, layout, batch.num_rows, row + 1)
                    row += batch.num_rows
                    yield Read(block, bad, n_bad, size * row // file.metadata.num_rows)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UserError(f"cannot read as Parquet: {' '.join(str(error).split())}", where=str(path)) from error


def _text_blocks(path: Path) -> Iterator[tuple[np.ndarray, int, int, int]]:
    """(buffer, start, end, file position) of whole lines; the last line gets its newline where it has none."""
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
        room = BLOCK_BYTES
        data = bytearray(room + 1 + PADDING)
        filled = 0
        first = True
        while True:
            got = _fill(source, memoryview(data)[filled:room], path)
            filled += got
            if got == 0 and filled == 0:
                return
            if got == 0 and data[filled - 1] != 10:
                data[filled] = 10
                filled += 1
            end = data.rfind(b"\n", 0, filled) + 1
            if end == 0:
                if filled == room:
                    room *= 2
                    _check_line(room, path)
                    data = data[:filled] + bytearray(room + 1 + PADDING - filled)
                continue
            start = 3 if first and data.startswith(b"\xef\xbb\xbf") else 0
            first = False
            yield np.frombuffer(data, np.uint8), start, end, raw.tell()
            data[: filled - end] = data[end:filled]
            filled -= end


def _check_line(size: int, path: Path) -> None:
    if size > MAX_LINE_BYTES:
        raise UserError(
            f"a line is longer than {MAX_LINE_BYTES >> 20} MiB", where=str(path), fix="is it the text format you named?"
        )


def _fill(source: BinaryIO, view: memoryview, path: Path) -> int:
    try:
        return source.readinto(view)  # type: ignore[attr-defined]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"damaged gzip file: {error}", where=str(path), fix="copy or download it again") from error
