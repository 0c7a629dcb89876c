"""The cost model against measured steps, in the lab (docs/cost-model.md has the table):

sudo python -m benchmarks.cost_model --out cost_model.json

Settings are stated here, before anything is measured. For each number of hosts a lab comes up; the ranks calibrate at
the unshaped link, and each setting is then predicted from that and measured. Constants see two batch sizes at one rate;
other batches and all other rates are predictions.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.bars import bar
from benchmarks.exchange.plan import bits_per_second
from benchmarks.lab import Lab

ROOT = Path(__file__).resolve().parent.parent
ROWS = 400_000
"""Of the synthetic data set."""
BATCH = 2048
"""Calibrated at this and a quarter of it."""
BYTES_GOAL, TIME_GOAL = 0.03, 0.15


@dataclass(frozen=True)
class Case:
    """One setting."""

    dim: int
    row_bound: float
    batch: int
    chain: str
    rate: str
    hot: float = 0.0
    """Share of each table's rows that every rank holds."""

    @property
    def calibration(self) -> tuple[int, float]:
        return self.dim, self.row_bound


CASES = (
    Case(16, 0.01, 1024, "huffman", "50mbit"),
    Case(16, 0.01, 1024, "huffman", "250mbit"),
    Case(16, 0.01, 1024, "bitpack", "100mbit"),
    Case(16, 0.01, 512, "huffman", "100mbit"),
    Case(16, 0.01, 2048, "huffman", "50mbit"),
    Case(16, 0.03, 1024, "huffman", "50mbit"),
    Case(16, 0.03, 512, "bitpack", "100mbit"),
    Case(16, 0.03, 2048, "rans", "250mbit"),
    Case(32, 0.01, 1024, "huffman", "100mbit"),
    Case(32, 0.01, 1024, "bitpack", "1gbit"),
    Case(32, 0.01, 512, "huffman", "50mbit"),
    Case(32, 0.01, 2048, "huffman", "100mbit"),
)
"""Each on 2 and on 4 hosts: 24 settings."""
CACHE_CASES = (
    Case(16, 0.01, 1024, "huffman", "100mbit", hot=0.01),
    Case(16, 0.01, 1024, "huffman", "100mbit", hot=0.05),
    Case(16, 0.01, 2048, "huffman", "50mbit", hot=0.2),
    Case(16, 0.01, 1024, "bitpack", "100mbit", hot=1.0),
)
"""The same with hot rows: 8 more."""


def run_lab(hosts: int, cases: list[Case], data: Path) -> list[dict[str, Any]]:
    """Rows of the table, from ranks in a lab of their own."""
    with tempfile.TemporaryDirectory() as name, Lab(hosts=hosts, rate="none", ray=False) as lab:
        given, out = Path(name) / "cases.json", Path(name) / "rows.json"
        given.write_text(json.dumps({"cases": [asdict(case) for case in cases], "data": str(data)}))
        where = f"tcp://{lab.addresses[0]}:29511"
        line = [sys.executable, "-m", "benchmarks.cost_model_rank", str(given), str(out), where, str(hosts)]
        ranks = [lab.popen(r, [*line, str(r)], env={"PYTHONPATH": str(ROOT)}, cwd=ROOT) for r in range(hosts)]
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break  # the lab ends the others
            time.sleep(0.2)
        codes = [rank.poll() for rank in ranks]
        if any(code != 0 for code in codes):
            raise SystemExit(f"ranks ended with exit codes {codes}")
        return json.loads(out.read_text())


def table(rows: list[dict[str, Any]]) -> Grid:
    grid = Grid()
    names = (
        "hosts",
        "link",
        "dim",
        "batch",
        "bound",
        "chain",
        "hot",
        "KB",
        "predicted",
        "off",
        "ms",
        "predicted",
        "off",
    )
    for column in names:
        grid.add_column(column, justify="right")
    for row in rows:
        kb, ms = row["measured_kb"], row["measured_ms"]
        cells = [row["hosts"], row["rate"], row["dim"], row["batch"], f"{row['row_bound']:.0%}", row["chain"]]
        cells.append(f"{row['hot']:.0%}")
        numbers = [f"{kb:.1f}", f"{row['predicted_kb']:.1f}", f"{row['predicted_kb'] / kb - 1:+.1%}"]
        numbers += [f"{ms:.1f}", f"{row['predicted_ms']:.1f}", f"{row['predicted_ms'] / ms - 1:+.1%}"]
        grid.add_row(*map(str, cells), *numbers)
    return grid


def bars(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims: every setting within the goals."""
    found = []
    for name, goal in (("kb", BYTES_GOAL), ("ms", TIME_GOAL)):
        off = [abs(row[f"predicted_{name}"] / row[f"measured_{name}"] - 1) for row in rows]
        what = {"kb": "wire bytes", "ms": "step time"}[name]
        inside = sum(one <= goal for one in off) / len(off)
        found.append(bar(f"settings whose {what} are predicted within {goal:.0%}", 100 * inside, 100.0, "%"))
        found.append(bar(f"{what}: median setting within {goal:.0%}", float(statistics.median(off) <= goal), 1.0, ""))
    return found


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--workers", default="2,4", help="Hosts of the labs, one after the other.")
@click.option("--only", default="", metavar="DIM:BOUND", help="Settings of one calibration, such as 16:0.01.")
@click.option("--cache/--no-cache", default=True, help="Settings with hot rows too.")
def main(out: Path, workers: str, only: str, cache: bool) -> None:
    """Measure all settings; the result is written after each lab."""
    every = (*CASES, *(CACHE_CASES if cache else ()))
    cases = [case for case in every if not only or only == f"{case.dim}:{case.row_bound}"]
    for case in cases:
        bits_per_second(case.rate)
    rows: list[dict[str, Any]] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        line = [sys.executable, "-m", "app.cli", "synth", "--out", str(data), "--rows", str(ROWS)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        for hosts in map(int, workers.split(",")):
            rows += run_lab(hosts, cases, data)
            found = {"rows": rows, "bars": bars(rows), "seconds": time.monotonic() - start}
            out.write_text(json.dumps(found, indent=1) + "\n")
    Console(width=140).print(table(rows))


def by_calibration(cases: list[Case]) -> dict[tuple[int, float], list[Case]]:
    """Cases that one calibration predicts."""
    found: dict[tuple[int, float], list[Case]] = defaultdict(list)
    for case in cases:
        found[case.calibration].append(case)
    return dict(found)


if __name__ == "__main__":
    main()
