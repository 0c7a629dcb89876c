"""`thinwire analyze`, `tune` and `report`: error bounds found, and looked at."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from app.cli_parts import PATH, check_json, config_options, examples, json_option, write_json
from pipelines.errors import UserError

data_option = click.option(
    "--data", type=str, metavar="FOLDER", help="Prepared data set; short for --set data.path=FOLDER."
)


@click.command(**examples(
    "thinwire analyze --preset demo --out bounds.yaml",
    "thinwire analyze --preset kaggle --data data/kaggle --set exchange.row_bound=0.02 --steps 2000",
))  # fmt: skip
@config_options
@data_option
@click.option("--steps", default=300, show_default=True, type=click.IntRange(1), help="Steps of training before.")
@click.option("--batches", default=4, show_default=True, type=click.IntRange(1), help="Held-out batches looked at.")
@click.option(
    "--policy",
    default="each",
    show_default=True,
    type=click.Choice(["uniform", "paper", "classes", "each", "each-gradients"]),
    help="Which bounds to write: the same for all tables, the paper's classes by homogenisation, three classes by "
    "harm, or one for each table; of rows, the last of gradients too.",
)
@click.option("--out", default=Path("bounds.yaml"), show_default=True, type=PATH, metavar="FILE",
              help="Configuration with the bounds that were found.")  # fmt: skip
@json_option
def analyze(
    preset: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    data: str | None,
    steps: int,
    batches: int,
    policy: str,
    out: Path,
    json_file: Path | None,
) -> None:
    """Find error bounds by table: what each sends and what errors in it cost, in a briefly trained model.

    The bounds do together no more harm than exchange.row_bound and exchange.gradient_bound for all tables do, and send
    the fewest bytes. Runs in one process, without Ray.
    """
    from app.doctor import require_training_stack

    # torch reads it when it is loaded: its C++ side warns of what DDP is told on purpose.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    require_training_stack()
    from rich.console import Console

    from app.analyze_command import run_analyze
    from app.train_command import configure

    check_json(json_file)
    config = configure(preset, config_file, assignments, data, None, None)
    console = Console(width=None if sys.stdout.isatty() else 140)
    write_json(json_file, run_analyze(config, steps=steps, batches=batches, policy=policy, out=out, console=console))


@click.command(**examples(
    "thinwire tune --preset demo",
    "thinwire tune --preset kaggle --data data/kaggle --trials 32 --seeds 3",
    "thinwire tune --resume runs/tune-demo-20260101-120000",
))  # fmt: skip
@config_options
@data_option
@click.option("--name", help="Folder of the search inside run.storage; short for --set run.name=NAME.")
@click.option("--trials", default=16, show_default=True, type=click.IntRange(1), help="Besides the baseline.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1),
              help="Pairs with the baseline in each trial, from train.seed on.")  # fmt: skip
@click.option("--confirm", type=click.IntRange(0), help="Fresh seeds on which the best must lose no more AUC either; "
              "0 = none.  [default: 8; with --smoke 0]")  # fmt: skip
@click.option("--max-auc-drop", default=0.0002, show_default=True, help="AUC that the best configuration may lose.")
@click.option("--smoke", is_flag=True, help="Two trials of the smoke preset: does everything work?")
@click.option("--resume", type=PATH, metavar="FOLDER", help="Go on with a search that was stopped.")
@json_option
def tune(
    preset: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    data: str | None,
    name: str | None,
    trials: int,
    seeds: int,
    confirm: int | None,
    max_auc_drop: float,
    smoke: bool,
    resume: Path | None,
    json_file: Path | None,
) -> None:
    """Search error bounds by table and over time, for speed and AUC at once.

    Trial 0 is TorchRec's exchange in fp32. All trials start from the same weights and see the same rows in the same
    order, one after the other. Speed is by the cost law, from the bytes and times that a trial measures. The best
    configuration goes to best.yaml, which thinwire train --config takes.
    """
    from app.doctor import require_training_stack

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    require_training_stack()
    from rich.console import Console

    from app.train_command import configure
    from app.tune import TuneOptions, resume_tune, run_tune
    from app.tune_result import table

    check_json(json_file)
    console = Console(width=None if sys.stdout.isatty() else 160)
    if resume is not None:
        refuse_others("--resume", preset, config_file, assignments, data, name, smoke)
        result = resume_tune(resume, console=console)
    else:
        if smoke:
            refuse_others("--smoke", preset, config_file, data)
        preset, trials = ("smoke", 2) if smoke else (preset, trials)
        if confirm is None:
            confirm = 0 if smoke else TuneOptions.confirm
        named = (f"run.name={name}",) if name else ()
        config = configure(preset, config_file, (*assignments, *named), data, None, None)
        options = TuneOptions(trials=trials, seeds=seeds, confirm=confirm, max_auc_drop=max_auc_drop)
        result = run_tune(config, options, preset=preset, console=console)
    console.print(table(result))
    for key in ("config", "dashboard"):
        console.print(f"{key:<10} {result[key]}", highlight=False, soft_wrap=True)
    write_json(json_file, result)


@click.command(**examples(
    "thinwire report runs/tune-demo-20260101-120000",
    "thinwire report --tracking http://mlflow:5000 --run 0123456789abcdef0123456789abcdef --out search.html",
))  # fmt: skip
@click.argument("folder", required=False, type=PATH)
@click.option("--tracking", "uri", metavar="URI", help="MLflow store of the search, instead of its folder.")
@click.option("--run", "run_id", metavar="ID", help="MLflow run of the search, with --tracking.")
@click.option("--out", type=PATH, metavar="FILE", help="Page to write.  [default: report.html in FOLDER, or here]")
@json_option
def report(folder: Path | None, uri: str | None, run_id: str | None, out: Path | None, json_file: Path | None) -> None:
    """Write a search as one HTML page, from its MLflow runs: speed against AUC, bytes, bounds, and what to copy."""
    from app.report import find_search, read_search
    from app.report_page import page

    check_json(json_file)
    search = read_search(*find_search(folder, uri, run_id))
    out = out or (folder or Path()) / "report.html"
    out.write_text(page(search))
    click.echo(f"report     {out}")
    write_json(json_file, {"report": str(out), "run": search.run_id, "trials": len(search.children)})


def refuse_others(option: str, *others: Any) -> None:
    """Raises UserError if anything else was given that an option leaves no room for."""
    if any(others):
        raise UserError("has its own configuration", where=option, fix="leave out what else describes the run")
