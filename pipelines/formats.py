"""What a row of the input looks like: the built-in formats and the user's schema file.

A `Schema` names the columns; pipelines/layout.py ties them to the fields of one file.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pipelines.errors import UserError

FORMATS = ("criteo-kaggle", "criteo-1tb", "criteo-csv", "criteo-parquet", "avazu", "csv", "parquet")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Model):
    """A column that needs more than its name."""

    name: str
    """In the prepared data set."""
    field: str | int | None = None
    """In the input: a name, or a number from 0. Default: `name`."""
    fields: str | None = None
    """Lists only: first and last field number, such as "0-49", for a list that is spread over fields."""
    mask: str | None = None
    """With `fields`: as many fields; a 0 there drops the element."""
    separator: str | None = None
    """Lists only: between the elements of one field. Default: the schema's `list_separator`."""
    hash: str | None = None
    """text or hex (see docs/data.md). Default: the schema's."""
    missing: list[str] | None = None
    """Values that mean missing. Default: the schema's. The empty field always does."""


class Schema(_Model):
    """A schema file: what `--format csv` and `--format parquet` need to know."""

    label: str | int | None = None
    dense: list[str | Column] = []
    categorical: list[str | Column] = []
    lists: list[str | Column] = []
    """Columns with several values a row: multi-hot tables."""
    separator: str = ","
    header: bool = True
    """The first line of each file names its columns."""
    columns: list[str] | None = None
    """Names of the fields of a file without header."""
    quotes: bool = True
    """A field may be wrapped in double quotes."""
    list_separator: str = "|"
    hash: str = "text"
    missing: list[str] = []

    @model_validator(mode="after")
    def _check(self) -> Schema:
        for key in ("separator", "list_separator"):
            if len(getattr(self, key).encode()) != 1 or getattr(self, key) in '"\r\n':
                raise ValueError(f"{key} must be one byte, not {getattr(self, key)!r}")
        columns = [*self.dense_columns, *self.tables]
        names = ["label", *(c.name for c in columns)]
        if twice := {n for n in names if names.count(n) > 1}:
            raise ValueError(f"two columns are named {sorted(twice)[0]!r}")
        for name in names:
            # A table is also a file name.
            if not name or name[0] == "." or "/" in name or "\0" in name:
                raise ValueError(f"{name!r} cannot be a column name")
        if not columns:
            raise ValueError("it names no dense, categorical or list column")
        if self.header and self.columns is not None:
            raise ValueError("'columns' is for files without a header: set header: false")
        for column in columns:
            if column.hash not in (None, "text", "hex"):
                raise ValueError(f"hash of {column.name!r} must be text or hex, not {column.hash!r}")
        if self.hash not in ("text", "hex"):
            raise ValueError(f"hash must be text or hex, not {self.hash!r}")
        return self

    @property
    def dense_columns(self) -> list[Column]:
        return [_column(c) for c in self.dense]

    @property
    def one_hot(self) -> list[Column]:
        return [_column(c) for c in self.categorical]

    @property
    def multi_hot(self) -> list[Column]:
        return [_column(c) for c in self.lists]

    @property
    def tables(self) -> list[Column]:
        """One-hot tables, then multi-hot ones: the order of the data set."""
        return self.one_hot + self.multi_hot

    def is_hex(self, column: Column) -> bool:
        return (column.hash or self.hash) == "hex"

    def missing_of(self, column: Column) -> list[str]:
        return self.missing if column.missing is None else column.missing


def _column(column: str | Column) -> Column:
    return Column(name=column) if isinstance(column, str) else column


DENSE_NAMES = [f"I{i}" for i in range(1, 14)]
CATEGORICAL_NAMES = [f"C{i}" for i in range(1, 27)]
_CRITEO = Schema(
    label="label",
    dense=list(DENSE_NAMES),
    categorical=list(CATEGORICAL_NAMES),
    hash="hex",
    header=False,
    columns=["label", *DENSE_NAMES, *CATEGORICAL_NAMES],
)
_BUILT_IN = {
    "criteo-kaggle": _CRITEO.model_copy(update={"separator": "\t", "quotes": False}),
    "criteo-1tb": _CRITEO.model_copy(update={"separator": "\t", "quotes": False}),
    "criteo-csv": _CRITEO,
    "criteo-parquet": _CRITEO,
    # The publisher has no empty fields: these four values stand for "not known".
    "avazu": Schema(
        label="click",
        categorical=[
            "hour",
            "C1",
            "banner_pos",
            Column(name="site_id", hash="hex", missing=["85f751fd"]),
            Column(name="site_domain", hash="hex"),
            Column(name="site_category", hash="hex"),
            Column(name="app_id", hash="hex", missing=["ecad2386"]),
            Column(name="app_domain", hash="hex"),
            Column(name="app_category", hash="hex"),
            Column(name="device_id", hash="hex", missing=["a99f214a"]),
            Column(name="device_ip", hash="hex"),
            Column(name="device_model", hash="hex"),
            "device_type",
            "device_conn_type",
            *(f"C{i}" for i in range(14, 20)),
            Column(name="C20", missing=["-1"]),
            "C21",
        ],
    ),
}


def load_schema(format: str, path: Path | None) -> Schema:
    """The schema of a built-in format, or that of the schema file at `path` for `csv` and `parquet`.

    Raises:
        UserError: unknown format, schema file missing, unreadable, or wrong in some key.
    """
    if format not in FORMATS:
        near = difflib.get_close_matches(format, FORMATS, 1)
        raise UserError(f"unknown format '{format}'", fix=f"did you mean '{near[0]}'?" if near else ", ".join(FORMATS))
    if format in _BUILT_IN:
        if path is not None:
            raise UserError(f"format {format} needs no schema file", where=str(path), fix="or use --format csv")
        return _BUILT_IN[format]
    if path is None:
        raise UserError(f"format {format} needs a schema file", fix="give --schema FILE.yaml; see docs/data.md")
    try:
        return Schema.model_validate(yaml.safe_load(path.read_text()))
    except FileNotFoundError as error:
        raise UserError("no such schema file", where=str(path)) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot read the schema: {reason}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(k) for k in first["loc"])
        near = difflib.get_close_matches(key, Schema.model_fields, 1) if first["type"] == "extra_forbidden" else []
        what = f"unknown key '{key}'" if first["type"] == "extra_forbidden" else f"{key}: {first['msg']}".lstrip(": ")
        raise UserError(what, where=str(path), fix=f"did you mean '{near[0]}'?" if near else "") from error
