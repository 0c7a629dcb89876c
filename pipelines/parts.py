"""Read chosen rows of the parts of a split into NumPy columns, checked against the manifest."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.dataset import Dataset, part_schema
from pipelines.errors import UserError
from pipelines.order import Group

_OPEN_PARTS = 32
"""Parts kept open: opening one again parses its footer, which is slow for a part with many row groups."""
_DAMAGED = "copy the data set again, or prepare it again"


@dataclass(frozen=True)
class Bags:
    """Ids of one table."""

    values: np.ndarray
    """int32: ids of all rows end to end."""
    lengths: np.ndarray
    """int32 [rows]: ids of each row; all 1 for a one-hot table."""
    offsets: np.ndarray | None = None
    """int64 [rows + 1] into `values`; None for a one-hot table."""

    def slice(self, first: int, last: int) -> Bags:
        if self.offsets is None:
            return Bags(self.values[first:last], self.lengths[first:last])
        offsets = self.offsets[first : last + 1]
        return Bags(self.values[offsets[0] : offsets[-1]], self.lengths[first:last], offsets - offsets[0])

    def take(self, rows: np.ndarray, ones: np.ndarray) -> Bags:
        """Rows int64 [n] in the given order; `ones` int32 [n] become the lengths of a one-hot table."""
        if self.offsets is None:
            return Bags(self.values[rows], ones)
        taken = bags(self.values, self.lengths[rows])
        assert taken.offsets is not None
        starts = self.offsets[rows] - taken.offsets[:-1]
        index = np.repeat(starts, taken.lengths) + np.arange(taken.offsets[-1])
        return Bags(self.values[index], taken.lengths, taken.offsets)

    @staticmethod
    def concat(items: Sequence[Bags]) -> Bags:
        values = np.concatenate([item.values for item in items])
        lengths = np.concatenate([item.lengths for item in items])
        return Bags(values, lengths) if items[0].offsets is None else bags(values, lengths)


def bags(values: np.ndarray, lengths: np.ndarray) -> Bags:
    """Bags of a multi-hot table."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Bags(values, lengths, offsets)


@dataclass(frozen=True)
class Columns:
    """Rows of a split."""

    dense: np.ndarray
    """float32 [rows, dense columns]"""
    labels: np.ndarray
    """float32 [rows]"""
    tables: list[Bags]
    """In the order of the manifest."""

    @property
    def rows(self) -> int:
        return self.labels.size

    def slice(self, first: int, last: int) -> Columns:
        return Columns(self.dense[first:last], self.labels[first:last], [t.slice(first, last) for t in self.tables])

    def take(self, rows: np.ndarray) -> Columns:
        ones = np.ones(rows.size, np.int32)
        return Columns(self.dense[rows], self.labels[rows], [t.take(rows, ones) for t in self.tables])

    @staticmethod
    def concat(items: Sequence[Columns]) -> Columns:
        return Columns(
            np.concatenate([item.dense for item in items]),
            np.concatenate([item.labels for item in items]),
            [Bags.concat(same) for same in zip(*(item.tables for item in items), strict=True)],
        )


class PartReader:
    """The row groups of a split.

    Args:
        table_rows: per table, ids must be in [0, rows).

    Attributes:
        groups: all row groups, in the order of the manifest.

    Raises:
        UserError: a part is not readable, or its columns, types or rows are not what the manifest says.
    """

    def __init__(self, dataset: Dataset, split: str, table_rows: dict[str, int]) -> None:
        self._schema = part_schema(dataset.manifest)
        self._table_rows = [table_rows[table.name] for table in dataset.manifest.tables]
        self._n_dense = len(dataset.manifest.dense)
        self._paths = [dataset.path / part.path for part in dataset.split(split).parts]
        self._open: dict[int, pq.ParquetFile] = {}
        # Two iterators of one loader may be alive at once, and a ParquetFile must not be read by two threads.
        self._lock = threading.Lock()
        self.groups: list[Group] = []
        for number, part in enumerate(dataset.split(split).parts):
            metadata = self._file(number).metadata
            if metadata.num_rows != part.rows:
                what = f"has {metadata.num_rows} rows, the manifest says {part.rows}"
                raise UserError(what, where=str(self._paths[number]), fix=_DAMAGED)
            sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            self.groups += [Group(number, i, rows) for i, rows in enumerate(sizes)]

    def read(self, groups: Sequence[Group], rows: np.ndarray) -> Columns:
        """Rows int64 [n], counted through `groups`, in the given order; groups without a row are not read.

        Raises:
            UserError: a part is damaged, a value is null, or an id is outside its table.
        """
        ends = np.cumsum([group.rows for group in groups])
        owner = np.searchsorted(ends, rows, side="right")
        used = np.bincount(owner, minlength=len(groups)) > 0
        skipped = np.cumsum([0 if use else group.rows for group, use in zip(groups, used, strict=True)])
        columns = [self._group(group) for group, use in zip(groups, used, strict=True) if use]
        together = columns[0] if len(columns) == 1 else Columns.concat(columns)
        return together.take(rows - skipped[owner])

    def _group(self, group: Group) -> Columns:
        try:
            with self._lock:
                file = self._file(group.part)
                table = file.read_row_group(group.index, columns=self._schema.names, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(group.part, error) from error
        arrays = {}
        for name in self._schema.names:
            arrays[name] = column = table.column(name).combine_chunks()
            if column.null_count or (pa.types.is_list(column.type) and column.values.null_count):
                raise UserError(f"column '{name}' has nulls", where=str(self._paths[group.part]), fix=_DAMAGED)
        label, *names = self._schema.names
        dense = np.empty((group.rows, self._n_dense), np.float32)
        for i, name in enumerate(names[: self._n_dense]):
            dense[:, i] = arrays[name].to_numpy()
        ones = np.ones(group.rows, np.int32)
        tables = [_bags(arrays[name], ones) for name in names[self._n_dense :]]
        for name, bag, size in zip(names[self._n_dense :], tables, self._table_rows, strict=True):
            self._check_ids(name, bag.values, size, group.part)
        return Columns(dense, arrays[label].to_numpy().astype(np.float32), tables)

    def _check_ids(self, name: str, ids: np.ndarray, size: int, part: int) -> None:
        if ids.size and (ids.min() < 0 or ids.max() >= size):
            bad = ids[(ids < 0) | (ids >= size)][0]
            raise UserError(
                f"column '{name}' has id {bad}, outside its table of {size} rows",
                where=str(self._paths[part]),
                fix="give the table as many rows as the data set has ids, or prepare the data again",
            )

    def _file(self, part: int) -> pq.ParquetFile:
        """The part, opened; the last few stay open."""
        if part not in self._open:
            try:
                file = pq.ParquetFile(self._paths[part])
            except (pa.ArrowException, OSError) as error:
                raise self._unreadable(part, error) from error
            self._check_schema(file.schema_arrow, part)
            if len(self._open) == _OPEN_PARTS:
                self._open.pop(next(iter(self._open))).close()
            self._open[part] = file
        return self._open[part]

    def _check_schema(self, found: pa.Schema, part: int) -> None:
        for field in self._schema:
            at = found.get_field_index(field.name)
            if at < 0:
                raise UserError(f"no column '{field.name}'", where=str(self._paths[part]), fix=_DAMAGED)
            kind = found.field(at).type
            same = kind.value_type == field.type.value_type if _both_lists(kind, field.type) else kind == field.type
            if not same:
                what = f"column '{field.name}' is {kind}, the manifest asks for {field.type}"
                raise UserError(what, where=str(self._paths[part]), fix=_DAMAGED)

    def _unreadable(self, part: int, error: Exception) -> UserError:
        return UserError(f"not a readable Parquet file: {error}", where=str(self._paths[part]), fix=_DAMAGED)


def _both_lists(a: pa.DataType, b: pa.DataType) -> bool:
    return pa.types.is_list(a) and pa.types.is_list(b)


def _bags(column: pa.Array, ones: np.ndarray) -> Bags:
    if not pa.types.is_list(column.type):
        return Bags(column.to_numpy(), ones)
    offsets = column.offsets.to_numpy()
    return bags(column.values.to_numpy()[offsets[0] : offsets[-1]], np.diff(offsets))
