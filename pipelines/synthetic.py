"""A Criteo-like data set with a planted signal (`pipelines.planted`), so that the best possible AUC is known.

Every draw comes from a generator seeded by (seed, stream, chunk, column): no batch repeats
(meta-pytorch/torchrec#1330), the same seed gives the same bytes, and ids need not be stored to be counted, ranked
and then written: they are generated twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.dataset import (
    FIRST_ID,
    MANIFEST,
    MISSING_ID,
    ROW_GROUP,
    UNKNOWN_ID,
    DenseInfo,
    Manifest,
    PartInfo,
    Planted,
    SplitInfo,
    TableInfo,
    part_schema,
)
from pipelines.errors import UserError
from pipelines.metrics import auc
from pipelines.planted import Draw, Signal, draw_dense, draw_ids, generator, sigmoid, zipf_cdf

KAGGLE_ROWS = 45_840_617
KAGGLE_TABLES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Distinct values of C1..C26 in the Criteo Kaggle training file of `KAGGLE_ROWS` rows."""
SMALL_TABLE = 1000
"""Tables up to this many distinct values keep their size in a smaller data set."""
MISSING_SHARES = (0.0, 0.0, 0.03, 0.0, 0.2)
"""Share of missing values, by table number modulo 5."""
CALIBRATION_ROWS = 65_536
# Streams of draws, beside `planted.HIDDEN`.
TRAIN, VALID, CALIBRATION = 1, 2, 3
STREAMS = {"train": TRAIN, "valid": VALID}
# Last part of a generator's key; tables come after these.
DENSE, LABELS, TABLES = 0, 1, 2

Progress = Callable[[int, int], None]


@dataclass
class SynthOptions:
    """What to generate."""

    rows: int = 1_000_000
    """Rows of both splits together."""
    valid_share: float = 0.1
    """Share of the rows that goes to the valid split."""
    tables: int = 26
    """Categorical columns C1, C2, ..."""
    rows_per_table: list[int] | None = None
    """Distinct values that each table draws from; by default Criteo Kaggle's, the large ones scaled to `rows`."""
    exponents: float | list[float] = 1.1
    """Zipf exponent, one for all tables or one each; 0 is uniform, larger is more skewed."""
    dense: int = 13
    """Dense columns I1, I2, ..."""
    multi_hot: dict[str, float] = field(default_factory=dict)
    """Mean list length of each table that is multi-hot; lengths are Poisson, so some lists are empty."""
    base_rate: float = 0.25
    """Share of positive labels."""
    seed: int = 0
    """Another seed is another data set with another hidden rule."""
    part_rows: int = 16 * ROW_GROUP
    """Rows of a part file, which are also the rows held in memory at a time."""

    def __post_init__(self) -> None:
        """Raises UserError for a value out of range."""
        lists = {"rows_per_table": self.rows_per_table, "exponents": self.exponents}
        problems = [
            (self.rows < 2, f"rows = {self.rows} is below 2"),
            (not 0 < self.valid_share < 1, f"valid_share = {self.valid_share} is not between 0 and 1"),
            (self.tables < 1, f"tables = {self.tables} is below 1"),
            (self.dense < 1, f"dense = {self.dense} is below 1"),
            (not 0 < self.base_rate < 1, f"base_rate = {self.base_rate} is not between 0 and 1"),
            (self.part_rows < 1, f"part_rows = {self.part_rows} is below 1"),
            (self.seed < 0, f"seed = {self.seed} is negative"),
            *((len(v) != self.tables, f"{k} has {len(v)} entries for {self.tables} tables")
              for k, v in lists.items() if isinstance(v, list)),
            (min(self.rows_per_table or [1]) < 1, "rows_per_table has an entry below 1"),
            (min(np.atleast_1d(self.exponents), default=0) < 0, f"exponents = {self.exponents} has a negative one"),
            *((k not in self.names, f"multi_hot names '{k}', which is not one of C1..C{self.tables}")
              for k in self.multi_hot),
            *((v <= 0, f"multi_hot {k} has mean length {v}") for k, v in self.multi_hot.items()),
        ]  # fmt: skip
        for wrong, what in problems:
            if wrong:
                raise UserError(what, where="synth options")

    @property
    def names(self) -> list[str]:
        return [f"C{i + 1}" for i in range(self.tables)]


def write_synthetic(
    out: Path, options: SynthOptions, *, overwrite: bool = False, progress: Progress | None = None
) -> Manifest:
    """Write a synthetic data set in the layout of `pipelines.dataset`; memory does not grow with the rows.

    Args:
        out: folder, made if absent.
        overwrite: replace the data set that is there.
        progress: called with (rows done, rows in all); train rows count twice, as they are generated twice.

    Raises:
        UserError: `out` is not empty, or all labels of the valid split came out equal (too few rows).
    """
    _clear(out, overwrite)
    source = _Source(options)
    total, done = 2 * source.rows["train"] + source.rows["valid"], 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if progress:
            progress(done, total)

    ids, tables = _write_tables(out, source, advance)
    manifest = Manifest(
        synthetic=True,
        label="label",
        dense=[DenseInfo(name=f"I{i + 1}") for i in range(options.dense)],
        tables=tables,
        splits={},
        split_rule=f"the last {source.rows['valid']} generated rows are valid",
        source_format="synthetic",
    )
    schema, splits, unknown = part_schema(manifest), {}, {}
    for split in STREAMS:
        splits[split], unknown[split], logits, labels = _write_split(out, source, split, ids, schema, advance)
    best = auc(labels, logits)
    if best is None:
        raise UserError("all labels of the valid split are equal", where=str(out), fix="generate more rows")
    tables = [
        table.model_copy(update={"unknown": {split: unknown[split][t] for split in STREAMS}})
        for t, table in enumerate(tables)
    ]
    planted = Planted(best_auc=best, seed=options.seed, exponents=source.exponents)
    manifest = manifest.model_copy(update={"tables": tables, "splits": splits, "planted": planted})
    _finish(out, manifest)
    return manifest


class _Source:
    """Draws any chunk of the data set, again and again the same."""

    def __init__(self, options: SynthOptions) -> None:
        self.options = options
        valid = min(max(1, round(options.rows * options.valid_share)), options.rows - 1)
        self.rows = {"train": options.rows - valid, "valid": valid}
        self.rows_per_table = options.rows_per_table or default_rows_per_table(options.rows, options.tables)
        given = options.exponents
        self.exponents = given if isinstance(given, list) else [float(given)] * options.tables
        n = CALIBRATION_ROWS
        dense, draws = self.dense(CALIBRATION, 0, n), [self.draw(CALIBRATION, 0, n, t) for t in range(options.tables)]
        self.signal = Signal(options.seed, self.rows_per_table, dense, draws, options.base_rate)

    def chunks(self, split: str) -> Iterator[tuple[int, int]]:
        """(chunk, rows) of each part."""
        size, rows = self.options.part_rows, self.rows[split]
        return ((chunk, min(size, rows - chunk * size)) for chunk in range(-(-rows // size)))

    def draw(self, stream: int, chunk: int, rows: int, table: int) -> Draw:
        return draw_ids(
            self._generator(stream, chunk, TABLES + table),
            rows,
            zipf_cdf(self.rows_per_table[table], self.exponents[table]),
            MISSING_SHARES[table % len(MISSING_SHARES)],
            self.options.multi_hot.get(self.options.names[table]),
        )

    def dense(self, stream: int, chunk: int, rows: int) -> np.ndarray:
        return draw_dense(self._generator(stream, chunk, DENSE), rows, self.options.dense)

    def labels(self, stream: int, chunk: int, logits: np.ndarray) -> np.ndarray:
        return (self._generator(stream, chunk, LABELS).random(logits.size) < sigmoid(logits)).astype(np.uint8)

    def _generator(self, stream: int, chunk: int, column: int) -> np.random.Generator:
        return generator(self.options.seed, stream, chunk, column)


def default_rows_per_table(rows: int, tables: int) -> list[int]:
    """Distinct values like Criteo Kaggle's for a data set of this many rows, repeated where `tables` is above 26."""
    scale = min(1.0, rows / KAGGLE_ROWS)
    sizes = [max(min(size, SMALL_TABLE), round(size * scale)) for size in KAGGLE_TABLES]
    return [sizes[t % len(sizes)] for t in range(tables)]


def _write_tables(
    out: Path, source: _Source, advance: Callable[[int], None]
) -> tuple[list[np.ndarray], list[TableInfo]]:
    """First pass: count the train split, rank each table's values by count, write tables/.

    Returns:
        Per table the id of each value, int32 [distinct values + 1], whose last entry is for the missing value -1.
    """
    counts = [np.zeros(n, np.int64) for n in source.rows_per_table]
    missing = [0] * len(counts)
    for chunk, rows in source.chunks("train"):
        for t, count in enumerate(counts):
            draw = source.draw(TRAIN, chunk, rows, t)
            missing[t] += int(np.count_nonzero(draw.ranks < 0 if draw.lengths is None else draw.lengths == 0))
            count += np.bincount(draw.ranks[draw.ranks >= 0], minlength=count.size)
        advance(rows)
    ids, tables = [], []
    for t, (name, count) in enumerate(zip(source.options.names, counts, strict=True)):
        ranked = np.argsort(-count, kind="stable")[: np.count_nonzero(count)]
        of_value = np.full(count.size + 1, UNKNOWN_ID, np.int32)
        of_value[ranked] = np.arange(FIRST_ID, FIRST_ID + ranked.size, dtype=np.int32)
        of_value[-1] = MISSING_ID
        ids.append(of_value)
        multi_hot = name in source.options.multi_hot
        sorted_counts = count[ranked]
        _write_table(out / f"tables/{name}.parquet", t, ranked, sorted_counts, 0 if multi_hot else missing[t])
        top = sorted_counts[: -(-ranked.size // 100)].sum() / max(1, sorted_counts.sum())
        rows = FIRST_ID + ranked.size
        tables.append(TableInfo(name=name, rows=rows, multi_hot=multi_hot, missing=missing[t], top1_share=float(top)))
    return ids, tables


def _write_table(path: Path, table: int, ranked: np.ndarray, counts: np.ndarray, missing: int) -> None:
    """Keys stand for the hashed strings of a real log: table number and value, mixed by an odd multiplier."""
    mixed = (ranked.astype(np.uint64) | np.uint64(table << 40)) * np.uint64(0x9E3779B97F4A7C15)
    keys = pa.concat_arrays([pa.nulls(FIRST_ID, pa.uint64()), pa.array(mixed)])
    ids = pa.array(np.arange(FIRST_ID + ranked.size, dtype=np.int32))
    all_counts = pa.array(np.concatenate([[missing, 0], counts]).astype(np.int64))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids, "key": keys, "count": all_counts}), path, row_group_size=ROW_GROUP)


def _write_split(
    out: Path, source: _Source, split: str, ids: list[np.ndarray], schema: pa.Schema, advance: Callable[[int], None]
) -> tuple[SplitInfo, list[int], np.ndarray, np.ndarray]:
    """Second pass. Returns the split, unknown lookups per table, and the true logits and labels of the valid split."""
    stream, parts, positives, unknown = STREAMS[split], [], 0, [0] * len(ids)
    kept: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0), np.empty(0, np.uint8))]
    (out / split).mkdir(parents=True, exist_ok=True)
    for chunk, rows in source.chunks(split):
        dense, draws = source.dense(stream, chunk, rows), [source.draw(stream, chunk, rows, t) for t in range(len(ids))]
        logits = source.signal.logits(dense, draws)
        labels = source.labels(stream, chunk, logits)
        columns = [pa.array(labels), *(pa.array(column) for column in dense.T)]
        for t, draw in enumerate(draws):
            values = ids[t][draw.ranks]
            unknown[t] += int(np.count_nonzero(values == UNKNOWN_ID))
            columns.append(_id_column(values, draw.lengths, schema.field(1 + dense.shape[1] + t).type))
        path = f"{split}/part-{chunk:05d}.parquet"
        pq.write_table(pa.table(columns, schema=schema), out / path, row_group_size=ROW_GROUP)
        parts.append(PartInfo(path=path, rows=rows, source=f"seed {source.options.seed}, {split} chunk {chunk}"))
        positives += int(labels.sum())
        if split == "valid":
            kept.append((logits, labels))
        advance(rows)
    all_logits, all_labels = (np.concatenate(column) for column in zip(*kept, strict=True))
    return SplitInfo(rows=source.rows[split], positives=positives, parts=parts), unknown, all_logits, all_labels


def _id_column(values: np.ndarray, lengths: np.ndarray | None, dtype: pa.DataType) -> pa.Array:
    if lengths is None:
        return pa.array(values)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=dtype)


def _clear(out: Path, overwrite: bool) -> None:
    """Remove what an earlier run left, the manifest first, so that no reader takes a mixture for a data set."""
    ours = [MANIFEST, f"{MANIFEST}.tmp", "summary.txt", "train", "valid", "tables"]
    found = {p.name for p in out.iterdir()} if out.is_dir() else set()
    if out.exists() and (not out.is_dir() or found - set(ours)):
        raise UserError("holds other files than a data set", where=str(out), fix="name a new folder")
    if found and not overwrite:
        raise UserError("is not empty", where=str(out), fix="name a new folder, or allow to overwrite it")
    for name in ours:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)


def _finish(out: Path, manifest: Manifest) -> None:
    (out / "summary.txt").write_text(_summary(manifest))
    temporary = out / f"{MANIFEST}.tmp"
    temporary.write_text(manifest.model_dump_json(indent=1) + "\n")
    temporary.replace(out / MANIFEST)


def _summary(manifest: Manifest) -> str:
    assert manifest.planted
    lines = ["synthetic data set", f"best AUC on valid: {manifest.planted.best_auc:.5f}", ""]
    lines += [
        f"{name}: {split.rows} rows, {split.positives / split.rows:.2%} positive, {len(split.parts)} parts"
        for name, split in manifest.splits.items()
    ]
    train = manifest.splits["train"].rows
    lines += ["", f"{'table':<8}{'ids':>10}{'missing':>10}{'top 1%':>9}{'exponent':>10}"]
    for table, exponent in zip(manifest.tables, manifest.planted.exponents, strict=True):
        missing = table.missing / train
        lines.append(f"{table.name:<8}{table.rows:>10}{missing:>10.1%}{table.top1_share:>9.1%}{exponent:>10.3g}")
    return "\n".join(lines) + "\n"
