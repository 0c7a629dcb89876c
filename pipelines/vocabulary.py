"""The mapping of one table from value to id, as a file and at serving time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.columns import keys_of
from pipelines.dataset import FIRST_ID, MISSING_ID
from pipelines.errors import UserError
from pipelines.files import replacing
from pipelines.intern import Interner
from pipelines.keys import MISSING_KEY, text_hash

_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("key", pa.uint64()),
        pa.field("count", pa.int64(), nullable=False),
    ]
)
_RULE = b"thinwire"


class Vocabulary:
    """The ids of one table of a prepared data set.

    >>> ids = Vocabulary.open("data/kaggle", "C1").encode(["68fd1e64", "", "never seen"])  # doctest: +SKIP
    array([2, 0, 1], dtype=int32)
    """

    def __init__(self, table: str, keys: np.ndarray, is_hex: bool, missing: list[str]) -> None:
        self.table, self.is_hex, self.missing = table, is_hex, missing
        self.rows = FIRST_ID + len(keys)
        """Ids in use, the reserved two included."""
        self._sentinels = np.array([text_hash(v) for v in missing], np.uint64)
        self._interner = Interner(max(512, len(keys)))
        self._interner.add(keys, np.empty(len(keys), np.int32))

    @classmethod
    def open(cls, dataset: str | Path, table: str) -> Vocabulary:
        """Reads tables/`table`.parquet of a data set.

        Raises:
            UserError: there is no such table.
        """
        path = Path(dataset) / "tables" / f"{table}.parquet"
        if not path.is_file():
            raise UserError(f"no table '{table}'", where=str(dataset), fix="name a table of a prepared data set")
        file = pq.read_table(path, columns=["key"], use_threads=False, memory_map=False)
        rule = json.loads((file.schema.metadata or {}).get(_RULE, b"null"))
        if rule is None:
            raise UserError("the table has no key rule: its ids have no values", where=str(path))
        keys = file.column("key").combine_chunks().slice(FIRST_ID).to_numpy()
        return cls(table, keys, rule["hash"] == "hex", rule["missing"])

    def encode(self, values: Sequence[Any] | np.ndarray | pa.Array) -> np.ndarray:
        """int32 [N] ids of raw values (strings, or integers, which count as their decimal text; None is missing).

        The same value has the same id as in training; a value that training did not see has the unknown id.
        """
        array = values if isinstance(values, pa.Array) else pa.array(values)
        return self.ids_of(keys_of(array, self.is_hex, self._sentinels))

    def ids_of(self, keys: np.ndarray) -> np.ndarray:
        """int32 [N] ids of keys (uint64 [N])."""
        ids = self._interner.find(keys, unseen=0)
        ids += FIRST_ID - 1  # the interner counts from 1, and 0 becomes the unknown id
        ids[keys == MISSING_KEY] = MISSING_ID
        return ids


def write_table(path: Path, keys: np.ndarray, counts: np.ndarray, is_hex: bool, missing: list[str]) -> None:
    """Writes a table file.

    Args:
        keys: uint64 [rows - 2], of id 2 on.
        counts: int64 [rows], of all ids.
    """
    rule = json.dumps({"hash": "hex" if is_hex else "text", "missing": missing})
    reserved = np.zeros(FIRST_ID, np.uint64)
    rows = len(counts)
    mask = np.arange(rows) < FIRST_ID
    table = pa.Table.from_arrays(
        [
            pa.array(np.arange(rows, dtype=np.int32)),
            pa.array(np.concatenate([reserved, keys]), mask=mask),
            pa.array(counts),
        ],
        schema=_SCHEMA.with_metadata({_RULE: rule}),
    )
    with replacing(path) as temporary:
        # Keys are as good as random; ids and counts shrink to almost nothing by their differences.
        packed = {"id": "DELTA_BINARY_PACKED", "count": "DELTA_BINARY_PACKED"}
        pq.write_table(
            table, temporary, compression="none", use_dictionary=False, write_statistics=False, column_encoding=packed
        )
