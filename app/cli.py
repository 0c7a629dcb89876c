"""The command `thinwire`: thin, each subcommand a few lines over one function."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from app.bench_cli import bench
from app.cli_parts import PATH, check_json, config_options, examples, json_option, write_json
from app.errors import LostError
from app.plan_cli import calibrate, plan
from app.search_cli import analyze, report, tune
from pipelines.errors import UserError
from pipelines.job import DivergedError

USER_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


def main() -> None:
    """Entry point. Exits with 0 on success only; a user's mistake is one line on stderr and exit code 2."""
    try:
        cli(standalone_mode=False)
    except UserError as error:
        _fail(str(error), USER_ERROR)
    except click.ClickException as error:
        error.show()
        sys.exit(USER_ERROR)
    except (KeyboardInterrupt, click.Abort):
        _fail("stopped", INTERRUPTED)
    except DivergedError as error:
        _fail(f"{error} (lower optim.dense_lr or optim.sparse_lr, or warm up longer)", FAILURE)
    except LostError as error:
        _fail(str(error), FAILURE)
    except Exception as error:
        if os.environ.get("THINWIRE_TRACEBACK"):
            raise
        _fail(f"{_summary(error)} (THINWIRE_TRACEBACK=1 shows where)", FAILURE)


def _fail(message: str, code: int) -> None:
    print(f"thinwire: {message}", file=sys.stderr)
    sys.exit(code)


def _summary(error: Exception) -> str:
    """The kind of an error and the last line of its text: that of a worker's failure is its traceback."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="thinwire", message="thinwire %(version)s")
def cli() -> None:
    """Train TorchRec recommendation models on Ray when the network is the bottleneck."""


@cli.command(**examples(
    "thinwire train --preset demo",
    "thinwire train --preset kaggle --data data/kaggle --set cluster.workers=4 --set train.epochs=2",
    "thinwire train --resume runs/kaggle-20260101-120000",
))  # fmt: skip
@config_options
@click.option("--data", type=str, metavar="FOLDER", help="Prepared data set; short for --set data.path=FOLDER.")
@click.option("--name", help="Folder of the run inside run.storage; short for --set run.name=NAME.")
@click.option("--resume", metavar="RUN", help="Go on from the newest checkpoint of a run's folder, with its settings.")
@click.option("--show-config", is_flag=True, help="Print the configuration with the meaning of each key, and stop.")
@json_option
def train(
    preset: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    data: str | None,
    name: str | None,
    resume: str | None,
    show_config: bool,
    json_file: Path | None,
) -> None:
    """Train a model on Ray, evaluate it, and track it in MLflow.

    With RAY_ADDRESS or cluster.address set it trains on that cluster, else on this machine.
    """
    from app.config_text import annotated
    from app.train_command import configure, print_result

    config = configure(preset, config_file, assignments, data, name, resume)
    if show_config:
        click.echo(annotated(config))
        return
    from app.doctor import require_training_stack

    require_training_stack()
    from rich.console import Console

    from app.trainer import run_training

    console = Console()
    check_json(json_file)
    result = run_training(config, preset=preset, resume=resume is not None, console=console)
    print_result(result, console)
    write_json(json_file, asdict(result))


@cli.command(**examples(
    "thinwire prepare train.txt --format criteo-kaggle --out data/kaggle --min-count 4",
    "thinwire prepare days/ --format criteo-1tb --days 0-22,23 --split files:1 --workers 8 --out data/terabyte",
    "thinwire prepare log.csv --format csv --schema configs/schemas/open_bandit.yaml --out data/own",
    "thinwire prepare today.txt --format criteo-kaggle --like data/kaggle --out data/today",
))  # fmt: skip
@click.argument("sources", nargs=-1, required=True, type=PATH)
@click.option("--format", "file_format", required=True, help="criteo-kaggle, criteo-1tb, criteo-csv, criteo-parquet, "
              "avazu, csv or parquet.")  # fmt: skip
@click.option("--out", required=True, type=PATH, metavar="FOLDER", help="Where the data set goes.")
@click.option("--schema", type=PATH, metavar="FILE.yaml", help="Columns of the formats csv and parquet.")
@click.option("--split", default="last:0.1", show_default=True, help="last:SHARE, random:SHARE, files:K (the last K "
              "files) or none: what goes to the valid split.")  # fmt: skip
@click.option("--min-count", default=1, show_default=True, help="Rarer values share the unknown id.")
@click.option("--max-ids", type=int, help="Keep at most so many ids a table, the most frequent.")
@click.option("--days", metavar="LIST", help="Days of criteo-1tb, such as 0-22,23.")
@click.option("--like", type=PATH, metavar="FOLDER", help="Use the ids of that data set, for serving.")
@click.option("--on-bad-line", type=click.Choice(["error", "skip"]), default="error", show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the random split.")
@click.option("--workers", default=0, show_default=True, help="Files converted side by side as Ray tasks; 0 = one "
              "after the other, without Ray.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace a finished data set.")
@json_option
def prepare(
    sources: tuple[Path, ...],
    file_format: str,
    out: Path,
    days: str | None,
    workers: int,
    json_file: Path | None,
    **options: Any,
) -> None:
    """Turn raw click logs into a data set with frequency-ranked ids.

    Runs again from where it was stopped when given the same arguments.
    """
    from app.data_command import run_prepare

    write_json(json_file, run_prepare(sources, file_format, out, days, workers, options))


@cli.command(**examples("thinwire synth --out data/synthetic --rows 1000000 --exponent 1.1 --multi-hot C3=20"))
@click.option("--out", required=True, type=PATH, metavar="FOLDER", help="Where the data set goes.")
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of both splits together.")
@click.option("--valid-share", default=0.1, show_default=True, help="Share of the rows in the valid split.")
@click.option("--tables", default=26, show_default=True, help="Categorical columns.")
@click.option("--dense", default=13, show_default=True, help="Dense columns.")
@click.option("--exponent", "exponents", type=float, multiple=True, help="Zipf exponent of all tables, or one a table.")
@click.option("--multi-hot", multiple=True, metavar="TABLE=MEAN", help="Make a table's bags so long on average.")
@click.option("--base-rate", default=0.25, show_default=True, help="Share of clicks.")
@click.option("--seed", default=0, show_default=True, help="Of the data and the signal in them.")
@click.option("--overwrite", is_flag=True, help="Replace a finished data set.")
@json_option
def synth(out: Path, overwrite: bool, json_file: Path | None, **options: Any) -> None:
    """Make a synthetic data set with a planted signal, so that the best possible AUC is known."""
    from app.data_command import run_synth

    write_json(json_file, run_synth(out, overwrite, options))


@cli.command(**examples("thinwire export runs/demo-20260101-120000 --out model"))
@click.argument("run")
@click.option("--out", required=True, type=PATH, metavar="FOLDER", help="Where model.pt and score.py go.")
@json_option
def export(run: str, out: Path, json_file: Path | None) -> None:
    """Write a run's newest checkpoint (or a checkpoint folder) as one state dict that plain torch loads."""
    from app.doctor import require_training_stack

    require_training_stack()
    from app.export_command import run_export

    write_json(json_file, run_export(run, out))


@cli.command("compare", **examples(
    "thinwire compare --preset demo",
    "thinwire compare --preset kaggle --data data/kaggle --candidate exchange.codec=fp16 --seeds 5",
    "thinwire compare --preset demo --candidate exchange.codec=thin --candidate exchange.row_bound=0.05",
))  # fmt: skip
@config_options
@click.option("--data", type=str, metavar="FOLDER", help="Prepared data set; short for --set data.path=FOLDER.")
@click.option("--name", help="Folder of the comparison inside run.storage; short for --set run.name=NAME.")
@click.option("--baseline", multiple=True, metavar="SECTION.KEY=VALUE", default=["exchange.codec=none"],
              show_default="exchange.codec=none, TorchRec in fp32", help="What only the baseline changes; "
              "repeatable.")  # fmt: skip
@click.option("--candidate", multiple=True, metavar="SECTION.KEY=VALUE",
              help="What only the candidate changes; repeatable.  [default: exchange.codec=thin, exchange.dense=thin, "
              "and what `thinwire plan` chooses]")  # fmt: skip
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Pairs, from train.seed on.")
@json_option
def compare(
    preset: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    data: str | None,
    name: str | None,
    baseline: tuple[str, ...],
    candidate: tuple[str, ...],
    seeds: int,
    json_file: Path | None,
) -> None:
    """Train baseline and candidate on paired seeds: AUC delta with its interval, speedup, bytes sent.

    Both arms of a pair start from the same weights, see the same rows and take turns on the same workers. All is
    tracked in MLflow as one parent run with a child for each arm and seed.
    """
    from app.doctor import require_training_stack

    require_training_stack()
    from rich.console import Console

    from app.compare import configure, run_comparison
    from app.compare_result import table

    check_json(json_file)
    named = (f"run.name={name}",) if name else ()
    changes = {"baseline": baseline, "candidate": candidate}
    comparison = configure(preset, config_file, (*assignments, *named), data, changes, seeds)
    console = Console(width=None if sys.stdout.isatty() else 120)
    result = run_comparison(comparison, preset=preset, command=command_line(), console=console)
    console.print(table(result, result["changes"]))
    for key in ("report", "dashboard"):
        console.print(f"{key:<10} {result[key]}", highlight=False, soft_wrap=True)
    write_json(json_file, result)


@cli.command(**examples("thinwire doctor", "thinwire doctor --set tracking.uri=http://mlflow:5000"))
@config_options
@json_option
def doctor(preset: str | None, config_file: Path | None, assignments: tuple[str, ...], json_file: Path | None) -> None:
    """Check versions, devices, network interface, tracking server and storage, and say how to mend each."""
    from app.config import load_config
    from app.doctor import device_installed, diagnose, print_checks
    from app.tracked_run import tracking_uri

    config = load_config(preset, config_file, assignments)
    checks = diagnose(
        tracking_uri=tracking_uri(config),
        storage_path=config.run.storage,
        device=device_installed() if config.cluster.device == "auto" else config.cluster.device,
    )
    print_checks(checks)
    write_json(json_file, {"checks": [asdict(check) for check in checks]})
    if not all(check.ok for check in checks):
        sys.exit(FAILURE)


@cli.command(
    context_settings={"ignore_unknown_options": True},
    **examples("thinwire submit --address http://head:8265 -- thinwire train --preset demo"),
)
@click.option("--address", default="http://127.0.0.1:8265", show_default=True, help="Dashboard of the Ray cluster.")
@click.option("--working-dir", type=PATH, default=Path(), show_default=True, help="Folder to send.")
@click.option("--limit-mb", default=100, show_default=True, help="Refuse to send more.")
@click.argument("entrypoint", nargs=-1, required=True)
@json_option
def submit(address: str, working_dir: Path, limit_mb: int, entrypoint: tuple[str, ...], json_file: Path | None) -> None:
    """Run a command as a Ray job, with the size sent, large folders left out, and a true exit code."""
    from app.submit import submit as submit_job

    code = submit_job(address, working_dir, list(entrypoint), limit=limit_mb * 1_000_000)
    write_json(json_file, {"entrypoint": entrypoint, "exit_code": code})
    sys.exit(code)


def command_line() -> str:
    """What the user typed."""
    return shlex.join(["thinwire", *sys.argv[1:]])


for command in (bench, analyze, tune, report, plan, calibrate):
    cli.add_command(command)


if __name__ == "__main__":
    main()
