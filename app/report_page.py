"""The page of a search: pictures and tables of what its trials came to."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from app.compare_result import interval
from app.html_page import STYLE, encoded
from app.report import Child, SearchRuns
from pipelines.metrics import KINDS

MOST_TABLES = 30
RATES = (50, 100, 250, 500, 1000, 2500, 10_000, 25_000, 100_000)
"""Mbit/s."""


def page(search: SearchRuns) -> str:
    """Self-contained HTML."""
    escape = html.escape
    best, base = search.child(search.best), search.baseline
    said = f"No trial lost at most {search.max_auc_drop:g} of AUC."
    if best:
        said = (
            f"Best: {best.name}, {best.metrics['speedup']:.2f}x speedup by the cost law at AUC "
            f"{best.metrics['auc_delta']:+.5f}, {best.metrics['ratio']:.1f}x fewer bytes in the exchange."
        )
    for one in search.confirmed:
        said += f" {one['trial']} on {one['auc_delta']['pairs']} fresh seeds: AUC {interval(one['auc_delta'])}."
    pictures = [("Speed against AUC", pareto_picture(search))]
    if best and base:
        pictures += [
            ("Step time over link rate", rates_picture(base, best)),
            ("Bytes by kind", kinds_picture(base, best)),
        ]
    if search.series:
        pictures.append(("The best trial over its steps", steps_picture(search)))
    if search.tables:
        pictures.append(("The best trial by table", tables_picture(search)))
    images = "".join(
        f'<h2>{title}</h2><p><img alt="{title}" src="data:image/png;base64,{image}"></p>' for title, image in pictures
    )
    config = f"<h2>The configuration</h2><pre>{escape(search.config)}</pre>" if search.config else ""
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(search.name)}</title>
<style>{STYLE}</style><h1>{escape(search.name)}</h1><p>{escape(said)}</p>
{images}<h2>Trials</h2>{_table(search)}{config}
<p>Speedup is by the cost law: a step computes for as long as the baseline's did, sends the bytes that were counted over
the link that was stated, and encodes and decodes for as long as was measured. AUC is less that of the baseline with the
same seeds. MLflow run {escape(search.run_id)}.</p></html>"""


def _table(search: SearchRuns) -> str:
    lines = []
    for child in sorted(search.children, key=lambda c: -c.metrics.get("speedup", 0.0)):
        cells = [
            child.name + (" (best)" if child.name == search.best else ""),
            *(_number(child, *of) for of in (("speedup", ".2f"), ("auc_delta", "+.5f"), ("ratio", ".1f"))),
            _number(child, "wire_bytes_per_step", ",.0f"),
            child.status,
        ]
        lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{text}</th>" for text in ("trial", "speedup", "AUC delta", "ratio", "bytes a step", "status"))
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _number(child: Child, key: str, form: str) -> str:
    return format(child.metrics[key], form) if key in child.metrics else ""


def _axes(count: int = 1, height: float = 3.8) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(1, count, figsize=(10, height), squeeze=False)


def pareto_picture(search: SearchRuns) -> str:
    """AUC delta over speedup, with the floor."""
    figure, ((axis,),) = _axes()
    shown = [c for c in search.children if c.status == "FINISHED" and "speedup" in c.metrics]
    points = sorted((c.metrics["speedup"], c.metrics["auc_delta"], c.name) for c in shown)
    axis.plot([p[0] for p in points], [1e3 * p[1] for p in points], "o", color="tab:blue", label="trial")
    front, top = [], -np.inf
    for speed, delta, _ in reversed(points):
        if delta > top:
            front.append((speed, 1e3 * delta))
            top = delta
    axis.step(*zip(*front, strict=True), where="pre", color="tab:blue", alpha=0.5, label="no other beats these")
    axis.axhline(-1e3 * search.max_auc_drop, color="tab:red", linestyle="--", label="AUC floor")
    if best := search.child(search.best):
        at = best.metrics["speedup"], 1e3 * best.metrics["auc_delta"]
        axis.plot(*at, "*", markersize=15, color="tab:orange", label="best")
    for one in search.confirmed:
        delta, child = one["auc_delta"], search.child(one["trial"])
        if child and delta["low"] is not None:
            half = 1e3 * (delta["high"] - delta["mean"])
            bar = axis.errorbar(child.metrics["speedup"], 1e3 * delta["mean"], half, fmt="D", color="tab:orange")
            bar.set_label("on fresh seeds, 95 %" if one is search.confirmed[0] else "_")
    axis.set(xlabel="speedup over TorchRec fp32, by the cost law", ylabel="AUC delta, 1e-3")
    axis.legend()
    axis.grid(alpha=0.3)
    return encoded(figure)


def rates_picture(base: Child, best: Child) -> str:
    """Step time by the cost law, and the limit at which communication is free."""
    figure, ((axis,),) = _axes()
    compute = base.metrics["step_ms"]
    for child, coding, colour, label in (
        (base, 0.0, "0.55", "TorchRec fp32"),
        (best, best.metrics.get("coding_ms", 0.0), "tab:blue", best.name),
    ):
        # Bytes over Mbit/s, in ms.
        times = [compute + coding + child.metrics["wire_bytes_per_step"] * 8e-3 / rate for rate in RATES]
        axis.plot(RATES, times, "o-", color=colour, label=label)
    axis.axhline(compute, color="black", linewidth=0.8, label="communication is free")
    axis.set(xscale="log", yscale="log", xlabel="link rate, Mbit/s", ylabel="step, ms, by the cost law")
    axis.legend()
    axis.grid(alpha=0.3, which="both")
    return encoded(figure)


def kinds_picture(base: Child, best: Child) -> str:
    """KB a rank and step by kind; the baseline's next to the best's, and the best's alone, for it may be too small."""
    figure, (both,) = _axes(2)
    for axis, children in zip(both, ([base, best], [best]), strict=True):
        left = np.zeros(len(children))
        for kind in KINDS:
            sizes = np.array([child.wire_kb[kind] for child in children])
            axis.barh([child.name for child in children], sizes, left=left, label=kind.replace("_", " "))
            left += sizes
        axis.set(xlabel="KB that a rank sends in a step")
        axis.invert_yaxis()
    both[0].legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(1.0, 1.18), frameon=False)
    return encoded(figure)


def steps_picture(search: SearchRuns) -> str:
    """Ratios, and multipliers of the bounds."""
    figure, ((ratio, bound),) = _axes(2)
    for key, values in search.series.items():
        axis = bound if key.startswith("bounds/") else ratio
        axis.plot(*zip(*values, strict=True), ".-", label=key.partition("/")[2].replace("_", " "), linewidth=0.9)
    ratio.set(xlabel="step", ylabel="raw fp32 bytes over sent bytes")
    bound.set(xlabel="step", ylabel="multiplier of the bounds")
    if not bound.lines:
        bound.text(0.5, 0.5, "the bounds do not change", ha="center", transform=bound.transAxes)
    for axis in (ratio, bound):
        if axis.lines:
            axis.legend()
            axis.set_ylim(0, 1.1 * max(max(line.get_ydata()) for line in axis.lines))
        axis.grid(alpha=0.3)
    return encoded(figure)


def tables_picture(search: SearchRuns) -> str:
    """Bytes of rows and gradients, and ratios, by table."""
    rows = search.tables[:MOST_TABLES]
    figure, ((size, ratio),) = _axes(2, height=1.2 + 0.22 * len(rows))
    names, at = [row["table"].removeprefix("table_") for row in rows], np.arange(len(rows))
    for shift, kind in ((-0.2, "output_dist"), (0.2, "gradients")):
        label = "rows" if kind == "output_dist" else kind
        size.barh(at + shift, [float(row[f"{kind}_bytes"]) / 1e3 for row in rows], height=0.4, label=label)
        ratio.barh(at + shift, [float(row[f"{kind}_ratio"]) for row in rows], height=0.4, label=label)
    for axis, text in ((size, "KB that a rank sends in a step"), (ratio, "raw fp32 bytes over sent bytes")):
        axis.set(yticks=at, xlabel=text)
        axis.set_yticklabels(names, fontsize=7)
        axis.invert_yaxis()
        axis.legend()
    return encoded(figure)
