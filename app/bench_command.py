"""`thinwire bench loader`: how fast data come in, next to a peer and next to what training needs."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import loader_speed, prepare_speed
from benchmarks.bars import bar
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.synthetic import SynthOptions, write_synthetic

BATCH = 2048
# A rank decodes the row groups that hold its rows, which are more of them per row the more ranks share an epoch.
WORLD_SIZES = (1, 2, 8)


def run_loader_bench(data: Path | None, source: Path | None, quick: bool) -> dict[str, Any]:
    """Measure conversion, loading and the training step that the loader must keep up with; print a table.

    Returns:
        `rows` (what was measured) and `bars` (the claims, each with its target and whether it holds).
    """
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            console.print("making a synthetic data set")
            data = Path(folder) / "data"
            write_synthetic(data, SynthOptions(rows=200_000 if quick else 1_000_000))
        dataset = Dataset(data)
        console.print("converting a Criteo TSV, next to pandas")
        conversion = prepare_speed.measure(source, rows=60_000 if quick else 420_000, repeats=3 if quick else 5)
        console.print("loading")
        seconds = 2 if quick else 5
        loading = [
            loader_speed.measure(dataset, batch_size=BATCH, world_size=ranks, seconds=seconds) for ranks in WORLD_SIZES
        ]
        console.print("training one rank without waiting for data")
        need = training_need(dataset, Path(folder) / "run", steps=40 if quick else 150)
    rows = [*conversion["rows"], *({"tool": "loader", **one} for one in loading), {"tool": "training step", **need}]
    bars = [*conversion["bars"]]
    for ranks, one in zip(WORLD_SIZES, loading, strict=True):
        headroom = float(one["rows_per_s"]) / need["rows_per_s"]
        bars.append(bar(f"loader over a step's need, {ranks} rank{'s' * (ranks > 1)}", headroom, 1.0, "x"))
    console.print(bar_table(bars))
    return {"rows": rows, "bars": bars}


def training_need(dataset: Dataset, out: Path, steps: int) -> dict[str, float]:
    """Rows per second that one rank on CPU consumes in training, from a real run of the loop, warm-up excluded.

    The model is the smallest that a user would train (embedding dimension 16, small MLPs): others need less.

    Raises:
        UserError: the training fails.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command += ["-m", "benchmarks.torchrun_train", "--data", str(dataset.path), "--out", str(out)]
    command += ["--set", f"train.batch_size={BATCH}", "--set", f"train.max_steps={steps}", "--set", "train.log_every=5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"training failed: {done.stderr.strip().splitlines()[-1]}", where="bench loader")
    points = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    windows = [p for p in points if "time/step_ms" in p][1:]
    return {
        "rows_per_s": statistics.median(p["train/samples_per_s"] for p in windows),
        "step_ms": statistics.median(p["time/step_ms"] for p in windows),
        "data_wait_ms": statistics.median(p["time/data_wait_ms"] for p in windows),
    }


def bar_table(bars: list[dict[str, Any]]) -> Table:
    table = Table("claim", "measured", "target", "")
    for b in bars:
        unit = b["unit"]
        table.add_row(b["name"], f"{b['value']:.2f} {unit}", f"{b['target']:.2f} {unit}", "ok" if b["ok"] else "MISSED")
    return table
