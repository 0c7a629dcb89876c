"""Second stage of `prepare`: the values of one table, ranked by frequency in the train split, get their ids."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from pipelines.dataset import FIRST_ID, UNKNOWN_ID
from pipelines.errors import UserError
from pipelines.files import finished, leave, replacing
from pipelines.formats import Column, Schema
from pipelines.intern import Interner
from pipelines.kernel import kernel
from pipelines.segments import SegmentFile, SegmentInfo
from pipelines.splits import Rows, Split
from pipelines.vocabulary import Vocabulary, write_table


class Ranked(BaseModel):
    """Result of ranking one table."""

    rows: int
    """Ids in use, the reserved two included."""
    distinct: int
    """Distinct values in the train split."""
    top1_share: float


@dataclass(frozen=True)
class RankJob:
    """Ranks the values of table number `index` and maps each segment's local ids to ids."""

    index: int
    column: Column
    schema: Schema
    scratch: Path
    out: Path
    segments: list[SegmentInfo]
    split: Split
    limits: tuple[int, int | None]
    """(min_count, max_ids) of `PrepareOptions`."""
    like: Path | None

    def run(self) -> Ranked:
        result = self.scratch / f"ranked-{self.index:05d}.json"
        if (done := finished(result, Ranked)) is not None:
            return done
        target = self.out / "tables" / f"{self.column.name}.parquet"
        ranked = self._rank(target) if self.like is None else self._follow(self.like, target)
        leave(result, ranked)
        return ranked

    def _rank(self, target: Path) -> Ranked:
        interner = Interner()
        totals = np.zeros(512, np.int64)
        missing = row = 0
        seen = self.scratch / f"seen-{self.index:05d}.bin"
        with seen.open("wb") as out:
            for info in self.segments:
                file = SegmentFile(self.scratch, info)
                counts = self._counts(file, self.split.select(row, info.rows)["train"])
                row += info.rows
                keys = file.keys(self.index)
                ids = np.empty(len(keys), np.int32)
                interner.add(keys, ids)
                if interner.size + 1 > len(totals):
                    totals = np.concatenate([totals, np.zeros(max(len(totals), interner.size), np.int64)])
                totals[ids] += counts[1:]
                missing += int(counts[0])
                out.write(ids.data)
        order, kept = _ranking(interner.keys, totals[1 : interner.size + 1], *self.limits)
        counts = totals[1 : interner.size + 1][order]
        ids_of = np.full(interner.size + 1, UNKNOWN_ID, np.int32)
        ids_of[order[:kept] + 1] = np.arange(FIRST_ID, FIRST_ID + kept)
        self._write_map(seen, ids_of)
        unknown = counts[kept:].sum()
        table_counts = np.concatenate([np.array([missing, unknown], np.int64), counts[:kept]])
        schema, column = self.schema, self.column
        keys = interner.keys[order[:kept]]
        write_table(target, keys, table_counts, schema.is_hex(column), schema.missing_of(column))
        top = counts[: -(-len(counts) // 100)].sum() / counts.sum() if len(counts) else 0.0
        return Ranked(rows=FIRST_ID + kept, distinct=len(counts), top1_share=float(top))

    def _counts(self, file: SegmentFile, train: Rows) -> np.ndarray:
        """int64 [keys + 1]: train lookups of each local id; of id 0 the train rows without a value."""
        counts = np.zeros(file.info.keys[self.index] + 1, np.int64)
        if self.index < file.info.n_one_hot:
            _count(file.one_hot(self.index)[train], counts)
        else:
            lengths, ids = file.multi_hot(self.index)
            _, ids = take_lists(lengths, ids, train)
            _count(ids, counts)
            counts[0] = np.count_nonzero(lengths[train] == 0)
        return counts

    def _write_map(self, seen: Path, ids_of: np.ndarray) -> None:
        with seen.open("rb", buffering=0) as source, map_file(self.scratch, self.index).open("wb") as out:
            while len(chunk := np.fromfile(source, np.int32, 1 << 20)):
                out.write(ids_of[chunk].data)
        seen.unlink()

    def _follow(self, like: Path, target: Path) -> Ranked:
        """Takes over the ids of another data set."""
        vocabulary = Vocabulary.open(like, self.column.name)
        if vocabulary.is_hex != self.schema.is_hex(self.column):
            raise UserError(
                f"table '{self.column.name}' has other hashes than in {like}",
                fix="use the format or schema of that data set",
            )
        with map_file(self.scratch, self.index).open("wb") as out:
            for info in self.segments:
                out.write(vocabulary.ids_of(SegmentFile(self.scratch, info).keys(self.index)).data)
        with replacing(target) as temporary:
            shutil.copyfile(like / "tables" / target.name, temporary)
        return Ranked(rows=vocabulary.rows, distinct=vocabulary.rows - FIRST_ID, top1_share=0.0)


def map_file(scratch: Path, table: int) -> Path:
    """int32 ids of the local ids from 1 on, segment after segment."""
    return scratch / f"map-{table:05d}.bin"


def _ranking(keys: np.ndarray, counts: np.ndarray, min_count: int, max_ids: int | None) -> tuple[np.ndarray, int]:
    """(indices of the keys with a count, by falling count, then by key; how many of them get an id)."""
    if len(keys) and keys.max() < 2**32:  # hex keys: far faster than an argsort
        by_key = (np.sort(keys << np.uint64(32) | np.arange(len(keys), dtype=np.uint64)) & np.uint64(0xFFFFFFFF)).view(
            np.int64
        )
    else:
        by_key = np.argsort(keys)
    sorted_counts = counts[by_key]
    # Most values occur once and need no second sort.
    often = by_key[sorted_counts > 1]
    often = often[np.argsort(-counts[often], kind="stable")]
    order = np.concatenate([often, by_key[sorted_counts == 1]])
    kept = int(np.count_nonzero(counts >= min_count)) if min_count > 1 else len(order)
    return order, kept if max_ids is None else min(kept, max(0, max_ids - FIRST_ID))


def take_lists(lengths: np.ndarray, values: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(lengths, values) of some rows of a list column."""
    if isinstance(rows, slice):
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return lengths[rows], values[ends[rows.start] : ends[rows.stop]]
    return lengths[rows], values[np.repeat(rows, lengths)]


@kernel
def _count(ids: np.ndarray, counts: np.ndarray) -> None:
    for i in range(ids.size):
        counts[ids[i]] += 1
