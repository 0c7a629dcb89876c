"""What policies of error bounds send and what AUC they cost, each next to TorchRec's fp32 on paired seeds:

python -m benchmarks.bounds_ablation --data FOLDER --seeds 10 --out ablation.json --set train.batch_size=256

Uniform bounds at some levels; the paper's classes (arXiv 2407.04272: 1, 3 and 5 % by homogenisation); a bound for each
table; a schedule; both; the closed loop. The bytes are those of the exchange, mean over all steps of all seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

Policy = tuple[str, list[str], Path | None]
"""Name, assignments, and a configuration file."""


def analysed(folder: Path, common: list[str], policy: str, level: float) -> Path:
    """A configuration with the bounds of a policy of `thinwire analyze`."""
    out = folder / f"{policy}.yaml"
    command = [sys.executable, "-m", "app.cli", "analyze", *common, *_sets(_bounds(level)), "--policy", policy]
    subprocess.run([*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
    return out


def policies(folder: Path, common: list[str], levels: list[float], steps: int) -> list[Policy]:
    """In the order of the table. Gradients have half the bound of rows, but for the paper's policy, which has none."""
    found: list[Policy] = [(f"uniform {level:.2%}", _bounds(level), None) for level in levels]
    middle = levels[len(levels) // 2]
    each = analysed(folder, common, "each", middle)
    paper = analysed(folder, common, "paper", middle)
    found.append(("paper: classes at 1, 3, 5 %", ["exchange.gradient_bound=0.03"], paper))
    found.append((f"rows of each table, as {middle:.2%}", _bounds(middle), each))
    both = analysed(folder, common, "each-gradients", middle)
    found.append((f"rows and gradients of each table, as {middle:.2%}", _bounds(middle), both))
    schedule = ["bounds.shape=step", "bounds.start=4", "bounds.gradient_start=4", f"bounds.steps={steps // 2}"]
    loop = ["bounds.loop_every=10"]
    for name, changes in (("from 4x in stairs", schedule), ("closed loop", loop)):
        found.append((f"uniform {middle:.2%}, {name}", [*_bounds(middle), *changes], None))
        found.append((f"rows of each table, as {middle:.2%}, {name}", [*_bounds(middle), *changes], each))
    stochastic = [*_bounds(levels[-1]), "exchange.stochastic=true"]
    found.append((f"uniform {levels[-1]:.2%}, gradients rounded at random", stochastic, None))
    return found


def measure(policy: Policy, common: list[str], seeds: int, folder: Path) -> dict[str, Any]:
    """A row of the table."""
    name, assignments, file = policy
    thin = ["exchange.codec=thin", "exchange.dense=thin", *assignments]
    if file is not None:
        tables = yaml.safe_load(file.read_text())["exchange"]["tables"]
        thin.append(f"exchange.tables={json.dumps(tables)}")
    out = folder / "result.json"
    command = [sys.executable, "-m", "app.cli", "compare", *common, "--seeds", str(seeds), "--json", str(out)]
    for one in thin:
        command += ["--candidate", one]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    found = json.loads(out.read_text())
    kb = found["arms"]["candidate"]["wire_kb"]
    return {
        "policy": name,
        "exchange_kb": kb["exchange"],
        "rows_kb": kb["output_dist"],
        "gradients_kb": kb["gradients"],
        "ratio": found["bytes_ratio"]["exchange"],
        "auc_delta": found["auc_delta"],
        "ne_delta": found["ne_delta"],
        "assignments": thin,
    }


def _bounds(level: float) -> list[str]:
    return [f"exchange.row_bound={level}", f"exchange.gradient_bound={level / 2}"]


def _sets(assignments: list[str]) -> list[str]:
    return [part for one in assignments for part in ("--set", one)]


@click.command()
@click.option("--data", help="Prepared data set; default: that of the demo.")
@click.option("--preset", default="demo")
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE")
@click.option("--seeds", default=10)
@click.option("--steps", default=439, help="Of a run; the schedule takes half of them.")
@click.option("--levels", default="0.01,0.03,0.06", help="Uniform bounds of rows, ascending.")
@click.option("--only", default="", help="Only policies whose name has this in it.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    data: str | None,
    preset: str,
    assignments: tuple[str, ...],
    seeds: int,
    steps: int,
    levels: str,
    only: str,
    out: Path,
) -> None:
    """Measure all policies; the result is written after each."""
    common = ["--preset", preset, *_sets(["exchange.chain=huffman", *assignments])]
    common += ["--data", str(Path(data).resolve())] if data else []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for policy in policies(folder, common, [float(level) for level in levels.split(",")], steps):
            if only and only not in policy[0]:
                continue
            rows.append(measure(policy, common, seeds, folder))
            out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
            print(json.dumps({key: rows[-1][key] for key in ("policy", "exchange_kb", "auc_delta")}), flush=True)
    Console().print(table(rows))


def table(rows: list[dict[str, Any]]) -> Table:
    result = Table()
    for column in ("policy", "KB a step", "fewer bytes than fp32", "AUC delta", "NE delta"):
        result.add_column(column)
    for row in rows:
        deltas = [
            f"{row[k]['mean']:+.5f} [{row[k]['low']:+.5f}, {row[k]['high']:+.5f}]" for k in ("auc_delta", "ne_delta")
        ]
        result.add_row(row["policy"], f"{row['exchange_kb']:.1f}", f"{row['ratio']:.1f}x", *deltas)
    return result


if __name__ == "__main__":
    main()
