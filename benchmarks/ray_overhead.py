"""What Ray Train and MLflow add to a training step: `thinwire train` next to the same loop under torchrun.

    python -m benchmarks.ray_overhead --rounds 3 --json overhead.json

The two take turns on the same data, model and seed, so that a busy machine slows both. A step's time is the median over
windows of ten steps after the first three windows (start-up of the pipeline); the overhead is the median over rounds of
the ratio. Both must end with the same AUC, or they did not do the same work.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from pipelines.synthetic import SynthOptions, write_synthetic

TARGET = 1.03
WARM_UP_WINDOWS = 3


def windows(log: Path) -> list[float]:
    """Step times in ms, a value a window, without the warm-up."""
    times = []
    for line in log.read_text().splitlines():
        point = json.loads(line)
        times.append(point.get("metrics", point).get("time/step_ms"))
    return [t for t in times if t is not None][WARM_UP_WINDOWS:]


def final_auc(log: Path) -> float:
    points = [json.loads(line) for line in log.read_text().splitlines()]
    return [p["eval/auc"] for p in (p.get("metrics", p) for p in points) if "eval/auc" in p][-1]


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def measure(rounds: int, steps: int, workers: int, batch: int) -> dict[str, Any]:
    """Alternate the two; `rows` a record each round and contender, `bars` the ratio next to its target."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_synthetic(folder / "data", SynthOptions(rows=int(steps * workers * batch / 0.9) + 20_000))
        common = ["--data", str(folder / "data"), "--set", f"train.batch_size={batch}", "--set", "train.log_every=10"]
        common += ["--set", f"train.max_steps={steps}"]
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        for number in range(rounds):
            plain, ray = folder / f"plain-{number}", folder / "runs" / f"ray-{number}"
            run([*torchrun, "-m", "benchmarks.torchrun_train", "--out", str(plain), *common], folder)
            run(["app.cli", "train", "--name", ray.name, "--set", f"cluster.workers={workers}", *common], folder)
            for contender, log in (("torchrun", plain / "log.jsonl"), ("ray", ray / "metrics.jsonl")):
                times = windows(log)
                rows.append(
                    {
                        "round": number,
                        "contender": contender,
                        "step_ms": statistics.median(times),
                        "quartiles_ms": [round(q, 2) for q in statistics.quantiles(times, n=4)],
                        "auc": final_auc(log),
                    }
                )
                click.echo(rows[-1])
    if len({row["auc"] for row in rows}) != 1:
        raise click.ClickException("the runs ended with different AUCs: they did not do the same work")
    ratios = [ray["step_ms"] / plain["step_ms"] for plain, ray in zip(rows[::2], rows[1::2], strict=True)]
    ratio = statistics.median(ratios)
    bar = {"name": "step under Ray over torchrun", "value": ratio, "target": TARGET, "unit": "x", "ok": ratio <= TARGET}
    return {"rows": rows, "ratios": ratios, "bars": [bar]}


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=300, show_default=True, help="Steps a run.")
@click.option("--workers", default=2, show_default=True)
@click.option("--batch", default=1024, show_default=True, help="Rows a rank and step.")
@click.option("--json", "json_file", type=click.Path(path_type=Path))
def main(rounds: int, steps: int, workers: int, batch: int, json_file: Path | None) -> None:
    result = measure(rounds, steps, workers, batch)
    click.echo(json.dumps({"ratios": result["ratios"], "bars": result["bars"]}, indent=1))
    if json_file:
        json_file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
