"""`thinwire plan` and `calibrate`: the cost model, and its constants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from app.cli_parts import PATH, check_json, check_plot, config_options, examples, json_option, wide_console, write_json

data_option = click.option(
    "--data", type=str, metavar="FOLDER", help="Prepared data set; short for --set data.path=FOLDER."
)


@click.command(**examples(
    "thinwire plan --preset demo --out plan.json && thinwire train --preset demo --config plan.json",
    "thinwire plan --preset kaggle --data data/kaggle --workers 8 --link-mbit 10000 --memory-mb 500",
    "thinwire plan --preset kaggle --data data/kaggle --calibration calibration.json --what-if 1024:200000",
))  # fmt: skip
@config_options
@data_option
@click.option("--workers", type=click.IntRange(2), help="Ranks.  [default: cluster.workers]")
@click.option("--link-mbit", type=click.FloatRange(0, min_open=True), help="Rate of a rank's link.  [default: "
              "exchange.link_mbit, else as measured]")  # fmt: skip
@click.option("--memory-mb", type=click.FloatRange(0), help="What a rank may give to hot rows, state of the optimiser "
              "included.  [default: any]")  # fmt: skip
@click.option("--calibration", type=PATH, metavar="FILE", help="Of `thinwire calibrate`; default: constants of a CPU.")
@click.option("--batches", metavar="N,...", help="Choose the batch of a rank, of these, that gives the most samples/s.")
@click.option("--what-if", "what_if", multiple=True, metavar="WORKERS:MBIT[:MEMORY_MB]", help="The same for another "
              "cluster; repeatable.")  # fmt: skip
@click.option("--out", type=PATH, default=Path("plan.json"), show_default=True, metavar="FILE",
              help="Configuration for train and compare.")  # fmt: skip
@click.option("--plot", type=PATH, metavar="FILE", help="Samples/s over memory.")
@json_option
def plan(
    preset: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    data: str | None,
    plot: Path | None,
    json_file: Path | None,
    **options: Any,
) -> None:
    """Choose by the cost model which rows every rank holds, and how each table travels.

    Prints what is chosen, the bytes and the step time that are expected, and the same without a cache. Nothing is
    trained, and no cluster is needed.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from app.doctor import require_training_stack

    require_training_stack()
    from app.plan_command import run_plan
    from app.train_command import configure

    config = configure(preset, config_file, assignments, data, None, None)
    check_json(json_file)
    check_json(options["out"])
    if plot is not None:
        check_plot(plot)
    write_json(json_file, run_plan(config, plot=plot, console=wide_console(), **options))


@click.command(**examples(
    "thinwire calibrate --preset demo --set cluster.workers=2",
    "RAY_ADDRESS=auto thinwire calibrate --preset kaggle --data data/kaggle --set cluster.workers=8",
))  # fmt: skip
@config_options
@data_option
@click.option("--out", type=PATH, default=Path("calibration.json"), show_default=True, metavar="FILE",
              help="Constants for `thinwire plan`.")  # fmt: skip
@json_option
def calibrate(
    preset: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    data: str | None,
    out: Path,
    json_file: Path | None,
) -> None:
    """Measure what the cost model cannot count, in under a minute: link, steps at two batch sizes, chains of the codec.

    On the cluster at RAY_ADDRESS or cluster.address, else on this machine; with the model, data, batch and bounds of
    the configuration.
    """
    from app.doctor import require_training_stack

    require_training_stack()
    from app.calibrate_command import run_calibrate
    from app.train_command import configure

    config = configure(preset, config_file, assignments, data, None, None)
    check_json(json_file)
    check_json(out)
    write_json(json_file, run_calibrate(config, out, wide_console()))
