"""What each rank of `thinwire bench exchange` does."""

from __future__ import annotations

import gc
import math
import os
import statistics
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from filelock import FileLock
from torchrec.datasets.utils import Batch

from app.config import load_config
from benchmarks.exchange import goodput
from benchmarks.exchange.contender import Contender, all_to_all_ms, wire_kb
from benchmarks.exchange.plan import (
    BASELINE,
    DUPLEX,
    EXCHANGES,
    LIMIT,
    SHARE_HIGH,
    SHARE_LOW,
    Plan,
    bits_per_second,
    rate_text,
    windows,
)
from compression.exchange import set_link
from pipelines import synthetic
from pipelines.dataset import MANIFEST, Dataset
from pipelines.errors import UserError
from pipelines.groups import check_duplex, local_groups
from pipelines.job import Job
from pipelines.measure import load
from pipelines.qcomms import qcomm_codecs
from pipelines.synthetic import SynthOptions, write_synthetic
from pipelines.trainable import build_trainable

BATCHES = 32
"""Different ones; then they come again."""
WARM_UP = 3
PAPER_TRIES, PAPER_ROUNDS, PAPER_STEPS, PAPER_TOLERANCE = 8, 3, 10, 0.01

Advance = Callable[[int, int], None]
Keep = Callable[[dict[str, Any], str], None]


def measure(plan: Plan, device: torch.device, advance: Advance, keep: Keep) -> None:
    """Measure all settings of the plan. The process group is up; all ranks get the same figures.

    Args:
        advance: called after each window with (windows done, windows in all).
        keep: called after each setting with all that was found so far, and with what was just measured: `rows`,
            `goodput` by link rate, and the refusals of contenders by name.
    """
    torch.set_num_threads(1)
    refused = refusals(device)
    found: dict[str, Any] = {"rows": [], "goodput": {}, "refused": refused}
    turns = Turns(plan, advance, windows(plan, len(EXCHANGES) - len(refused) + 1))
    for cell in plan.grid:
        contenders = build(cell, device, refused)
        for rate in plan.rates:
            set_rate(plan, rate, contenders)
            if rate not in found["goodput"]:
                found["goodput"][rate] = goodput.measure(bits_per_second(rate), 0.2, device)
            found["rows"] += [{"paper_point": False} | row for row in turns.take(contenders, rate, cell)]
            keep(found, f"{rate}, batch {cell[0]}, dim {cell[1]}")
        if plan.paper_point and cell == plan.grid[0]:
            rate = find_paper_point(plan, contenders)
            found["rows"] += [{"paper_point": True} | row for row in turns.take(contenders, rate, cell)]
            keep(found, f"the paper point, at {rate}")
        del contenders
        gc.collect()


def refusals(device: torch.device) -> dict[str, str]:
    """Why a contender cannot run on this device, by name."""
    found = {}
    for name, assignments in EXCHANGES.items():
        options = load_config(assignments=assignments).exchange
        try:
            qcomm_codecs(options.codec, device)
            if options.schedule == "duplex":
                check_duplex()
        except UserError as error:
            found[name] = error.what
    return found


def set_rate(plan: Plan, rate: str, contenders: list[Contender]) -> None:
    """Rank 0 sets that of all links, on whatever host it runs; the thin exchange is told, as its user would tell it."""
    for contender in contenders:
        set_link(contender.trainable.model, bits_per_second(rate) / 8)
    failed = [""]
    if plan.link_command and dist.get_rank() == 0:
        done = subprocess.run(
            plan.link_command.replace("{rate}", rate), shell=True, capture_output=True, text=True, check=False
        )
        failed = [done.stderr.strip()[-300:] or f"exit code {done.returncode}"] if done.returncode else failed
    dist.broadcast_object_list(failed, 0)
    if failed[0]:
        raise UserError(f"cannot set the links to {rate}: {failed[0]}", where="--link-command")


def build(cell: tuple[int, int], device: torch.device, refused: dict[str, str]) -> list[Contender]:
    """All contenders, warmed up, their first losses compared."""
    jobs = {name: job_of(cell, assignments) for name, assignments in EXCHANGES.items() if name not in refused}
    batches, dataset = load_batches(next(iter(jobs.values())), device)
    built = [Contender(name, build_trainable(job, dataset, device), batches) for name, job in jobs.items()]
    free = build_trainable(jobs[BASELINE], dataset, device, local_groups())
    built.append(Contender(LIMIT, free, batches))
    for contender in built:
        contender.warm_up(WARM_UP)
    check_same_work({c.name: c.losses for c in built})
    return built


def job_of(cell: tuple[int, int], assignments: list[str]) -> Job:
    batch, dim = cell
    common = [f"train.batch_size={batch}", f"model.embedding_dim={dim}"]
    return load_config(assignments=[*common, *assignments]).job("")


def load_batches(job: Job, device: torch.device) -> tuple[list[Batch], Dataset]:
    """This rank's batches of a synthetic data set, made once on each host."""
    rows = BATCHES * job.train.batch_size * dist.get_world_size()
    options = SynthOptions(rows=math.ceil(rows / 0.9) + 1)
    version = zlib.crc32((repr(options) + Path(synthetic.__file__).read_text()).encode())
    out = Path(tempfile.gettempdir()) / f"thinwire-bench-{os.getuid()}-{version:08x}"
    with FileLock(f"{out}.lock"):
        if not (out / MANIFEST).is_file():
            write_synthetic(out, options, overwrite=True)
    dataset = Dataset(out)
    return load(job, dataset, device, BATCHES), dataset


def check_same_work(losses: dict[str, list[float]]) -> None:
    """Raises RuntimeError unless fp32 has the same losses by both schedules, and a codec nearly the same."""
    base = losses[BASELINE]
    if losses.get(DUPLEX, base) != base:
        raise RuntimeError(f"the schedules do not bring the same bits: losses {base} and {losses[DUPLEX]}")
    for name, found in losses.items():
        if name != LIMIT and any(abs(a / b - 1) > 0.02 for a, b in zip(found, base, strict=True)):
            raise RuntimeError(f"{name} does other work than {BASELINE}: losses {found} and {base}")
    if not all(map(math.isfinite, losses[LIMIT])):
        raise RuntimeError(f"{LIMIT} computes with what is not finite: losses {losses[LIMIT]}")


class Turns:
    """Lets contenders take turns, setting by setting."""

    def __init__(self, plan: Plan, advance: Advance, total: int) -> None:
        self._plan, self._advance, self._done, self._total = plan, advance, 0, total

    def take(self, contenders: list[Contender], rate: str, cell: tuple[int, int]) -> list[dict[str, Any]]:
        """Windows of all contenders in turn, begun by another one in each round; then the phases of each."""
        plan, count = self._plan, len(contenders)
        for contender in contenders:
            contender.windows, contender.peak_mb, contender.growth_mb = [], 0.0, 0.0
            contender.steps = steps_of_a_window(plan, contender.measure(plan.least_steps).step_ms)
        for start in range(plan.rounds):
            for i in range(count):
                contenders[(start + i) % count].take_turn()
                self._done += 1
                self._advance(self._done, self._total)
        phases = {c.name: c.phases(plan.profiled_steps) for c in contenders}
        batch, dim = cell
        where = {"ranks": dist.get_world_size(), "rate": rate, "batch": batch, "dim": dim}
        return [where | {"contender": c.name} | row_of(c, contenders, phases) for c in contenders]


def steps_of_a_window(plan: Plan, step_ms: float) -> int:
    """`step_ms` is the same on all ranks."""
    return max(plan.least_steps, min(50, math.ceil(1000 * plan.window_s / step_ms)))


def row_of(contender: Contender, contenders: list[Contender], phases: dict[str, dict[str, float]]) -> dict[str, Any]:
    """What a contender's windows say, next to the baseline's and the limit's windows of the same rounds."""
    by_name = {c.name: [w.step_ms for w in c.windows] for c in contenders}
    times = by_name[contender.name]
    low, median, high = statistics.quantiles(times, n=4)
    world_batch = contender.batches[0].labels.numel() * dist.get_world_size()
    return {
        "step_ms": median,
        "quartiles_ms": [low, high],
        "windows_ms": [round(t, 3) for t in times],
        "steps_a_window": contender.steps,
        "samples_per_s": 1000 * world_batch / median,
        "speedup": ratio(by_name[BASELINE], times),
        "share_of_limit": ratio(by_name[LIMIT], times),
        "exposed_share": 1 - ratio(by_name[LIMIT], times),
        "wire_kb": wire_kb(contender.windows),
        "busiest_rank": statistics.fmean(w.busiest for w in contender.windows),
        "peak_memory_mb": contender.peak_mb,
        "memory_growth_mb": contender.growth_mb,
        "phases_ms": phases[contender.name],
        "all_to_all_share": all_to_all_share(phases[contender.name], phases[LIMIT]),
    }


def all_to_all_share(phases: dict[str, float], free: dict[str, float]) -> float:
    """The part of a step that waits for all-to-all: the phases of the exchange, less what they take without one."""
    return (all_to_all_ms(phases) - all_to_all_ms(free)) / (sum(phases.values()) or math.inf)


def ratio(over: list[float], under: list[float]) -> float:
    """Median over the rounds of the quotient of two contenders' windows, which met the same drift."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def find_paper_point(plan: Plan, contenders: list[Contender]) -> str:
    """The link rate at which the baseline waits for all-to-all for about 62.5 % of a step.

    That time goes with one over the rate, so each try measures it and corrects the rate.
    """
    base, free = (next(c for c in contenders if c.name == name) for name in (BASELINE, LIMIT))
    middle = (SHARE_LOW + SHARE_HIGH) / 2
    rate = 0.4e9
    for _ in range(PAPER_TRIES):
        set_rate(plan, rate_text(rate), contenders)
        pairs = [(base.phases(PAPER_STEPS), free.phases(PAPER_STEPS)) for _ in range(PAPER_ROUNDS)]
        waits = statistics.median(all_to_all_ms(a) - all_to_all_ms(b) for a, b in pairs)
        step = statistics.median(sum(a.values()) for a, _ in pairs)
        if abs(waits / step - middle) < PAPER_TOLERANCE:
            break
        rest = max(step - waits, 1.0)
        rate *= max(waits, 0.05 * step) / (rest * middle / (1 - middle))
    return rate_text(rate)
