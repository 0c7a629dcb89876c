"""How fast `prepare` converts a Criteo TSV on one core, next to pandas on the same file.

    python benchmarks/prepare_speed.py [--path train.txt] [--rows 420000] [--repeats 5] [--json FILE]

Three tools: `prepare` as a whole (parse, rank, encode, all files written); `pandas.read_csv`, which only reads into
memory; and pandas doing the job of `prepare` (read, rank by frequency, map to ids, transform, write Parquet).
All read the file from the page cache and use one thread. Compilation is outside the timing (one warm-up run). The tools
take turns, so that a busy machine slows all of them, and the median counts. Speeds are bytes of input per second of
processor time, which is per core; wall time is given beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.dataset import ROW_GROUP
from pipelines.formats import CATEGORICAL_NAMES, DENSE_NAMES
from pipelines.prepare import PrepareOptions, prepare

TARGET = 3.0
"""Times the speed of pandas."""

# Distinct values of Criteo Kaggle's C1 ... C26 and the share of rows that lack one; the same for I1 ... I13 below.
_IDS = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194]
_IDS += [27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572]
_MISSING_IDS = [
    0,
    0,
    0.03,
    0.03,
    0,
    0.12,
    0,
    0,
    0,
    0,
    0,
    0.03,
    0,
    0,
    0,
    0.03,
    0,
    0,
    0.44,
    0.44,
    0.03,
    0.76,
    0,
    0.03,
    0.44,
    0.44,
]
_DENSE_SCALE = [1, 20, 8, 5, 9000, 60, 8, 10, 60, 1, 2, 1, 6]
_MISSING_DENSE = [0.45, 0, 0.21, 0.21, 0.03, 0.22, 0.04, 0, 0.04, 0.45, 0.04, 0.77, 0.21]
_CHUNK = 100_000
_NAMES = ["label", *DENSE_NAMES, *CATEGORICAL_NAMES]


def write_sample(path: Path, rows: int, seed: int = 0) -> None:
    """A TSV in Criteo's layout with its cardinalities, gaps and skew (frequency falls as 1 / rank)."""
    rng = np.random.default_rng(seed)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    with path.open("wb") as file:
        for start in range(0, rows, _CHUNK):
            n = min(_CHUNK, rows - start)
            columns = [pa.array((rng.random(n) < 0.256).astype(np.int8)).cast(pa.string())]
            for scale, missing in zip(_DENSE_SCALE, _MISSING_DENSE, strict=True):
                values = np.floor(rng.lognormal(np.log(scale), 1.5, n)).astype(np.int64)
                text = pa.array(values, mask=rng.random(n) < missing).cast(pa.string())
                columns.append(pc.fill_null(text, ""))
            for ids, missing in zip(_IDS, _MISSING_IDS, strict=True):
                rank = np.floor(float(ids) ** rng.random(n)).astype(np.uint64)
                key = (rank * np.uint64(2654435761) + np.uint64(ids)) & np.uint64(0xFFFFFFFF)
                nibbles = (key[:, None] >> np.arange(28, -4, -4, dtype=np.uint64)) & np.uint64(15)
                text = pa.array(digits[nibbles].view("S8").ravel().astype("U8"), mask=rng.random(n) < missing)
                columns.append(pc.fill_null(text, ""))
            lines = pc.binary_join_element_wise(*columns, "\t")
            file.write("\n".join(lines.to_pylist()).encode() + b"\n")


def pandas_prepare(path: Path, out: Path) -> None:
    """What `prepare` does with its default options, in pandas."""
    frame = pd.read_csv(path, sep="\t", names=_NAMES)
    first_valid = len(frame) - len(frame) // 10
    for name in DENSE_NAMES:
        values = frame[name].astype("float64")
        frame[name] = np.nan_to_num(np.sign(values) * np.log1p(values.abs())).astype("float32")
    for name in CATEGORICAL_NAMES:
        ranked = frame[name].iloc[:first_valid].value_counts().index
        ids = frame[name].map(pd.Series(np.arange(2, len(ranked) + 2), index=ranked)).fillna(1)
        frame[name] = ids.where(frame[name].notna(), 0).astype("int32")
    frame.iloc[:first_valid].to_parquet(out / "train.parquet", row_group_size=ROW_GROUP)
    frame.iloc[first_valid:].to_parquet(out / "valid.parquet", row_group_size=ROW_GROUP)


def measure(path: Path | None = None, rows: int = 420_000, repeats: int = 5) -> dict[str, Any]:
    """Times the three on `path`, or on a sample of `rows` rows (about 240 bytes each) made for the purpose.

    Returns:
        `rows`: one record a tool, in MB of input per second; `bars`: how many times as fast as pandas `prepare` is, at
        reading alone and at the whole job, each with `TARGET`.
    """
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            path = Path(folder) / "train.txt"
            write_sample(path, rows)
        source, out = path, Path(folder)
        tools: dict[str, Callable[[], object]] = {
            "thinwire prepare": lambda: prepare(
                [source], format="criteo-kaggle", out=out / "data", options=PrepareOptions(overwrite=True)
            ),
            "pandas.read_csv": lambda: pd.read_csv(source, sep="\t", names=_NAMES),
            "pandas, the whole job": lambda: pandas_prepare(source, out),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in tools}
        for i in range(repeats + 1):
            for name, run in tools.items():
                start, used = time.perf_counter(), time.process_time()
                run()
                if i:
                    times[name].append((time.process_time() - used, time.perf_counter() - start))
        megabytes = path.stat().st_size / 1e6
    table = [_record(name, megabytes, t) for name, t in times.items()]
    ours, *others = table
    bars = []
    for other in others:
        ratio = ours["MB_per_s_per_core"] / other["MB_per_s_per_core"]
        name = f"prepare next to {other['tool']}"
        bars.append({"name": name, "value": round(ratio, 2), "target": TARGET, "unit": "x", "ok": ratio >= TARGET})
    return {"rows": table, "bars": bars, "versions": {"pandas": pd.__version__, "pyarrow": pa.__version__}}


def _record(tool: str, megabytes: float, times: list[tuple[float, float]]) -> dict[str, Any]:
    processor, wall = (statistics.median(t) for t in zip(*times, strict=True))
    return {
        "tool": tool,
        "input_MB": round(megabytes, 1),
        "MB_per_s_per_core": round(megabytes / processor, 1),
        "MB_per_s_wall": round(megabytes / wall, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path)
    parser.add_argument("--rows", type=int, default=420_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.path, args.rows, args.repeats)
    text = json.dumps(result, indent=1)
    if args.json:
        args.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
