"""Many configurations on the same seeds and data, next to one baseline: ranks are started once, without Ray.

Used by `benchmarks.bounds_ablation` and `cold_bounds`: `thinwire compare` trains the baseline anew for every candidate.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table

from app.compare_result import interval, paired
from app.config import RunConfig
from app.train_command import configure
from pipelines.job import DivergedError, Job, Metrics
from pipelines.profiler import quiet
from pipelines.run_state import RunState
from pipelines.thin import compile_exchange
from pipelines.train import train_in_windows

Row = dict[str, Any]
KINDS = ("total", "exchange", "ids", "output_dist", "gradients", "replica", "dense")
"""Of `wire/..._kb`."""


@dataclass(frozen=True)
class Arm:
    """A configuration to train."""

    name: str
    job: Job


def thin_base(preset: str, assignments: Sequence[str], data: str) -> RunConfig:
    """The thin exchange with all that a policy of bounds does not change; it is compiled."""
    thin = ("exchange.codec=thin", "exchange.dense=thin", "exchange.chain=huffman")
    base = configure(preset, None, (*thin, *assignments), str(Path(data).resolve()), None, None)
    compile_exchange()
    return base


def arm(name: str, base: RunConfig, changes: Row, data: str) -> Arm:
    values = base.model_dump()
    for section, of in changes.items():
        values[section] |= of
    return Arm(name, RunConfig.model_validate(values).job(data))


def measure(base: RunConfig, arms: Sequence[Arm], seeds: int, data: str, out: Path) -> None:
    """Train TorchRec's fp32 and the arms, and print the table; the result is written after each."""
    plain = arm("TorchRec fp32", base, {"exchange": {"codec": "none", "dense": "none"}}, data)
    rows = run_arms(plain, arms, range(seeds), base.cluster.workers, lambda rows: keep(rows, out))
    Console(width=140).print(table(rows))


def keep(rows: list[Row], out: Path) -> None:
    out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    row = rows[-1]
    delta = interval(row["auc_delta"]) if row["auc_delta"] else "one pair"
    print(f"{row['arm']}: {row['kb']['total']:.1f} KB, AUC {delta}", flush=True)


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


def run_arms(
    baseline: Arm, arms: Sequence[Arm], seeds: Sequence[int], workers: int, kept: Callable[[list[Row]], None]
) -> list[Row]:
    """Train the baseline and all arms with all seeds on ranks of this machine.

    Args:
        kept: called with the rows so far after each arm, and at last.

    Returns:
        A row an arm, as `summarise` makes it.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trained.jsonl"
        context = mp.start_processes(
            _rank, (workers, [baseline, *arms], list(seeds), folder), nprocs=workers, join=False, start_method="spawn"
        )
        rows: list[Row] = []
        while not context.join(timeout=2):
            done = summarise([json.loads(line) for line in out.read_text().splitlines()] if out.exists() else [])
            if len(done) > len(rows):
                rows = done
                kept(rows)
        rows = summarise([json.loads(line) for line in out.read_text().splitlines()])
        kept(rows)
        return rows


def summarise(trained: Sequence[Row]) -> list[Row]:
    """The arms that are done, each less the baseline, which comes first: KB a step, and AUC with its 95 % interval."""
    if not trained:
        return []
    base = {run["seed"]: run for run in trained[0]["runs"]}
    rows = []
    for arm in trained:
        runs = [run for run in arm["runs"] if run["auc"] is not None]
        of_base = [base[run["seed"]]["auc"] for run in runs]
        kb = {kind: statistics.fmean(run["kb"][kind] for run in runs) if runs else None for kind in KINDS}
        rows.append(
            {
                "arm": arm["arm"],
                "seeds": len(runs),
                "diverged": len(arm["runs"]) - len(runs),
                "kb": kb,
                "auc_delta": paired(of_base, [run["auc"] for run in runs]) if len(runs) > 1 else None,
            }
        )
    return rows


def _rank(rank: int, workers: int, arms: list[Arm], seeds: list[int], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    store = dist.FileStore(f"{folder}/store", workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=timedelta(minutes=10))
    try:
        for arm in arms:
            with quiet():
                runs = [_train(arm.job, seed) for seed in seeds]
            if rank == 0:
                with (Path(folder) / "trained.jsonl").open("a") as file:
                    file.write(json.dumps({"arm": arm.name, "runs": runs}) + "\n")
    finally:
        dist.destroy_process_group()


def _train(job: Job, seed: int) -> Row:
    """AUC is None where the loss was not finite."""
    run = RunState(replace(job, train=job.train.model_copy(update={"seed": seed})), _Quiet(), torch.device("cpu"))
    windows: list[Metrics] = []
    stream = train_in_windows(run)
    auc: float | None = None
    try:
        while True:
            windows.append(next(stream))
    except StopIteration as end:
        auc = end.value.get("eval/auc")
    except DivergedError:
        pass
    finally:
        stream.close()
    gc.collect()
    kb = {kind: statistics.fmean(w.get(f"wire/{kind}_kb", 0.0) for w in windows) for kind in KINDS} if windows else {}
    return {"seed": seed, "auc": auc, "kb": kb}


class _Quiet:
    """`pipelines.job.Hooks` that keep nothing."""

    def say(self, text: str) -> None:
        pass

    def log(self, step: int, total_steps: int, metrics: Metrics) -> None:
        pass

    def save(self, step: int, metrics: Metrics, write: Callable[[Path], None]) -> None:
        pass

    def tables(self, rows: list[dict[str, Any]]) -> None:
        pass

    @contextmanager
    def restore(self) -> Iterator[Path | None]:
        yield None
