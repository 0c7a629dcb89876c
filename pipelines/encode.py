"""Third stage of `prepare`: segments and the ranked ids to the Parquet parts of the data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from pipelines.dataset import MISSING_ID, ROW_GROUP, UNKNOWN_ID
from pipelines.files import finished, leave, replacing
from pipelines.kernel import kernel
from pipelines.ranking import map_file, take_lists
from pipelines.segments import SegmentFile, SegmentInfo
from pipelines.splits import Rows, Split


class SplitStats(BaseModel):
    """What one split got from one part."""

    rows: int = 0
    positives: int = 0
    dense_missing: list[int]
    """Per dense column."""
    missing: list[int]
    """Per table: rows without a value."""
    unknown: list[int]
    """Per table: lookups of the unknown id."""
    lookups: list[int]
    """Per table: lookups with a value, the unknown ones included."""


class Encoded(BaseModel):
    """Result of encoding one part."""

    splits: dict[str, SplitStats]


@dataclass(frozen=True)
class EncodeJob:
    """Writes part number `index`: consecutive segments of one input file, one Parquet file a split.

    Nothing is written for a split without rows.
    """

    index: int
    scratch: Path
    out: Path
    segments: list[SegmentInfo]
    first_row: int
    map_starts: list[list[int]]
    """Per segment and table: where its ids begin in the table's map file."""
    split: Split
    schema: pa.Schema
    """Of the part: label, dense columns, one-hot tables, multi-hot tables."""

    def path(self, split: str) -> str:
        """Relative to the data set."""
        return f"{split}/part-{self.index:05d}.parquet"

    def run(self) -> Encoded:
        result = self.scratch / f"encoded-{self.index:05d}.json"
        if (done := finished(result, Encoded)) is not None:
            return done
        encoded = Encoded(splits={name: self._write(name) for name in self.split.names})
        leave(result, encoded)
        return encoded

    def _write(self, split: str) -> SplitStats:
        first = self.segments[0]
        n_tables = len(first.keys)
        stats = SplitStats(
            dense_missing=[0] * first.n_dense,
            missing=[0] * n_tables,
            unknown=[0] * n_tables,
            lookups=[0] * n_tables,
        )
        row = self.first_row
        pieces: list[tuple[SegmentInfo, list[int], Rows]] = []
        for info, starts in zip(self.segments, self.map_starts, strict=True):
            rows = self.split.select(row, info.rows)[split]
            size = rows.stop - rows.start if isinstance(rows, slice) else int(np.count_nonzero(rows))
            if size:
                pieces.append((info, starts, rows))
            stats.rows += size
            row += info.rows
        if pieces:
            with replacing(self.out / self.path(split)) as temporary, _PartWriter(temporary, self.schema) as writer:
                for info, starts, rows in pieces:
                    writer.add(self._columns(SegmentFile(self.scratch, info).load(), starts, rows, stats))
        return stats

    def _columns(self, file: SegmentFile, starts: list[int], rows: Rows, stats: SplitStats) -> list[pa.Array]:
        info = file.info
        label = file.label()[rows]
        stats.positives += int(np.count_nonzero(label))
        arrays = [pa.array(label)]
        for column in range(info.n_dense):
            dense = np.ascontiguousarray(file.dense(column)[rows])
            stats.dense_missing[column] += _zero_missing(dense)
            arrays.append(pa.array(dense))
        for table, keys in enumerate(info.keys):
            ids_of = np.empty(keys + 1, np.int32)
            ids_of[0] = MISSING_ID
            ids_of[1:] = np.fromfile(map_file(self.scratch, table), np.int32, keys, offset=4 * starts[table])
            if table < info.n_one_hot:
                ids = np.ascontiguousarray(file.one_hot(table)[rows])
                missing, unknown = _translate(ids, ids_of)
                stats.lookups[table] += len(ids) - missing
                arrays.append(pa.array(ids))
            else:
                lengths, ids = take_lists(*file.multi_hot(table), rows)
                missing = int(np.count_nonzero(lengths == 0))
                _, unknown = _translate(ids, ids_of)
                stats.lookups[table] += len(ids)
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                kind = self.schema.field(len(arrays)).type
                arrays.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids), type=kind))
            stats.missing[table] += missing
            stats.unknown[table] += unknown
        return arrays


class _PartWriter:
    """A Parquet file with row groups of `ROW_GROUP` rows, whatever pieces it gets."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.schema = schema
        # Of the encodings tried, splitting words into byte streams before LZ4 wrote and read fastest for its size:
        # the upper bytes of ranked ids are zero. Values hardly repeat in a way that dictionaries would catch.
        split = {name: "BYTE_STREAM_SPLIT" for name in schema.names if pa.types.is_primitive(schema.field(name).type)}
        split.pop("label")
        self.writer = pq.ParquetWriter(
            path, schema, compression="lz4", use_dictionary=False, write_statistics=False, column_encoding=split
        )
        self.rest = schema.empty_table()

    def __enter__(self) -> _PartWriter:
        return self

    def add(self, arrays: list[pa.Array]) -> None:
        table = pa.concat_tables([self.rest, pa.Table.from_arrays(arrays, schema=self.schema)])
        whole = len(table) // ROW_GROUP * ROW_GROUP
        if whole:
            self.writer.write_table(table.slice(0, whole), row_group_size=ROW_GROUP)
        self.rest = table.slice(whole)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and len(self.rest):
            self.writer.write_table(self.rest)
        self.writer.close()


@kernel
def _zero_missing(values: np.ndarray) -> int:
    """Replaces NaN by 0 in place; how many there were."""
    missing = 0
    for i in range(values.size):
        if np.isnan(values[i]):
            values[i] = np.float32(0)
            missing += 1
    return missing


@kernel
def _translate(ids: np.ndarray, ids_of: np.ndarray) -> tuple[int, int]:
    """Local ids to ids, in place; (missing, unknown) lookups."""
    missing = 0
    unknown = 0
    for i in range(ids.size):
        new = ids_of[ids[i]]
        missing += new == MISSING_ID
        unknown += new == UNKNOWN_ID
        ids[i] = new
    return missing, unknown
