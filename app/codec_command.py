"""`thinwire bench codec`: the codec next to its peers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from app.bench_command import bar_table
from app.cli_parts import check_plot, wide_console
from app.progress import data_progress
from benchmarks.codec import data, result
from benchmarks.codec.ids import measure_ids
from benchmarks.codec.large import measure_bitpack, measure_threads
from benchmarks.codec.measure import BOUNDS, by_table, measure, one_core
from benchmarks.codec.memory import measure_memory
from benchmarks.codec.ours import CHAINS, Thinwire
from benchmarks.codec.peers import Contender, peers
from benchmarks.codec.plot import plot as draw
from benchmarks.codec.trained import IDS, Progress, capture_batches
from pipelines.errors import UserError

THREADS_BOUND = 0.03


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    turn_s: float
    """Least seconds of a turn."""
    large_rounds: int
    threads_rows: int
    """Rows of each of 4 tables of dim 64."""
    memory_mb: int


FULL = Size(rounds=7, turn_s=0.01, large_rounds=9, threads_rows=1 << 16, memory_mb=256)
QUICK = Size(rounds=3, turn_s=0.002, large_rounds=3, threads_rows=1 << 15, memory_mb=64)
LARGE_ROWS = 1 << 18
"""Of the fast path's input: 67 MB of dim 64."""


def run_codec_bench(
    *,
    folder: Path | None,
    dim: int,
    batches: Path | None,
    quick: bool,
    threads: int | None,
    plot: Path,
    write: Callable[[dict[str, Any]], None],
) -> None:
    """Measure, print tables, draw the plot and hand the result to `write`.

    Args:
        folder: raw float32 dumps, [rows, `dim`].
        batches: where trained batches are kept; None for a temporary folder.
        threads: how many to hold against one; None for 2 where there are 2 cores.

    Raises:
        UserError: a peer is not installed, an option is wrong, or training fails.
    """
    cores = len(os.sched_getaffinity(0))
    if threads is not None and not 2 <= threads <= cores:
        fix = f"2 to {cores}, or leave it out" if cores > 1 else "leave it out"
        raise UserError(f"{threads} threads cannot be held against one", where="--threads", fix=fix)
    check_plot(plot)
    contenders: list[Contender] = [*map(Thinwire, CHAINS), *peers()]
    dumps = data.read_dumps(folder, dim) if folder else []
    console = wide_console()
    start, load = time.monotonic(), os.getloadavg()[0]
    if not dumps:
        console.print("no dumps of embeddings: give --data or set THINWIRE_EMBEDDINGS to measure them too")
    with tempfile.TemporaryDirectory() as temporary, data_progress(console) as progress:
        console.print("training the demo model")
        files = capture_batches((batches or Path(temporary)) / ("quick" if quick else "full"), quick, progress)
        groups = [*dumps, *data.trained_groups(files), data.noise(1 << 12)]
        console.print("measuring: contenders take turns on one core")
        done = _small(contenders, groups, QUICK if quick else FULL, progress)
        done["ids"] = measure_ids(files[IDS])
    console.print("measuring large inputs")
    done |= _large(QUICK if quick else FULL, threads or (2 if cores > 1 else None))
    done["aggregate"] = result.aggregate(done["rows"])
    done["bars"] = result.bars(done)
    done["machine"] = {"cores": cores, "load_before": load}
    done["seconds"] = time.monotonic() - start
    write(done)
    draw(done["aggregate"], plot)
    _show(done, console)
    console.print(f"plot   {plot}", highlight=False, soft_wrap=True)


def _small(contenders: list[Contender], groups: list[data.Group], size: Size, progress: Progress) -> dict[str, Any]:
    rows, tables = [], []
    others = [c for c in contenders if c.name not in CHAINS]
    settings = [(group, share) for group in groups for share in BOUNDS]
    with one_core():
        for i, (group, share) in enumerate(settings):
            rows += measure(contenders, group, share, size.rounds, size.turn_s)
            tables += by_table(Thinwire, others, group, share)
            progress("measuring", i + 1, len(settings))
    return {"rows": rows, "tables": tables}


def _large(size: Size, threads: int | None) -> dict[str, Any]:
    with one_core():
        inputs = (data.zipf_rows(1, LARGE_ROWS), data.noise(LARGE_ROWS))
        bitpack = [measure_bitpack(group, share, size.large_rounds) for group in inputs for share in BOUNDS]
    del inputs
    threaded = None
    if threads is not None:
        threaded = measure_threads(data.zipf_rows(4, size.threads_rows), THREADS_BOUND, size.large_rounds, threads)
    return {"bitpack": bitpack, "threads": threaded, "memory": measure_memory(size.memory_mb)}


def _show(done: dict[str, Any], console: Console) -> None:
    for table in result.group_tables(done["rows"]):
        console.print(table)
    console.print(result.aggregate_table(done["aggregate"]))
    for line in result.other_lines(done):
        console.print(line, highlight=False, soft_wrap=True)
    if done["threads"] is None:
        console.print("not measured: two threads, for there is one core")
    if done["memory"] is None:
        console.print("not measured: memory, for this system does not let a process reset its peak")
    console.print(bar_table(done["bars"]))
