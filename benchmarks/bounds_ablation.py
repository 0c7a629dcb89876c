"""What policies of error bounds send and what AUC they cost, each next to TorchRec's fp32 on paired seeds:

python -m benchmarks.bounds_ablation --data FOLDER --found best.yaml --seeds 10 --out ablation.json \
    --set train.batch_size=256

One bound for everything at some levels; then, from the bounds that `thinwire tune` found: one for each kind of message,
one for each table (the paper's classes of arXiv 2407.04272 too), a schedule, both, the closed loop, and stochastic
rounding. Bytes are all that a rank sends in a step, mean over all steps of all seeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from app.analyze_command import paper_classes
from app.config import RunConfig
from app.tune_space import bounds_of_tables, steps_of
from benchmarks.paired import Row, arm, measure, thin_base
from compression.bounds import CLASSES
from pipelines.dataset import Dataset
from pipelines.profiler import Profiler, profile

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
    base = thin_base(preset, assignments, data)
    job, dataset = base.job(data), Dataset(Path(data))
    seen = profile(job, dataset, steps=200, batches=4, advance=lambda *_: None)
    uniform, steps = [float(level) for level in levels.split(",")], steps_of(job, dataset, base.cluster.workers)
    listed = policies(base, yaml.safe_load(found.read_text()), uniform, seen, steps)
    wanted = [part for part in only.split(",") if part]
    arms = [arm(n, base, changes, data) for n, changes in listed if not wanted or any(part in n for part in wanted)]
    measure(base, arms, seeds, data, out)


if __name__ == "__main__":
    main()
