"""`thinwire plan`: from a configuration to a plan, a page for people, and the file that `train` takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from app.calibration import read_calibration
from app.config import RunConfig
from app.data import open_dataset
from app.plan_view import draw, plan_table, summary_table, what_if_table
from app.progress import data_progress
from cache.constants import CHAINS, Constants
from cache.distinct import buffer_rows
from cache.plan import Plan, Problem, best_batch, make_plan, over_memory, samples_per_s
from cache.skew import skew
from pipelines.errors import UserError
from pipelines.workload import Workload, read_workload

BUDGETS = 14
"""Points of the plot."""
MB = 1e6


def run_plan(
    config: RunConfig,
    *,
    workers: int | None,
    link_mbit: float | None,
    memory_mb: float | None,
    calibration: Path | None,
    batches: str | None,
    what_if: Sequence[str],
    out: Path,
    plot: Path | None,
    console: Console,
) -> dict[str, Any]:
    """Plan, print, write.

    Returns:
        For `--json`: `tables`, `plan` (the file), `cost`, `without`, `plain`, `what_if`, `memory_curve`.

    Raises:
        UserError: an option or the configuration is wrong.
    """
    others = [parse_what_if(text) for text in what_if]
    sizes = parse_batches(batches)
    constants, notes = read_calibration(calibration, config) if calibration else (Constants(), [])
    with data_progress(Console(stderr=True)) as progress:
        dataset = open_dataset(config, progress)
    if config.exchange.dense == "none":
        # The plan is for the thin exchange, of which this is a part.
        config.exchange.dense = "thin"
    workload = read_workload(config.job(str(dataset.path)), dataset)
    ranks, link = workers or config.cluster.workers, link_mbit or config.exchange.link_mbit
    if ranks < 2:
        raise UserError("one worker exchanges nothing", where="cluster.workers", fix="give --workers 2 or more")
    problem = problem_of(config, workload, constants, ranks, link, memory_mb)
    if sizes:
        batch, plan = best_batch(problem, sizes)
        problem = replace(problem, setting=replace(problem.setting, batch=batch))
    else:
        plan = make_plan(problem)
    chosen = fragment(problem, plan, batch=problem.setting.batch if sizes else None)
    out.write_text(json.dumps(chosen, indent=1) + "\n")
    rows = table_rows(problem, plan)
    console.print(plan_table(rows))
    console.print(summary_table(problem, plan))
    for text in notes if calibration else ["constants of a CPU of one core a rank: measure yours, thinwire calibrate"]:
        console.print(f"note   {text}", highlight=False, soft_wrap=True)
    console.print(f"why    {reason(plan)}", highlight=False, soft_wrap=True)
    found = [other_case(config, workload, constants, *other) for other in others]
    if found:
        console.print(what_if_table(found))
    curve = memory_curve(problem, plan) if plot else []
    if plot:
        draw(curve, problem, plan, plot)
        console.print(f"plot   {plot}", highlight=False, soft_wrap=True)
    console.print(f"plan   {out}: thinwire train --config {out}", highlight=False, soft_wrap=True)
    return {
        "tables": rows,
        "plan": chosen,
        "setting": asdict(problem.setting),
        "memory_mb": plan.memory / MB,
        "dense_sync_bytes": problem.cost(plan.picks, dense_sync=True).sync,
        "gap": plan.gap,
        **{key: as_numbers(of) for key, of in (("cost", plan.cost), ("without", plan.without_cost))},
        "plain": as_numbers(plan.plain_cost),
        "what_if": found,
        "memory_curve": curve,
        "constants": constants.to_dict(),
    }


def problem_of(
    config: RunConfig,
    workload: Workload,
    constants: Constants,
    ranks: int,
    link_mbit: float | None,
    memory_mb: float | None,
) -> Problem:
    """What the planner is asked. Without bounds only the lossless chain is left."""
    exact = not (config.exchange.row_bound and config.exchange.gradient_bound)
    chain, path = config.exchange.chain, config.exchange.path
    return Problem(
        tables=workload.tables,
        owners=workload.owners(ranks),
        setting=workload.setting(ranks, link_mbit),
        constants=constants,
        optimizer=workload.optimizer,
        memory=None if memory_mb is None else memory_mb * MB,
        paths=("row", "pooled") if path == "auto" else (path,),
        chains=("lossless",) if exact else CHAINS if chain not in CHAINS else (chain,),
    )


def fragment(problem: Problem, plan: Plan, batch: int | None = None) -> dict[str, Any]:
    """The configuration that the plan comes to: what `train --config` takes."""
    tables = {
        table.name: {"path": pick.path, "chain": pick.chain}
        for table, pick in zip(problem.tables, plan.picks, strict=True)
        if pick.hot < table.of.rows
    }
    hot = {table.name: pick.hot for table, pick in zip(problem.tables, plan.picks, strict=True) if pick.hot}
    exchange = {"codec": "thin", "tables": tables} | ({"dense": "thin"} if problem.setting.dense == "thin" else {})
    chosen: dict[str, Any] = {"cache": {"hot_rows": hot}, "exchange": exchange}
    if batch is not None:
        chosen["train"] = {"batch_size": batch}
    return chosen


def table_rows(problem: Problem, plan: Plan) -> list[dict[str, Any]]:
    """What is expected of each table, bytes those that a rank sends in a step on the mean; `cold_buffer` rows are
    exceeded by the distinct cold rows of a batch less than once in a million."""
    away = (problem.setting.ranks - 1) / problem.setting.ranks
    rows = []
    for table, pick in zip(problem.tables, plan.picks, strict=True):
        curve, of = problem.traffic_of(table, pick)
        skewed = skew(table.of)
        rows.append(
            {
                "table": table.name,
                "rows": table.of.rows,
                "dim": table.dim,
                "exponent": skewed.exponent,
                "top_1_percent": skewed.top[1],
                "hot": pick.hot,
                "hit_rate": float(curve.hit_rate[0]),
                "path": "replicated" if pick.hot >= table.of.rows else pick.path,
                "chain": pick.chain,
                "distinct_cold": float(curve.cold[0]),
                "cold_buffer": buffer_rows(float(curve.cold[0]), float(curve.cold_variance[0])),
                "ids_bytes": away * float(of.ids[0]),
                "rows_bytes": away * float(of.rows[0]),
                "gradients_bytes": away * float(of.gradients[0]),
                "sync_bytes": float(of.sync_touched[0] + of.sync_union[0] + of.sync_ids[0]),
                "memory_mb": table.row_bytes(problem.optimizer) * pick.hot / MB,
            }
        )
    return rows


def reason(plan: Plan) -> str:
    """One line: what was chosen and why."""
    before, after = plan.without_cost.step_ms, plan.cost.step_ms
    best = min(ms for _, ms in plan.curve)
    if plan.memory:
        text = f"hot rows save {before - after:.2f} ms of {before:.2f} ms a step"
    elif best < before:
        text = f"no hot rows: the best would save {1 - best / before:.1%} of a step, less than the model can tell"
    else:
        text = "no hot rows: their sync takes longer than it saves"
    plain = plan.plain_cost.step_ms
    if plain < after:
        text += f"; TorchRec's own exchange would take {plain:.2f} ms, so the thin one does not pay here"
    return text


def other_case(
    config: RunConfig, workload: Workload, constants: Constants, ranks: int, link: float, memory_mb: float | None
) -> dict[str, Any]:
    """What if: another number of ranks, link and memory, each rank computing as measured."""
    # The link that was measured is not that of the other cluster.
    faster = replace(constants, goodput_mbit=max(constants.goodput_mbit, link))
    problem = problem_of(config, workload, faster, ranks, link, memory_mb)
    plan = make_plan(problem)
    return {
        "workers": ranks,
        "link_mbit": link,
        "memory_mb": plan.memory / MB,
        "hot": sum(pick.hot for pick in plan.picks),
        "samples_per_s": samples_per_s(plan.cost, problem.setting),
        "step_ms": plan.cost.step_ms,
        "without_ms": plan.without_cost.step_ms,
        "plain_ms": plan.plain_cost.step_ms,
        "wire_kb": plan.cost.wire_bytes / 1000,
        "busiest": plan.cost.busiest,
    }


def memory_curve(problem: Problem, plan: Plan) -> list[dict[str, float]]:
    """Samples a second at budgets up to what all tables take."""
    most = problem.memory_of([replace(pick, hot=t.of.rows) for t, pick in zip(problem.tables, plan.picks, strict=True)])
    budgets = [0.0, *np.geomspace(most / 1000, most, BUDGETS - 1).tolist()]
    plans = over_memory(problem, budgets)
    return [
        {
            "memory_mb": budget / MB,
            "used_mb": one.memory / MB,
            "samples_per_s": samples_per_s(one.cost, problem.setting),
        }
        for budget, one in zip(budgets, plans, strict=True)
    ]


def as_numbers(cost: Any) -> dict[str, float]:
    return {**asdict(cost), "wire_bytes": cost.wire_bytes, "step_ms": cost.step_ms}


def parse_what_if(text: str) -> tuple[int, float, float | None]:
    """`1024:200000:500` -> (1024, 200000.0, 500.0).

    Raises:
        UserError: it is something else.
    """
    try:
        ranks, link, *rest = text.split(":")
        memory = float(rest[0]) if rest else None
        if len(rest) > 1 or int(ranks) < 2 or not float(link) > 0 or (memory is not None and not memory >= 0):
            raise ValueError
        return int(ranks), float(link), memory
    except ValueError:
        fix = "for example 1024:200000, that is 1,024 ranks and 200 Gbit/s"
        raise UserError(f"'{text}' is not WORKERS:MBIT[:MEMORY_MB]", where="--what-if", fix=fix) from None


def parse_batches(text: str | None) -> list[int]:
    """`512,1024` -> [512, 1024].

    Raises:
        UserError: it is something else.
    """
    parts = text.split(",") if text else []
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise UserError(f"'{text}' is no list of batch sizes", where="--batches", fix="for example 512,1024,2048")
    return [int(part) for part in parts]
