"""Tables, bars and a plot of what `rank.measure` returned."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.bars import bar
from benchmarks.exchange.contender import PHASES
from benchmarks.exchange.plan import BASELINE, DUPLEX, LIMIT, SHARE_HIGH, SHARE_LOW, THIN, bits_per_second
from pipelines.metrics import EXCHANGE

NOMINAL_SHARE = 0.9
FASTEST_CLAIMED = 1e9
"""Bit/s up to which a pair of hosts must reach `NOMINAL_SHARE` of the link rate."""
CLAIMED = {(DUPLEX, 2): 1.3, ("QComms int8", 2): 1.7, ("QComms int8", 4): 1.7}
"""Least speedup over the baseline at `CLAIMED_RATE`, by contender and number of ranks."""
CLAIMED_RATE = "100mbit"
SLOW = 1e8
"""Bit/s of the fastest link on which the thin exchange is to come near the limit."""

Row = dict[str, Any]


def setting(row: Row) -> tuple[Any, ...]:
    return row["ranks"], row["batch"], row["dim"], row["paper_point"], bits_per_second(row["rate"])


def overview(rows: list[Row]) -> Table:
    """A line a setting: the baseline's step and its share of communication, then every other one's speedup over it."""
    names = [name for name in dict.fromkeys(r["contender"] for r in rows) if name != BASELINE]
    table = Table(title="speedup over TorchRec fp32", title_justify="left", title_style="bold")
    for column in ("ranks", "batch x dim", "link", "fp32 step, ms", "exposed", "in all-to-all", *names):
        table.add_column(column, justify="right")
    for _, group in groupby(sorted(rows, key=setting), key=setting):
        here = {row["contender"]: row for row in group}
        base = here[BASELINE]
        table.add_row(
            str(base["ranks"]),
            f"{base['batch']} x {base['dim']}",
            base["rate"] + " *" * base["paper_point"],
            f"{base['step_ms']:.1f}",
            f"{base['exposed_share']:.0%}",
            f"{base['all_to_all_share']:.0%}",
            *(f"{here[name]['speedup']:.2f}x" for name in names),
        )
    if any(row["paper_point"] for row in rows):
        table.caption = "* the paper point"
    return table


def step_tables(rows: list[Row]) -> Iterable[Table]:
    """A table a setting: step time and what it is made of, by contender."""
    for (ranks, batch, dim, paper, _), group in groupby(sorted(rows, key=setting), key=setting):
        members = list(group)
        mark = ", the paper point" if paper else ""
        title = f"{ranks} ranks, link {members[0]['rate']}, batch {batch} a rank, dim {dim}{mark}"
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in (
            "exchange",
            "step ms",
            "quartiles",
            "samples/s",
            "speedup",
            "of limit",
            "exposed",
            "all-to-all",
            "KB sent",
            "busiest",
        ):
            table.add_column(column, justify="left" if column == "exchange" else "right")
        table.add_column("MB peak (+step)", justify="right")
        for row in members:
            low, high = row["quartiles_ms"]
            table.add_row(
                row["contender"],
                f"{row['step_ms']:.1f}",
                f"{low:.1f}-{high:.1f}",
                f"{row['samples_per_s']:,.0f}",
                f"{row['speedup']:.2f}x",
                f"{row['share_of_limit']:.0%}",
                f"{row['exposed_share']:.0%}",
                f"{row['all_to_all_share']:.0%}",
                f"{sum(row['wire_kb'].values()):,.0f}",
                f"{row['busiest_rank']:.2f}x",
                f"{row['peak_memory_mb']:,.0f} (+{row['memory_growth_mb']:.0f})",
            )
        yield table


def phase_table(rows: list[Row]) -> Table:
    """Milliseconds by phase, a line a contender and setting."""
    table = Table(title="ms a step by phase, under the profiler", title_justify="left", title_style="bold")
    for column in ("ranks", "link", "batch x dim", "exchange", *PHASES):
        table.add_column(column, justify="left" if column == "exchange" else "right")
    for row in sorted(rows, key=setting):
        table.add_row(
            str(row["ranks"]),
            row["rate"] + "*" * row["paper_point"],
            f"{row['batch']}x{row['dim']}",
            row["contender"],
            *(f"{row['phases_ms'][phase]:.1f}" for phase in PHASES),
        )
    if any(r["paper_point"] for r in rows):
        table.caption = "* the paper point"
    return table


def goodput_table(links: list[Row]) -> Table:
    """Gbit/s sent per rank, by link rate and pattern, with the share of the nominal rate."""
    table = Table(title="goodput, Gbit/s a rank sends (share of the link rate)", title_justify="left")
    patterns = [k for k in links[0] if k not in ("ranks", "rate")]
    for column in ("ranks", "link", *patterns):
        table.add_column(column, justify="right")
    for link in links:
        nominal = bits_per_second(link["rate"]) / 1e9
        cells = [f"{link[p]:.3f} ({link[p] / nominal:.0%})" if nominal < 1e9 else f"{link[p]:.2f}" for p in patterns]
        table.add_row(str(link["ranks"]), link["rate"], *cells)
    return table


def bars(rows: list[Row], links: list[Row]) -> list[Row]:
    """The claims that the README makes from it."""
    found = []
    for link in links:
        nominal = bits_per_second(link["rate"])
        if nominal <= FASTEST_CLAIMED:
            share = 1e9 * link["send/recv"] / nominal
            name = f"send/recv goodput over the link rate, {link['ranks']} hosts, {link['rate']}"
            found.append(bar(name, share, NOMINAL_SHARE, "x"))
    for row in rows:
        if row["paper_point"] and row["contender"] == BASELINE:
            share = row["all_to_all_share"]
            name = f"share of a step in all-to-all at the paper point, {row['ranks']} ranks, at most {SHARE_HIGH}"
            found.append(bar(name, share, SHARE_LOW, "of a step", SHARE_LOW <= share <= SHARE_HIGH))
        target = CLAIMED.get((row["contender"], row["ranks"])) if row["rate"] == CLAIMED_RATE else None
        if target and not row["paper_point"]:
            name = (
                f"{row['contender']} over {BASELINE}, {row['ranks']} ranks, {row['rate']}, {row['batch']}x{row['dim']}"
            )
            found.append(bar(name, row["speedup"], target, "x"))
    return found + thin_bars(rows)


def thin_bars(rows: list[Row]) -> list[Row]:
    """What is claimed of the thin exchange, over all settings that were measured."""
    if not any(row["contender"] == THIN for row in rows):
        return []
    found = []
    settings = [
        {row["contender"]: row for row in group} for _, group in groupby(sorted(rows, key=setting), key=setting)
    ]
    settings = [here for here in settings if {THIN, BASELINE, LIMIT} <= here.keys()]

    def least(name: str, target: float, values: list[float]) -> None:
        if values:
            found.append(bar(f"{THIN}: {name}", min(values), target, "x"))

    def over(here: dict[str, Row], other: str) -> float:
        return here[other]["step_ms"] / here[THIN]["step_ms"]

    for other, target in ((BASELINE, 30.0), ("QComms int8", 8.0)):
        slow = [here for here in settings if other in here and bits_per_second(here[THIN]["rate"]) <= SLOW]
        quotients = [exchange_kb(here[other]) / exchange_kb(here[THIN]) for here in slow]
        least(f"bytes of the exchange, {other} over it, links up to 100mbit", target, quotients)
    for here in settings:
        row = here[THIN]
        where = f"{row['ranks']} ranks, {row['rate']}, {row['batch']}x{row['dim']}"
        if row["paper_point"]:
            least(f"share of the limit's speed at the paper point, {where}", 0.9, [row["share_of_limit"]])
            best = [over(here, name) for name in here if name.startswith("QComms")]
            least(f"over the best QComms at the paper point, {where}", 1.3, [min(best)] if best else [])
        elif row["rate"] == CLAIMED_RATE and (row["ranks"], row["batch"], row["dim"]) == (4, 1024, 32):
            least(f"over {BASELINE}, {where}", 6.0, [row["speedup"]])
            least(f"over QComms int8, {where}", 2.5, [over(here, "QComms int8")])
    plain = [here[THIN] for here in settings if not here[THIN]["paper_point"]]
    slow_links = [row["share_of_limit"] for row in plain if bits_per_second(row["rate"]) <= SLOW]
    least("share of the limit's speed, all settings up to 100mbit", 0.85, slow_links)
    least(f"over {BASELINE} on unshaped links", 1.0, [row["speedup"] for row in plain if row["rate"] == "none"])
    return found


def exchange_kb(row: Row) -> float:
    return sum(row["wire_kb"][kind] for kind in EXCHANGE)


def plot(rows: list[Row], file: Path) -> None:
    """Step time over link rate for each number of ranks (down) and batch x dim (across); the limit is the floor."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in rows if not r["paper_point"]]
    ranks = sorted({r["ranks"] for r in rows})
    cells = list(dict.fromkeys((r["batch"], r["dim"]) for r in rows))
    rates = sorted({r["rate"] for r in rows}, key=bits_per_second)
    size = (max(7.0, 1.5 + 4 * len(cells)), 1.5 + 3 * len(ranks))
    figure, axes = pyplot.subplots(len(ranks), len(cells), figsize=size, squeeze=False, sharex=True)
    for i, world in enumerate(ranks):
        for j, cell in enumerate(cells):
            here = [r for r in rows if (r["ranks"], (r["batch"], r["dim"])) == (world, cell)]
            _panel(axes[i][j], here, rates)
            axes[i][j].set_title(f"{world} ranks, batch {cell[0]}, dim {cell[1]}", fontsize=10)
        axes[i][0].set_ylabel("step, ms")
    for axis in axes[-1]:
        axis.set_xlabel("link rate, each direction")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, fontsize=9, frameon=False)
    figure.suptitle("Training step over link rate: medians, bars are quartiles", fontsize=11)
    figure.tight_layout(rect=(0, 0.6 / size[1], 1, 1))
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _panel(axis: Any, rows: list[Row], rates: list[str]) -> None:
    from matplotlib.ticker import LogFormatter

    for name in dict.fromkeys(r["contender"] for r in rows):
        line = sorted((r for r in rows if r["contender"] == name), key=setting)
        at = [rates.index(r["rate"]) for r in line]
        middle = [r["step_ms"] for r in line]
        if name == LIMIT:
            axis.plot(at, middle, "--", color="black", label=name, linewidth=1.2)
            axis.fill_between(at, 0, middle, color="0.9", linewidth=0)
            continue
        spread = [
            [max(0.0, r["step_ms"] - r["quartiles_ms"][0]) for r in line],
            [max(0.0, r["quartiles_ms"][1] - r["step_ms"]) for r in line],
        ]
        axis.errorbar(at, middle, yerr=spread, marker="o", markersize=3.5, linewidth=1.3, capsize=2, label=name)
    axis.set_yscale("log")
    for of_axis in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        of_axis(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.6)))
    axis.set_xticks(range(len(rates)), ["unshaped" if rate == "none" else rate for rate in rates], fontsize=8)
    axis.grid(alpha=0.3, which="both", linewidth=0.5)
