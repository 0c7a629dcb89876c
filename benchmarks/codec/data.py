"""What is compressed: dumps of embedding batches, batches of the demo model, their gradients, and made-up tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.codec.trained import IDS
from pipelines.errors import UserError

Array = np.ndarray[Any, Any]
DUMP, ROWS, GRADIENTS, NOISE = "dump", "rows", "gradients", "noise"
CLAIMED = (DUMP, ROWS)
"""Kinds of data that the bars are about."""


@dataclass(frozen=True)
class Group:
    """Tables that are encoded in one call."""

    name: str
    kind: str
    tables: dict[str, Array] = field(repr=False)
    """float32 [rows, dim] by name."""

    @property
    def arrays(self) -> list[Array]:
        return list(self.tables.values())

    @property
    def raw_bytes(self) -> int:
        return sum(a.nbytes for a in self.arrays)

    def bounds(self, share: float) -> list[float]:
        """Absolute bounds, `share` of each table's value range."""
        return [share * value_range(a) for a in self.arrays]


def value_range(array: Array) -> float:
    return float(array.max()) - float(array.min())


def read_dumps(folder: Path, dim: int) -> list[Group]:
    """A group for each file of raw little-endian float32 values, [rows, dim].

    Raises:
        UserError: there are none, or one holds something else.
    """
    where = f"--data {folder}"
    if not folder.is_dir():
        raise UserError("no such folder", where=where, fix="name a folder of raw float32 dumps, or leave it out")
    files = sorted(f for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    if not files:
        raise UserError("the folder is empty", where=where, fix="name a folder of raw float32 dumps, or leave it out")
    found = []
    for file in files:
        size = file.stat().st_size
        if size == 0 or size % (4 * dim):
            what = f"{size:,} bytes are not rows of {dim} float32 values"
            raise UserError(what, where=f"{where}/{file.name}", fix="give --dim, the columns of the dumps")
        array = np.fromfile(file, dtype="<f4").astype(np.float32, copy=False).reshape(-1, dim)
        if not np.isfinite(array).all() or value_range(array) == 0:
            fix = "leave it out: a bound relative to its range means nothing"
            raise UserError("its values are not finite, or all the same", where=f"{where}/{file.name}", fix=fix)
        name = file.name.replace(".bin", "")
        found.append(Group(name, DUMP, {name: array}))
    return found


def trained_groups(files: dict[str, Path]) -> list[Group]:
    """Rows and gradients of each stage that `capture_batches` wrote."""
    found = []
    for kind in (ROWS, GRADIENTS):
        for stage, file in files.items():
            if stage == IDS:
                continue
            arrays = np.load(file)
            tables = {key.partition("/")[2]: arrays[key] for key in arrays if key.startswith(f"{kind}/")}
            found.append(Group(f"{kind}, {stage}", kind, {k: v for k, v in tables.items() if value_range(v)}))
    return found


def noise(rows: int, dim: int = 64) -> Group:
    """Uniform in [-1, 1): what no one can compress below its codes."""
    array = np.random.default_rng(1).random((rows, dim), dtype=np.float32) * 2 - 1
    return Group(f"noise, {array.nbytes / 1e6:.0f} MB", NOISE, {"noise": array})


def zipf_rows(tables: int, rows: int, dim: int = 64) -> Group:
    """Rows of normal vectors, drawn by Zipf's law as ids of a log are: large batches of the kind that is exchanged."""
    rng = np.random.default_rng(2)
    found = {}
    for table in range(tables):
        known = rng.standard_normal((1 << 16, dim), dtype=np.float32) * np.float32(0.1)
        found[f"table {table}"] = known[(rng.zipf(1.1, rows) - 1) % len(known)]
    group = Group("", ROWS, found)
    return Group(f"Zipf rows, {group.raw_bytes / 1e6:.0f} MB", ROWS, found)
