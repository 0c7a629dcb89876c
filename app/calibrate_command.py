"""`thinwire calibrate`: on a Ray cluster, or on this machine."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from rich.console import Console
from rich.table import Table

from app import cluster
from app.board import kept, start_board
from app.calibration import write_calibration
from app.config import RunConfig
from app.data import open_dataset
from app.progress import data_progress
from app.workers import WorkerGroup, run_workers
from cache.constants import EVERY, Constants
from pipelines.calibrate import calibrate
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.job import Job
from pipelines.thin import compile_exchange


@dataclass(frozen=True)
class Settings:
    """What the driver hands to each worker."""

    job: Job
    threads: int
    board: Any


def work(given: Settings) -> None:
    """Entry point of a worker."""
    device = ray.train.torch.get_device()
    torch.set_num_threads(given.threads)
    first = ray.train.get_context().get_world_rank() == 0

    def advance(what: str) -> None:
        if first:
            given.board.say.remote(f"measured: {what}")

    try:
        found = calibrate(given.job, Dataset(given.job.dataset_path), device, advance)
    except UserError as error:
        ray.get(given.board.fail.remote(error))
        raise
    if first:
        ray.get(given.board.finish.remote(found.to_dict()))


def run_calibrate(config: RunConfig, out: Path, console: Console) -> dict[str, Any]:
    """Measure, print, and write the file.

    Raises:
        UserError: it cannot be measured here.
    """
    options = config.cluster.model_copy(update={"max_failures": 0})
    if options.workers < 2:
        raise UserError("one worker sends nothing", where="cluster.workers", fix="use 2 or more")
    with data_progress(Console(stderr=True)) as progress:
        dataset = open_dataset(config, progress)
    with console.status("compiling the codec, which takes a minute or two at the first use on a machine"):
        compile_exchange()
    start = time.monotonic()
    cluster.connect(options)
    try:
        device = cluster.choose_device(options)
        board = start_board()
        with tempfile.TemporaryDirectory() as storage:
            group = WorkerGroup(options, device, f"calibrate-{time.time_ns()}", storage, label="calibrate")
            threads = config.train.threads or options.cpus_per_worker
            run_workers(group, work, Settings(config.job(str(dataset.path)), threads, board), board, console)
        constants = Constants.from_dict(kept(board))
    finally:
        ray.shutdown()
    about = {
        "workers": options.workers,
        "device": device,
        "batch_size": config.train.batch_size,
        "data": str(dataset.path),
        "seconds": round(time.monotonic() - start, 1),
    }
    found = write_calibration(out, constants, config, about)
    console.print(constants_table(constants))
    console.print(f"calibration {out}, after {about['seconds']} s", highlight=False, soft_wrap=True)
    return found


def constants_table(constants: Constants) -> Table:
    """For people."""
    table = Table("constant", "measured", "unit")
    rows = [
        ("latency of a message", constants.latency_us, "us"),
        ("goodput of a rank, each way", constants.goodput_mbit, "Mbit/s"),
        ("CPU time of a message", constants.message_us, "us"),
        ("step, fixed part", constants.fixed_ms, "ms"),
        ("step, for each sample", constants.sample_us, "us"),
        ("gather from memory", constants.lookup_gb_s, "GB/s"),
    ]
    for name, speed in constants.chains.items():
        of = constants.coded[name][EVERY]
        rows += [
            (f"{name}, encode", speed.encode_mb_s, "MB/s"),
            (f"{name}, decode", speed.decode_mb_s, "MB/s"),
            (f"{name}, rows", of["rows"].bits_per_value, "bits a value"),
            (f"{name}, gradients", of["gradients"].bits_per_value, "bits a value"),
        ]
    for name, value, unit in rows:
        table.add_row(name, f"{value:,.4g}", unit)
    return table
