"""Ratio against throughput."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.codec.ours import CHAINS, OURS

OUR_COLOURS = ("#d62728", "#ff7f0e", "#8c1c13", "#e377c2", "#f7b267", "#ff9f9b")
PEERS = (("o", "#1f77b4"), ("o", "#74b9e8"), ("s", "#2ca02c"), ("D", "#c0c0c0"), ("D", "black"), ("D", "#7f7f7f"),
         ("v", "#9467bd"), ("^", "#bc8f00"), ("P", "#17becf"), ("X", "#a0a0a0"), ("d", "#a0a0a0"))  # fmt: skip


def plot(total: list[dict[str, Any]], file: Path) -> None:
    """A point for each contender and bound of `result.aggregate`, joined by a line; encode left, decode right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(r["contender"] for r in total))
    styles = dict(zip(CHAINS, (("*", colour) for colour in OUR_COLOURS), strict=True))
    styles |= dict(zip((n for n in names if n not in CHAINS), PEERS, strict=True))
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 6.5), sharey=True)
    for axis, side in zip(axes, ("encode", "decode"), strict=True):
        for name in names:
            points = sorted((r for r in total if r["contender"] == name), key=lambda r: r["bound"])
            _line(axis, points, f"{side}_gbps", name, *styles[name])
        axis.set_title(side)
        axis.set_xlabel("GB/s of raw float32, one core")
        _log_axes(axis)
    axes[0].set_ylabel("compression ratio")
    handles, labels = axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="lower center", ncols=6, fontsize=9, frameon=False)
    marks: Any = legend.legend_handles
    for mark in marks:
        mark.set_sizes([60])
    bounds = ", ".join(f"{b:.0%}" for b in sorted({r["bound"] for r in total}))
    figure.suptitle(f"Dumps and trained rows, bounds of {bounds} of range, small to large marks", fontsize=11)
    figure.tight_layout(rect=(0, 0.11, 1, 1))
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _line(axis: Any, points: list[dict[str, Any]], key: str, name: str, marker: str, colour: str) -> None:
    label = name
    if not points[0]["bounded"]:  # the same at all bounds
        points, label = points[:1], f"{name} (no bound)"
    ours, chosen = name in CHAINS, name == OURS
    x, y = [p[key] for p in points], [p["ratio"] for p in points]
    sizes = [(90 if ours else 25) * (1 + 0.8 * i) for i in range(len(points))]
    axis.plot(x, y, color=colour, linewidth=2.2 if chosen else 1, zorder=2)
    order = 5 if chosen else 4 if ours else 3
    axis.scatter(x, y, sizes, color=colour, marker=marker, label=label, zorder=order, edgecolor="white", linewidth=0.5)
    if chosen:
        style = {"fontsize": 10, "color": colour, "fontweight": "bold", "ha": "center"}
        axis.annotate(name, (x[-1], y[-1]), xytext=(0, 11), textcoords="offset points", **style)


def _log_axes(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.set_xscale("log")
    axis.set_yscale("log")
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(LogLocator(subs=(1, 2, 5)))
        one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        one.set_minor_formatter("")
    axis.grid(alpha=0.3, which="both", linewidth=0.5)
    axis.margins(x=0.08, y=0.1)
