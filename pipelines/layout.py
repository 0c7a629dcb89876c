"""Where the columns of a schema are in one file: the layout that the readers follow."""

from __future__ import annotations

import csv
import difflib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipelines.errors import UserError
from pipelines.formats import CATEGORICAL_NAMES, DENSE_NAMES, Column, Schema
from pipelines.keys import text_hash

SKIP, LABEL, DENSE, KEY, LIST, ITEM, MASK = range(7)
"""What a field is: nothing to us, the label, a dense value, a category, a list in one field, one element of a list
spread over fields, the 0/1 mask of such an element."""


class Fields(NamedTuple):
    """The layout as arrays, for the compiled parser. F fields, R spread lists, S their elements."""

    separator: int
    quotes: bool
    kind: np.ndarray
    """uint8 [F]: SKIP ... MASK."""
    target: np.ndarray
    """int32 [F]: dense column, one-hot table, list table or element of `items`."""
    is_hex: np.ndarray
    """uint8 [F]."""
    list_separator: np.ndarray
    """uint8 [F]."""
    sentinel_start: np.ndarray
    """int32 [F + 1]: the field's slice of `sentinels`."""
    sentinels: np.ndarray
    """uint64: text hashes of the values that mean missing."""
    range_list: np.ndarray
    """int32 [R]: list table of a list that is spread over fields."""
    range_start: np.ndarray
    """int32 [R + 1]: its slice of the S elements."""
    item_mask: np.ndarray
    """int32 [S]: field that masks the element, -1 for none."""


@dataclass(frozen=True)
class Layout:
    """The fields of one file and where they go."""

    fields: Fields
    n_dense: int
    n_one_hot: int
    n_lists: int
    names: list[str]
    """Of the fields, for messages."""


class _LayoutBuilder:
    def __init__(self, schema: Schema, names: list[str] | None, n_fields: int, where: str) -> None:
        self.schema, self.names, self.n, self.where = schema, names, n_fields, where
        self.kind = np.zeros(n_fields, np.uint8)
        self.target = np.zeros(n_fields, np.int32)
        self.is_hex = np.zeros(n_fields, np.uint8)
        self.list_separator = np.zeros(n_fields, np.uint8)
        self.missing: list[list[str]] = [[] for _ in range(n_fields)]
        self.range_list: list[int] = []
        self.range_start = [0]
        self.item_mask: list[int] = []

    def build(self, labelled: bool) -> Layout:
        schema = self.schema
        if labelled:
            if schema.label is None:
                raise UserError("the schema names no label", where=self.where, fix="add `label: COLUMN` to it")
            self._claim(self._number(schema.label), LABEL, 0)
        for i, column in enumerate(schema.dense_columns):
            self._claim(self._field(column), DENSE, i, column)
        for i, column in enumerate(schema.one_hot):
            self._claim(self._field(column), KEY, i, column)
        for i, column in enumerate(schema.multi_hot):
            if column.fields is None:
                field = self._field(column)
                self._claim(field, LIST, i, column)
                self.list_separator[field] = ord(column.separator or schema.list_separator)
            else:
                self._spread(i, column)
        hashes = [[text_hash(v) for v in values] for values in self.missing]
        fields = Fields(
            separator=ord(schema.separator),
            quotes=schema.quotes,
            kind=self.kind,
            target=self.target,
            is_hex=self.is_hex,
            list_separator=self.list_separator,
            sentinel_start=np.cumsum([0, *map(len, hashes)], dtype=np.int32),
            sentinels=np.array([h for per_field in hashes for h in per_field], np.uint64),
            range_list=np.array(self.range_list, np.int32),
            range_start=np.array(self.range_start, np.int32),
            item_mask=np.array(self.item_mask, np.int32),
        )
        names = self.names or [str(i) for i in range(self.n)]
        return Layout(fields, len(schema.dense), len(schema.categorical), len(schema.lists), names)

    def _claim(self, field: int, kind: int, target: int, column: Column | None = None) -> None:
        shared_mask = kind == MASK and self.kind[field] == MASK
        if self.kind[field] != SKIP and not shared_mask:
            raise UserError(f"two columns of the schema use field {field}", where=self.where, fix="keep one of them")
        self.kind[field], self.target[field] = kind, target
        if column is not None:
            self.is_hex[field] = self.schema.is_hex(column)
            self.missing[field] = self.schema.missing_of(column)

    def _field(self, column: Column) -> int:
        return self._number(column.name if column.field is None else column.field)

    def _number(self, field: str | int) -> int:
        if isinstance(field, int):
            if not 0 <= field < self.n:
                fix = f"fields are numbered 0 to {self.n - 1}"
                raise UserError(f"the schema uses field {field}, the file has {self.n}", where=self.where, fix=fix)
            return field
        if self.names is None:
            fix = "name the fields with `columns:` in the schema, or give their numbers"
            raise UserError(f"the file has no header that could name '{field}'", where=self.where, fix=fix)
        if self.names.count(field) != 1:
            near = difflib.get_close_matches(field, self.names, 1)
            fix = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(self.names[:8])} ..."
            what = "no column" if field not in self.names else "more than one column"
            raise UserError(f"{what} '{field}'", where=self.where, fix=fix)
        return self.names.index(field)

    def _spread(self, index: int, column: Column) -> None:
        fields = self._range(column, column.fields or "")
        start = self.range_start[-1]
        for i, field in enumerate(fields):
            self._claim(field, ITEM, start + i, column)
        masks = fields if column.mask is None else self._range(column, column.mask)
        if len(masks) != len(fields):
            raise UserError(
                f"'{column.name}' has {len(fields)} fields and {len(masks)} mask fields",
                where=self.where,
                fix="give `fields` and `mask` the same length",
            )
        for field in masks if column.mask is not None else ():
            self._claim(field, MASK, 0)
        self.item_mask += list(masks) if column.mask is not None else [-1] * len(fields)
        self.range_list.append(index)
        self.range_start.append(start + len(fields))

    def _range(self, column: Column, text: str) -> range:
        first, dash, last = text.partition("-")
        if not (dash and first.isdigit() and last.isdigit() and int(first) <= int(last) < self.n):
            raise UserError(
                f"'{column.name}': {text!r} is no range of the {self.n} fields",
                where=self.where,
                fix='write the first and last field number, such as "0-49"',
            )
        return range(int(first), int(last) + 1)


def build_layout(schema: Schema, names: list[str] | None, n_fields: int, where: str, labelled: bool = True) -> Layout:
    """Ties the columns to the fields of one file.

    Args:
        names: the file's column names, None where it has none.
        n_fields: fields a row.
        where: the file, for messages.
        labelled: False leaves the label out.

    Raises:
        UserError: a column is not in the file, or two columns want one field.
    """
    return _LayoutBuilder(schema, names, n_fields, where).build(labelled)


def text_layout(format: str, schema: Schema, lines: list[str], where: str, serve: bool) -> tuple[Layout, bool]:
    """The layout of a text file, and whether its first line is a header.

    Args:
        lines: the first lines of the file, without line ends; at least one.
        serve: the label may be absent.

    Raises:
        UserError: the file does not match the format or schema; it has no label and `serve` is False.
    """
    rows = [
        next(csv.reader([line], delimiter=schema.separator), []) if schema.quotes else line.split(schema.separator)
        for line in lines
    ]
    first = rows[0]
    if format == "criteo-csv":
        return _criteo_csv(schema, rows, where, serve)
    if schema.header:
        return build_layout(schema, first, len(first), where, not serve or _has_label(schema, first)), True
    names = schema.columns
    if names is None:
        labelled = not serve or (isinstance(schema.label, int) and schema.label < len(first))
        return build_layout(schema, None, len(first), where, labelled), False
    if schema.label in names and all(len(r) == len(names) - 1 for r in rows):
        _allow_unlabelled(serve, where, len(names))
        names = [n for n in names if n != schema.label]
        return build_layout(schema, names, len(names), where, labelled=False), False
    return build_layout(schema, names, len(names), where, not serve or _has_label(schema, names)), False


def _has_label(schema: Schema, names: list[str]) -> bool:
    return schema.label < len(names) if isinstance(schema.label, int) else schema.label in names


def _criteo_csv(schema: Schema, rows: list[list[str]], where: str, serve: bool) -> tuple[Layout, bool]:
    """Criteo in CSV: header or not, Id column or not."""
    known = {name.lower(): name for name in ("Id", "label", *DENSE_NAMES, *CATEGORICAL_NAMES)}
    first = [known.get(name.strip().lower(), name) for name in rows[0]]
    header = "I1" in first
    if not header:
        size = len(first)
        first = ["label", *DENSE_NAMES, *CATEGORICAL_NAMES]
        if all(len(r) == len(first) - 1 for r in rows):
            first = first[1:]
        elif size == len(first) + 1:
            first = ["Id", *first]
    if "label" not in first:
        _allow_unlabelled(serve, where, 40)
    return build_layout(schema, first, len(first), where, "label" in first), header


def parquet_layout(format: str, schema: Schema, names: list[str], where: str, serve: bool) -> Layout:
    """The layout of a Parquet file with columns `names`; raises as `text_layout` does."""
    if format == "criteo-parquet":
        known = {name.lower(): name for name in ("label", *DENSE_NAMES, *CATEGORICAL_NAMES)}
        names = [known.get(name.lower(), name) for name in names]
        if "label" not in names:
            _allow_unlabelled(serve, where, 40)
    return build_layout(schema, names, len(names), where, not serve or _has_label(schema, names))


def _allow_unlabelled(serve: bool, where: str, expected: int) -> None:
    if not serve:
        raise UserError(
            f"the file has no label: {expected - 1} columns, expected {expected}",
            where=where,
            fix="leave unlabelled test files out, or encode them for serving with `--like DATASET`",
        )
