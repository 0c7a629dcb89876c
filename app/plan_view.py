"""A plan for people: tables, and the plot of throughput over memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from cache.cost import StepCost
from cache.plan import Plan, Problem, samples_per_s

_KINDS = ("ids", "rows", "gradients", "sync")


def plan_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line a table of the model."""
    table = Table(title="plan: KB that a rank sends in a step", title_justify="left")
    for column in (
        "table",
        "rows",
        "dim",
        "skew",
        "hot rows",
        "hit rate",
        "path",
        "chain",
        "cold a batch",
        *_KINDS,
        "hot MB",
    ):
        table.add_column(column, justify="left" if column in ("table", "path", "chain") else "right")
    for row in rows:
        chain = row["chain"]
        cells = [row["table"], f"{row['rows']:,}", str(row["dim"]), f"{row['exponent']:.2f}"]
        cells += [f"{row['hot']:,}", f"{row['hit_rate']:.1%}"]
        cells += [row["path"], chain, f"{row['distinct_cold']:,.0f}"]
        cells += [f"{row[f'{kind}_bytes'] / 1000:.2f}" for kind in _KINDS]
        table.add_row(*cells, f"{row['memory_mb']:.2f}")
    return table


def summary_table(problem: Problem, plan: Plan) -> Table:
    """What is expected of the plan, without hot rows, and of TorchRec's own exchange."""
    setting = problem.setting
    link = 8e-6 * setting.bytes_per_s(problem.constants)
    title = f"expected: {setting.ranks} ranks, batch {setting.batch:,} each, {link:,.0f} Mbit/s of payload"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in ("plan", "no hot rows", "TorchRec fp32"):
        table.add_column(name, justify="right")
    costs = (plan.cost, plan.without_cost, plan.plain_cost)

    def line(name: str, values: Sequence[float], form: str = ",.1f") -> None:
        table.add_row(name, *(format(value, form) for value in values))

    for kind in (*_KINDS, "dense"):
        line(f"{kind}, KB a rank and step", [getattr(cost, kind) / 1000 for cost in costs])
    line("all, KB a rank and step", [cost.wire_bytes / 1000 for cost in costs])
    line("messages a rank and step", [cost.messages for cost in costs])
    line("busiest rank over the mean", [cost.busiest for cost in costs], ".2f")
    for name, key in _TIMES:
        line(f"{name}, ms", [getattr(cost, key) for cost in costs], ",.2f")
    line("step, ms", [cost.step_ms for cost in costs], ",.2f")
    line("samples/s", [samples_per_s(cost, setting) for cost in costs], ",.0f")
    table.add_row("hot rows, MB a rank", f"{plan.memory / 1e6:,.2f}", "0", "0")
    table.add_row("greedy above the least, at most", f"{plan.gap:.2%}", "", "")
    return table


_TIMES = (
    ("compute", "compute_ms"),
    ("encode and decode", "coding_ms"),
    ("messages", "messages_ms"),
    ("link, forward", "forward_ms"),
    ("link, backward", "backward_ms"),
)


def what_if_table(cases: Sequence[dict[str, Any]]) -> Table:
    """A line a cluster."""
    table = Table(title="what if each rank computed as here", title_justify="left")
    columns = ("workers", "link Mbit/s", "hot rows", "hot MB", "KB a rank", "step ms", "no hot rows", "TorchRec fp32")
    for column in (*columns, "busiest", "samples/s"):
        table.add_column(column, justify="right")
    for case in cases:
        cells = [f"{case['workers']:,}", f"{case['link_mbit']:,.0f}", f"{case['hot']:,}", f"{case['memory_mb']:,.2f}"]
        cells += [f"{case['wire_kb']:,.1f}"]
        cells += [f"{case[key]:,.2f}" for key in ("step_ms", "without_ms", "plain_ms", "busiest")]
        table.add_row(*cells, f"{case['samples_per_s']:,.0f}")
    return table


def draw(curve: Sequence[dict[str, float]], problem: Problem, plan: Plan, file: Path) -> None:
    """Samples a second over memory for hot rows, next to no hot rows and TorchRec's own exchange."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4))
    axis.plot([p["memory_mb"] for p in curve], [p["samples_per_s"] for p in curve], marker="o", label="plan")
    costs: list[tuple[str, StepCost, str]] = [
        ("no hot rows", plan.without_cost, "--"),
        ("TorchRec fp32", plan.plain_cost, ":"),
    ]
    for name, cost, style in costs:
        axis.axhline(samples_per_s(cost, problem.setting), linestyle=style, color="gray", label=name)
    axis.set_xscale("symlog", linthresh=max(curve[1]["memory_mb"], 1e-3) if len(curve) > 1 else 1.0)
    axis.set_xlabel("memory that a rank may give to hot rows, MB (optimiser state included)")
    axis.set_ylabel("samples/s, all ranks, expected")
    setting = problem.setting
    axis.set_title(f"{setting.ranks} ranks, batch {setting.batch:,} each", fontsize=10)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
