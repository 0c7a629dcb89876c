"""The report of `thinwire compare`: one HTML page with its pictures inside."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from app.arms import ARMS
from app.compare_result import WARM_UP, interval
from app.html_page import STYLE, encoded
from pipelines.metrics import KINDS

COLOURS = {"baseline": "0.55", "candidate": "tab:blue"}


def page(found: dict[str, Any], pairs: Sequence[dict[str, Any]], facts: dict[str, str]) -> str:
    """Self-contained HTML.

    Args:
        found: of `compare_result.summarise`.
        facts: what was compared, on what, by which command; `baseline` and `candidate` are what the arms are.
    """
    escape = html.escape
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(row[key])}</td>" for key in ("name", *ARMS, "change")) + "</tr>"
        for row in found["rows"]
    )
    head = "".join(f"<th>{escape(text)}</th>" for text in ("a rank and step", *ARMS, "change"))
    about = "".join(f"<tr><td>{escape(key)}</td><td>{escape(value)}</td></tr>" for key, value in facts.items())
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>thinwire compare</title>
<style>{STYLE}</style>
<h1>{escape(facts["candidate"])} against {escape(facts["baseline"])}</h1>
<p>{escape(headline(found))}</p>
<table><tr>{head}</tr>{lines}</table>
<p><img alt="AUC by seed, step time, bytes sent" src="data:image/png;base64,{picture(found, pairs)}"></p>
<h2>How</h2><table>{about}</table>
<p>Both arms of a pair start from the same weights and see the same rows in the same order. They are trained side by
side on the same workers, and take turns window by window. Speed is the median over pairs of neighbouring windows; the
first {WARM_UP} windows of a run and its last, shorter one are left out. [...] is the 95 % interval of the mean
difference over the pairs, by Student's t; (...) are quartiles of the windows. Bytes are payload that a rank sends to
others, mean over ranks.</p>
</html>"""


def headline(found: dict[str, Any]) -> str:
    """The result in one sentence."""
    parts = []
    if found["auc_delta"]:
        parts.append(f"AUC {interval(found['auc_delta'])}")
    if found["speedup"]:
        parts.append(f"{found['speedup']['median']:.2f}x speedup")
    if found["bytes_ratio"]["exchange"]:
        parts.append(f"{found['bytes_ratio']['exchange']:.2f}x fewer bytes in the exchange")
    return "; ".join(parts) + "."


def picture(found: dict[str, Any], pairs: Sequence[dict[str, Any]]) -> str:
    """PNG in base64: AUC of each pair, step time of each window, bytes by kind."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (quality, speed, wire) = pyplot.subplots(1, 3, figsize=(12, 3.6))
    _quality(quality, found, pairs)
    _speed(speed, pairs)
    _wire(wire, found)
    return encoded(figure)


def _quality(axis: Any, found: dict[str, Any], pairs: Sequence[dict[str, Any]]) -> None:
    axis.set(title="AUC, candidate - baseline", xlabel="seed")
    axis.axhline(0, color="black", linewidth=0.8)
    delta = found["auc_delta"]
    if not delta:
        return
    base, other = (found["arms"][arm]["auc"] for arm in ARMS)
    seeds = [str(pair["seed"]) for pair in pairs]
    axis.plot(seeds, [b - a for a, b in zip(base, other, strict=True)], "o", color=COLOURS["candidate"])
    axis.axhline(delta["mean"], color=COLOURS["candidate"], linewidth=0.8, label="mean")
    if delta["low"] is not None:
        axis.axhspan(delta["low"], delta["high"], color=COLOURS["candidate"], alpha=0.12, label="95 % interval")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _speed(axis: Any, pairs: Sequence[dict[str, Any]]) -> None:
    for arm in ARMS:
        times = [w["time/step_ms"] for pair in pairs for w in pair[arm]["windows"]]
        axis.plot(times, ".-", color=COLOURS[arm], label=arm, linewidth=0.8, markersize=3)
    axis.set(title="step, ms", xlabel="window, all pairs in a row", ylim=(0, None))
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _wire(axis: Any, found: dict[str, Any]) -> None:
    left = [0.0, 0.0]
    for kind in KINDS:
        sizes = [found["arms"][arm]["wire_kb"][kind] for arm in ARMS]
        axis.barh(list(ARMS), sizes, left=left, label=kind.replace("_", " "))
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    axis.invert_yaxis()
    axis.set(title="KB sent, a rank and step")
    axis.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
