"""What policies of error bounds send and what AUC they cost, each next to TorchRec's fp32 on paired seeds:

python -m benchmarks.bounds_ablation --data FOLDER --found best.yaml --seeds 10 --out ablation.json \
    --set train.batch_size=256

One bound for everything at some levels; then, from the bounds that `thinwire tune` found: one for each kind of message,
one for each table (the paper's classes of arXiv 2407.04272 too), a schedule, both, the closed loop, and stochastic
rounding. Bytes are all that a rank sends in a step, mean over all steps of all seeds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

from app.analyze_command import paper_classes
from app.compare_result import interval
from app.config import RunConfig, load_config
from app.tune_space import bounds_of_tables, steps_of
from benchmarks.paired import Arm, Row, run_arms
from compression.bounds import CLASSES
from pipelines.dataset import Dataset
from pipelines.profiler import Profiler, profile
from pipelines.thin import compile_exchange

KINDS = ("row_bound", "gradient_bound", "dense_bound")
PAPER_GRADIENTS = 0.03
"""The paper has no bounds of gradients; this is its middle class."""


def policies(
    base: RunConfig, found: dict[str, Any], levels: list[float], seen: Profiler, steps: int
) -> list[tuple[str, Row]]:
    """Name, and what a policy changes in the configuration, by section.

    Args:
        found: `best.yaml` of a search.
        steps: of a run.
    """
    exchange, bounds = found["exchange"], found.get("bounds", {})
    kinds = {key: exchange[key] for key in KINDS}
    rows, _ = seen.curves(base.cluster.workers)
    each = {"tables": bounds_of_tables(kinds["row_bound"], rows)}
    of_paper = {table: {"row_bound": CLASSES[name]} for table, name in paper_classes(seen.profiles).items()}
    paper = kinds | {"tables": of_paper, "gradient_bound": PAPER_GRADIENTS}
    stairs = {"shape": "step", "start": 2.0, "gradient_start": 2.0, "steps": steps // 2}
    schedule = bounds if bounds.get("shape", "constant") != "constant" else stairs
    loop = {"loop_every": base.train.log_every}
    listed: list[tuple[str, Row, Row]] = [
        *((f"uniform {level:.2%}", dict.fromkeys(KINDS, level), {}) for level in levels),
        ("paper: classes at 1, 3, 5 %", paper, {}),
        ("one bound a kind", kinds, {}),
        ("by table", kinds | each, {}),
        ("over time", kinds, schedule),
        ("by table and over time", kinds | each, schedule),
        ("by table, closed loop", kinds | each, loop),
        ("by table, gradients rounded at random", kinds | each | {"stochastic": True}, {}),
        ("found by the search", exchange, bounds),
    ]
    return [(name, {"exchange": changes, "bounds": of_time}) for name, changes, of_time in listed]


def arm(name: str, base: RunConfig, changes: Row, data: str) -> Arm:
    values = base.model_dump()
    for section, of in changes.items():
        values[section] |= of
    return Arm(name, RunConfig.model_validate(values).job(data))


def table(rows: list[Row]) -> Table:
    base = rows[0]["kb"]["total"]
    result = Table()
    for column in (
        "policy",
        "KB a step",
        "rows",
        "gradients",
        "hot rows",
        "MLPs",
        "fewer bytes than fp32",
        "AUC delta",
    ):
        result.add_column(column)
    for row in rows:
        kb = row["kb"]
        sizes = [f"{kb[kind]:.1f}" for kind in ("total", "output_dist", "gradients", "replica", "dense")]
        result.add_row(row["arm"], *sizes, f"{base / kb['total']:.1f}x", interval(row["auc_delta"]))
    return result


@click.command()
@click.option("--data", required=True, help="Prepared data set.")
@click.option("--found", type=click.Path(path_type=Path, exists=True), required=True, help="best.yaml of a search.")
@click.option("--preset", default="demo")
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE")
@click.option("--seeds", default=10)
@click.option("--levels", default="0.0025,0.005,0.01,0.02", help="Uniform bounds of everything.")
@click.option("--only", default="", help="Only policies whose name has one of these in it, separated by commas.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    data: str,
    found: Path,
    preset: str,
    assignments: tuple[str, ...],
    seeds: int,
    levels: str,
    only: str,
    out: Path,
) -> None:
    """Measure all policies; the result is written after each."""
    thin = ["exchange.codec=thin", "exchange.dense=thin", "exchange.chain=huffman"]
    overrides = {"data": {"path": str(Path(data).resolve()), "synthetic": None}}
    base = load_config(preset, None, [*thin, *assignments], overrides=overrides)
    compile_exchange()
    job, dataset = base.job(data), Dataset(Path(data))
    seen = profile(job, dataset, steps=200, batches=4, advance=lambda *_: None)
    uniform, steps = [float(level) for level in levels.split(",")], steps_of(job, dataset, base.cluster.workers)
    listed = policies(base, yaml.safe_load(found.read_text()), uniform, seen, steps)
    wanted = [part for part in only.split(",") if part]
    arms = [arm(n, base, changes, data) for n, changes in listed if not wanted or any(part in n for part in wanted)]
    plain = arm("TorchRec fp32", base, {"exchange": {"codec": "none", "dense": "none"}}, data)
    rows = run_arms(plain, arms, range(seeds), base.cluster.workers, lambda rows: keep(rows, out))
    Console(width=140).print(table(rows))


def keep(rows: list[Row], out: Path) -> None:
    out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    row = rows[-1]
    delta = interval(row["auc_delta"]) if row["auc_delta"] else "one pair"
    print(f"{row['arm']}: {row['kb']['total']:.1f} KB, AUC {delta}", flush=True)


if __name__ == "__main__":
    main()
