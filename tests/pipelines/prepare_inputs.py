"""Inputs and comparisons that the tests of `prepare` share."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def criteo_lines(n: int, seed: int = 0, ids: int = 200, low: int = -3) -> list[str]:
    """Lines as in Criteo's train.txt, with gaps and skewed ids."""
    rng = np.random.default_rng(seed)
    dense = rng.integers(low, 5000, (n, 13))
    cats = (ids * rng.random((n, 26)) ** 3).astype(np.int64) * 2_654_435_761 % 2**32
    gaps = rng.random((n, 39)) < 0.15
    lines = []
    for i in range(n):
        fields = [*map(str, dense[i]), *(f"{c:08x}" for c in cats[i])]
        lines.append("\t".join([str(i % 4 // 3), *("" if g else f for g, f in zip(gaps[i], fields, strict=True))]))
    return lines


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def read_split(out: Path, split: str) -> pa.Table:
    return pq.read_table(sorted((out / split).glob("*.parquet")))


def contents(out: Path) -> dict[str, bytes]:
    """Every file of a data set."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
