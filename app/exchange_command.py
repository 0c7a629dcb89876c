"""`thinwire bench exchange`: in the lab, or on the Ray cluster that is there."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from app import cluster
from app.bench_command import bar_table
from app.board import kept, start_board
from app.cli_parts import check_plot, wide_console
from app.config import ClusterOptions
from app.workers import WorkerGroup, run_workers
from benchmarks.exchange import result
from benchmarks.exchange.plan import FULL, QUICK, Plan, bits_per_second, parse_grid
from benchmarks.exchange.worker import BenchSettings, work
from benchmarks.lab import Lab
from pipelines.errors import UserError

LAB_LINK_COMMAND = f"{shlex.quote(sys.executable)} -m benchmarks.lab rate {{rate}}"
RATES, GRID = "50mbit,100mbit,1gbit,none", "1024x16,1024x32"
ROOT = Path(__file__).resolve().parent.parent
LEAVE_S = 60


def run_exchange_bench(
    *,
    where: str,
    workers: str | None,
    rates: str | None,
    grid: str | None,
    quick: bool,
    link_command: str | None,
    plot: Path,
    part: bool,
    write: Callable[[dict[str, Any]], None],
) -> None:
    """Measure, print tables, draw the plot and hand the result to `write`; after a failure or Ctrl-C, of what there is.

    Args:
        where: `lab`, `cluster`, or `auto` for the cluster at RAY_ADDRESS, else a lab.
        workers, rates, grid: comma-separated lists; None for the default of `quick` and `where`.
        part: this is the part of another run that ran it in the lab, which shows the result.

    Raises:
        UserError: the lab cannot be made here, or the cluster cannot do it.
    """
    in_lab = where == "lab" or (where == "auto" and not os.environ.get("RAY_ADDRESS"))
    rates = rates or (("100mbit,none" if quick else RATES) if in_lab else "none")
    grid = grid or ("1024x16" if quick else GRID)
    plan = Plan(
        rates=tuple(rates.split(",")),
        grid=parse_grid(grid),
        link_command=link_command,
        paper_point=link_command is not None,
        **(QUICK if quick else FULL),
    )
    counts = parse_workers(workers or ("2" if quick else "2,4"))
    _check(plan, in_lab)
    check_plot(plot)
    console = wide_console()
    start, load = time.monotonic(), os.getloadavg()[0]
    done: dict[str, Any] = {"rows": [], "goodput": [], "refused": {}}
    try:
        for ranks in counts:
            if in_lab:
                _in_lab(done, ranks, plan, grid, quick, console)
            else:
                _on_cluster(done, ranks, plan, console)
            write(done)  # what is killed later leaves this
    finally:
        if done["rows"]:
            done["bars"] = result.bars(done["rows"], done["goodput"])
            done["machine"] = {"cores": os.cpu_count(), "load_before": load}
            done["seconds"] = time.monotonic() - start
            write(done)
            if not part:
                result.plot(done["rows"], plot)
                _show(done, console)
                console.print(f"plot   {plot}", highlight=False, soft_wrap=True)


def _check(plan: Plan, in_lab: bool) -> None:
    """Raises UserError for what would else be found out after minutes."""
    for rate in plan.rates:
        bits_per_second(rate)
    if plan.link_command is not None and "{rate}" not in plan.link_command:
        raise UserError("it does not say {rate}", where="--link-command", fix="put {rate} where the rate goes")
    if not in_lab and plan.link_command is None and plan.rates != ("none",):
        raise UserError(
            "the links of a real cluster stay as they are",
            where="--rates",
            fix="give --link-command, a command that sets them, or --rates none",
        )


def parse_workers(text: str) -> list[int]:
    """`2,4` -> [2, 4].

    Raises:
        UserError: it is something else, or less than two.
    """
    if not all(part.isdigit() and int(part) > 1 for part in text.split(",")):
        raise UserError(f"'{text}' is no list of numbers from 2 on", where="--workers", fix="for example 2,4")
    return [int(part) for part in text.split(",")]


def _in_lab(done: dict[str, Any], ranks: int, plan: Plan, grid: str, quick: bool, console: Console) -> None:
    """The same command in host 0 of a lab of `ranks` hosts."""
    console.print(f"lab of {ranks} hosts", highlight=False)
    with tempfile.TemporaryDirectory() as folder, Lab(hosts=ranks, rate=plan.rates[0]) as lab:
        file = Path(folder) / "part.json"
        command = [sys.executable, "-m", "app.cli", "bench", "exchange", "--where", "cluster", "--part"]
        command += ["--workers", str(ranks), "--rates", ",".join(plan.rates), "--grid", grid, "--json", str(file)]
        command += ["--link-command", LAB_LINK_COMMAND, *(["--quick"] if quick else [])]
        # In a session of its own, so that Ctrl-C reaches it once, through us, and leaves it the time to write.
        process = lab.popen(0, command, env={"PYTHONPATH": str(ROOT)}, start_new_session=True)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait(LEAVE_S)
            raise
        finally:
            if file.exists():
                _add(done, json.loads(file.read_text()), ranks)
        if code:
            raise UserError(f"the run in the lab ended with exit code {code}", where="bench exchange")


def _on_cluster(done: dict[str, Any], ranks: int, plan: Plan, console: Console) -> None:
    options = ClusterOptions(workers=ranks, max_failures=0)
    cluster.connect(options)
    try:
        device = cluster.choose_device(options)
        hosts = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        options.placement = "STRICT_SPREAD" if len(hosts) >= ranks else "PACK"
        board = start_board()
        try:
            with tempfile.TemporaryDirectory() as storage:
                group = WorkerGroup(options, device, f"bench-{time.time_ns()}", storage, label="bench")
                run_workers(group, work, BenchSettings(plan, board), board, console)
        finally:
            if found := kept(board):
                _add(done, found, ranks)
    finally:
        ray.shutdown()


def _add(done: dict[str, Any], part: dict[str, Any], ranks: int) -> None:
    done["rows"] += part["rows"]
    links = part["goodput"]
    done["goodput"] += links if isinstance(links, list) else [{"ranks": ranks, "rate": r} | g for r, g in links.items()]
    done["refused"] |= part["refused"]
    done["device"] = part["device"]


def _show(done: dict[str, Any], console: Console) -> None:
    for table in result.step_tables(done["rows"]):
        console.print(table)
    console.print(result.phase_table(done["rows"]))
    console.print(result.goodput_table(done["goodput"]))
    console.print(result.overview(done["rows"]))
    for name, reason in done["refused"].items():
        console.print(f"not measured: {name}: {reason}", highlight=False, soft_wrap=True)
    spreads = [(r["quartiles_ms"][1] - r["quartiles_ms"][0]) / r["step_ms"] for r in done["rows"]]
    noise = sorted(spreads)[len(spreads) // 2]
    console.print(
        f"{done['device']}; {done['machine']['cores']} cores here; the quartiles of a contender's windows are "
        f"{noise:.0%} apart in the median setting, {max(spreads):.0%} in the worst",
        highlight=False,
        soft_wrap=True,
    )
    if done["bars"]:
        console.print(bar_table(done["bars"]))
