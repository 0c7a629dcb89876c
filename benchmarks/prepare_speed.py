"""How fast `prepare` converts a Criteo TSV on one core, next to `pandas.read_csv` on the same file.

    python benchmarks/prepare_speed.py [--path train.txt] [--rows 420000] [--repeats 5] [--json FILE]

Both read the file from the page cache. `prepare` is timed whole: parse, rank, encode, all files written; pandas only
reads into memory. Compilation is outside the timing (one warm-up run); the runs of the two alternate, so that a busy
machine slows both, and the median of the repeats counts. Wall time in one process without threads of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

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


def measure(path: Path | None = None, rows: int = 420_000, repeats: int = 5) -> dict[str, Any]:
    """Times both on `path`, or on a sample of `rows` rows (about 240 bytes each) made for the purpose.

    Returns:
        `rows`: one record a tool with MB/s per core (median, best) of the input's bytes; `bars`: the claim that
        `prepare` is at least `TARGET` times as fast as pandas.
    """
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            path = Path(folder) / "train.txt"
            write_sample(path, rows)
        megabytes = path.stat().st_size / 1e6
        names = ["label", *DENSE_NAMES, *CATEGORICAL_NAMES]
        out = Path(folder) / "out"

        def convert() -> None:
            prepare([path], format="criteo-kaggle", out=out, options=PrepareOptions(overwrite=True))

        def read() -> None:
            pd.read_csv(path, sep="\t", names=names)

        tools = {"thinwire prepare": convert, "pandas.read_csv": read}
        seconds: dict[str, list[float]] = {name: [] for name in tools}
        for i in range(repeats + 1):
            for name, run in tools.items():
                start = time.perf_counter()
                run()
                if i:
                    seconds[name].append(time.perf_counter() - start)
        shutil.rmtree(out)
    table = [
        {
            "tool": name,
            "input_MB": round(megabytes, 1),
            "median_MB_per_s_per_core": round(megabytes / statistics.median(times), 1),
            "best_MB_per_s_per_core": round(megabytes / min(times), 1),
        }
        for name, times in seconds.items()
    ]
    ratio = statistics.median(p / t for t, p in zip(*seconds.values(), strict=True))
    bar = {"name": "prepare next to pandas.read_csv", "value": round(ratio, 2), "target": TARGET, "unit": "x"}
    return {"rows": table, "bars": [{**bar, "ok": ratio >= TARGET}], "pandas": pd.__version__}


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
