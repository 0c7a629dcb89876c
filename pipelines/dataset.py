"""The prepared data set: what is on disk, and the one way to open it.

    DATASET/
      manifest.json             written last: a folder without it is not a data set
      summary.txt               for people
      train/part-00000.parquet  label, dense columns, one id column a table
      valid/part-00000.parquet
      tables/C1.parquet         id -> key and count, in id order

A part holds, in the order of the schema: `label` uint8, each dense column float32, each one-hot table an int32
column and each multi-hot table a list<int32> column, none of them null. Row groups have `ROW_GROUP` rows (the last
of a part fewer). In every table id 0 means missing, id 1 unknown or rarer than `min_count`; from id 2 on, ids are
ranked by falling frequency in the train split.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.errors import UserError

MANIFEST = "manifest.json"
ROW_GROUP = 16_384
MISSING_ID, UNKNOWN_ID, FIRST_ID = 0, 1, 2
DENSE_TRANSFORM = "sign(x) * log(1 + |x|), missing -> 0"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableInfo(_Record):
    """One categorical column, that is one embedding table."""

    name: str
    rows: int
    """Ids in use: every id is in [0, rows), the two reserved ones included."""
    multi_hot: bool = False
    missing: int = 0
    """Train rows whose value is missing (for multi-hot: whose list is empty)."""
    unknown: dict[str, int] = {}
    """Lookups mapped to the unknown id, by split."""
    top1_share: float = 0.0
    """Share of non-missing train lookups that go to the most frequent 1 % of ids."""


class DenseInfo(_Record):
    """One dense column."""

    name: str
    missing: int = 0


class PartInfo(_Record):
    """One Parquet file of a split."""

    path: str
    """Relative to the data set."""
    rows: int
    source: str = ""


class SplitInfo(_Record):
    rows: int
    positives: int
    parts: list[PartInfo]


class Planted(_Record):
    """What a synthetic data set knows of itself."""

    best_auc: float
    """AUC on the valid split of the true click probability: no model can expect more."""
    seed: int
    exponents: list[float]


class Manifest(_Record):
    format: Literal["thinwire-dataset"] = "thinwire-dataset"
    version: Literal[1] = 1
    synthetic: bool = False
    label: str
    dense: list[DenseInfo]
    tables: list[TableInfo]
    splits: dict[str, SplitInfo]
    transform: str = DENSE_TRANSFORM
    min_count: int = 1
    split_rule: str = ""
    source_format: str = ""
    planted: Planted | None = None


class Dataset:
    """An opened data set.

    Raises:
        UserError: the path is missing, empty, not a data set, or a part is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        self.manifest = _read_manifest(self.path)
        for split in self.manifest.splits.values():
            for part in split.parts:
                if not (self.path / part.path).is_file():
                    raise UserError(
                        f"part {part.path} of the data set is missing",
                        where=str(self.path),
                        fix="copy the whole folder, or run `thinwire prepare` again",
                    )

    @cached_property
    def table_rows(self) -> dict[str, int]:
        """Ids in use per table."""
        return {t.name: t.rows for t in self.manifest.tables}

    def split(self, name: str) -> SplitInfo:
        if name not in self.manifest.splits:
            raise UserError(f"no split '{name}'", where=str(self.path), fix=f"it has {', '.join(self.manifest.splits)}")
        return self.manifest.splits[name]


def module_name(column: str) -> str:
    """The table's name inside the model: torch refuses some, such as `type`, and every one with a dot."""
    return "table_" + column.replace("%", "%25").replace(".", "%2E")


def part_schema(manifest: Manifest) -> pa.Schema:
    """The Arrow schema that every part of the data set has."""
    fields = [pa.field("label", pa.uint8(), nullable=False)]
    fields += [pa.field(d.name, pa.float32(), nullable=False) for d in manifest.dense]
    one_id, many = pa.int32(), pa.list_(pa.field("item", pa.int32(), nullable=False))
    fields += [pa.field(t.name, many if t.multi_hot else one_id, nullable=False) for t in manifest.tables]
    return pa.schema(fields)


def _read_manifest(path: Path) -> Manifest:
    fix = "name a folder written by `thinwire prepare` or `thinwire synth`"
    if not path.exists():
        raise UserError("no such data set", where=str(path), fix=fix)
    if not path.is_dir():
        raise UserError("is a file, not a prepared data set", where=str(path), fix="run `thinwire prepare` on it first")
    manifest = path / MANIFEST
    if not manifest.is_file():
        what = "the folder is empty" if not any(path.iterdir()) else f"no {MANIFEST}: not a data set, or half written"
        raise UserError(what, where=str(path), fix=fix)
    try:
        return Manifest.model_validate_json(manifest.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(k) for k in first["loc"])
        raise UserError(f"bad manifest: {key}: {first['msg']}", where=str(manifest), fix="prepare it again") from error
