"""The scratch: parsed rows with ids local to a segment, each key of a segment once.

Hashing every lookup once and only once is what makes `prepare` fast: ranking and encoding work on small local ids.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from pipelines.dataset import ROW_GROUP
from pipelines.intern import Interner
from pipelines.parse import Block

SEGMENT_ROWS = 8 * ROW_GROUP
_LIST_LIMIT = 32 << 20
"""Elements of all lists after which a segment is closed early."""


class SegmentInfo(BaseModel):
    """Sizes of the arrays in a segment file. They lie there as: dense, one-hot, multi-hot, label, keys."""

    model_config = ConfigDict(frozen=True)

    file: str
    """Relative to the scratch."""
    rows: int
    n_dense: int
    n_one_hot: int
    values: list[int]
    """Elements of each list table."""
    keys: list[int]
    """Distinct keys of each table."""

    def table_start(self, table: int) -> int:
        """Where a table's ids (or lengths and ids) begin; of the table after the last one: where the labels do."""
        start = 4 * self.rows * self.n_dense
        if table <= self.n_one_hot:
            return start + 4 * self.rows * table
        before = table - self.n_one_hot
        return start + 4 * (self.rows * table + sum(self.values[:before]))


class SegmentFile:
    """Reads one segment file: a column at a time, or from memory after `load`."""

    def __init__(self, scratch: Path, info: SegmentInfo) -> None:
        self.path, self.info = scratch / info.file, info
        self._labels = info.table_start(len(info.keys))
        self._rows: np.ndarray | None = None

    def load(self) -> SegmentFile:
        """Reads everything but the keys at once."""
        self._rows = np.fromfile(self.path, np.uint8, self._labels + self.info.rows)
        return self

    def _read(self, start: int, count: int, dtype: type) -> np.ndarray:
        if self._rows is not None:
            return self._rows[start : start + count * np.dtype(dtype).itemsize].view(dtype)
        return np.fromfile(self.path, dtype, count, offset=start)

    def label(self) -> np.ndarray:
        """uint8 [rows]."""
        return self._read(self._labels, self.info.rows, np.uint8)

    def dense(self, column: int) -> np.ndarray:
        """float32 [rows], NaN for missing."""
        return self._read(4 * self.info.rows * column, self.info.rows, np.float32)

    def one_hot(self, table: int) -> np.ndarray:
        """int32 [rows] local ids, 0 for missing."""
        return self._read(self.info.table_start(table), self.info.rows, np.int32)

    def multi_hot(self, table: int) -> tuple[np.ndarray, np.ndarray]:
        """(int32 [rows] lengths, int32 [values] local ids)."""
        start, values = self.info.table_start(table), self.info.values[table - self.info.n_one_hot]
        return self._read(start, self.info.rows, np.int32), self._read(start + 4 * self.info.rows, values, np.int32)

    def keys(self, table: int) -> np.ndarray:
        """uint64 keys of the local ids from 1 on."""
        start = self._labels + self.info.rows + 8 * sum(self.info.keys[:table])
        return np.fromfile(self.path, np.uint64, self.info.keys[table], offset=start)


class SegmentWriter:
    """Collects blocks of rows and writes them as segments of `SEGMENT_ROWS` rows.

    Args:
        folder: where the segment files go.
        name: the folder's name in the scratch once it is finished.
    """

    def __init__(self, folder: Path, name: str, n_dense: int, n_one_hot: int, n_lists: int) -> None:
        self.folder, self.name = folder, name
        self.n_dense, self.n_one_hot, self.n_lists = n_dense, n_one_hot, n_lists
        self.segments: list[SegmentInfo] = []
        self._label = np.empty(SEGMENT_ROWS, np.uint8)
        self._dense = np.empty((n_dense, SEGMENT_ROWS), np.float32)
        self._ids = np.empty((n_one_hot, SEGMENT_ROWS), np.int32)
        self._interners = [Interner() for _ in range(n_one_hot + n_lists)]
        self._clear()

    def _clear(self) -> None:
        self._rows = 0
        for interner in self._interners:
            interner.clear()
        self._lengths: list[list[np.ndarray]] = [[] for _ in range(self.n_lists)]
        self._values: list[list[np.ndarray]] = [[] for _ in range(self.n_lists)]
        self._n_values = 0

    def add(self, block: Block) -> None:
        done, n = 0, len(block.label)
        at = [0] * self.n_lists
        while done < n:
            size = min(n - done, SEGMENT_ROWS - self._rows)
            here, there = slice(done, done + size), slice(self._rows, self._rows + size)
            self._label[there] = block.label[here]
            self._dense[:, there] = block.dense[:, here]
            for t in range(self.n_one_hot):
                self._interners[t].add(block.keys[t, here], self._ids[t, there])
            for i in range(self.n_lists):
                lengths = block.lengths[i, here]
                end = at[i] + int(lengths.sum(dtype=np.int64))
                ids = np.empty(end - at[i], np.int32)
                self._interners[self.n_one_hot + i].add(block.values[i][at[i] : end], ids)
                self._lengths[i].append(lengths)
                self._values[i].append(ids)
                self._n_values += len(ids)
                at[i] = end
            self._rows += size
            done += size
            if self._rows == SEGMENT_ROWS or self._n_values > _LIST_LIMIT:
                self._write()

    def close(self) -> list[SegmentInfo]:
        """Writes what is left; all segments."""
        if self._rows:
            self._write()
        return self.segments

    def _write(self) -> None:
        file = f"{len(self.segments):05d}.bin"
        rows = self._rows
        values = [int(sum(map(len, v))) for v in self._values]
        with (self.folder / file).open("wb") as out:
            for dense in self._dense:
                out.write(dense[:rows].data)
            for ids in self._ids:
                out.write(ids[:rows].data)
            for lengths, ids_of_list in zip(self._lengths, self._values, strict=True):
                for array in (*lengths, *ids_of_list):
                    out.write(np.ascontiguousarray(array).data)
            out.write(self._label[:rows].data)
            for interner in self._interners:
                out.write(interner.keys.data)
        self.segments.append(
            SegmentInfo(
                file=f"{self.name}/{file}",
                rows=rows,
                n_dense=self.n_dense,
                n_one_hot=self.n_one_hot,
                values=values,
                keys=[i.size for i in self._interners],
            )
        )
        self._clear()
