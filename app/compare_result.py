"""What the pairs of `thinwire compare` say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from scipy import stats

from app.arms import ARMS
from benchmarks.bars import bar
from pipelines.metrics import KINDS

WARM_UP = 2
"""Windows at the beginning of each run that say nothing about speed."""
AUC_LOSS_LIMIT = 0.001
"""AUC that a candidate may lose, at the far end of the interval: the least that users of click models call a
difference."""
CONFIDENCE = 0.95
CAPTION = "[...] is the 95 % interval of the mean difference over the pairs; (...) are quartiles of windows"

Row = dict[str, Any]


def paired(baseline: Sequence[float], candidate: Sequence[float]) -> Row:
    """Mean of candidate - baseline over pairs, with the 95 % interval of Student's t; no interval for a single pair."""
    deltas = [c - b for b, c in zip(baseline, candidate, strict=True)]
    mean, n = statistics.fmean(deltas), len(deltas)
    if n < 2:
        return {"mean": mean, "low": None, "high": None, "pairs": n}
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * statistics.stdev(deltas) / math.sqrt(n)
    return {"mean": mean, "low": mean - half, "high": mean + half, "pairs": n}


def spread(values: Sequence[float]) -> Row:
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "low": values[0], "high": values[0], "n": len(values)}
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high, "n": len(values)}


def summarise(pairs: Sequence[Row]) -> Row:
    """`arms` (a record an arm), `auc_delta`, `ne_delta`, `speedup`, `bytes_ratio`, and of these `rows` and `bars`."""
    arms = {arm: _arm(pairs, arm) for arm in ARMS}
    base, other = (arms[arm] for arm in ARMS)
    quotients = [
        b["time/step_ms"] / c["time/step_ms"]
        for pair in pairs
        for b, c in zip(*(_timed(pair, arm) for arm in ARMS), strict=True)
    ]
    found: Row = {
        "arms": arms,
        "speedup": spread(quotients) if quotients else None,
        "bytes_ratio": {key: _over(base["wire_kb"][key], other["wire_kb"][key]) for key in ("exchange", "total")},
        "auc_delta": paired(base["auc"], other["auc"]) if base["auc"] else None,
        "ne_delta": paired(base["ne"], other["ne"]) if base["ne"] else None,
    }
    return found | {"rows": _rows(found), "bars": _bars(found)}


def _arm(pairs: Sequence[Row], arm: str) -> Row:
    windows = [w for pair in pairs for w in pair[arm]["windows"]]
    timed = [w for pair in pairs for w in _timed(pair, arm)]
    last = [pair[arm]["last"] for pair in pairs]
    return {
        "auc": [m["eval/auc"] for m in last if "eval/auc" in m],
        "ne": [m["eval/ne"] for m in last if "eval/ne" in m],
        "step_ms": spread([w["time/step_ms"] for w in timed]) if timed else None,
        "samples_per_s": statistics.median(w["train/samples_per_s"] for w in timed) if timed else None,
        "wire_kb": {
            key: statistics.fmean(w[f"wire/{key}_kb"] for w in windows) for key in (*KINDS, "exchange", "total")
        },
    }


def _timed(pair: Row, arm: str) -> list[Row]:
    """The windows that count: not the first ones, and not the last, which may be short."""
    windows: list[Row] = pair[arm]["windows"]
    return windows[WARM_UP:-1]


def _over(a: float, b: float) -> float | None:
    return a / b if b else None


def _bars(found: Row) -> list[Row]:
    bars = []
    if delta := found["auc_delta"]:
        proven = delta["low"] is not None
        lost = -(delta["low"] if proven else delta["mean"])
        name = f"AUC lost by the candidate, at most ({'far end of the interval' if proven else 'one pair'})"
        bars.append(bar(name, lost, AUC_LOSS_LIMIT, "", proven and lost <= AUC_LOSS_LIMIT))
    if ratio := found["bytes_ratio"]["exchange"]:
        bars.append(bar("bytes of the exchange, baseline over candidate", ratio, 1.0, "x"))
    return bars


def _rows(found: Row) -> list[Row]:
    """The table: `name`, then text of the baseline, the candidate, and the change."""
    base, other = (found["arms"][arm] for arm in ARMS)
    table = []
    for key, name in (("auc", "AUC"), ("ne", "NE")):
        if found[f"{key}_delta"]:
            table.append(_row(name, _mean(base[key]), _mean(other[key]), interval(found[f"{key}_delta"])))
    if found["speedup"]:
        quotient = found["speedup"]
        change = f"{quotient['median']:.2f}x speedup ({quotient['low']:.2f}-{quotient['high']:.2f})"
        table.append(_row("step, ms", _quartiles(base["step_ms"]), _quartiles(other["step_ms"]), change))
        table.append(_row("samples/s", f"{base['samples_per_s']:,.0f}", f"{other['samples_per_s']:,.0f}", ""))
    for key in ("total", "exchange", *KINDS):
        a, b = base["wire_kb"][key], other["wire_kb"][key]
        name = f"KB sent, {key}" if key in ("total", "exchange") else f"  {key.replace('_', ' ')}"
        table.append(_row(name, f"{a:,.1f}", f"{b:,.1f}", f"{a / b:.2f}x fewer" if a > b > 0 else ""))
    return table


def _row(name: str, baseline: str, candidate: str, change: str) -> Row:
    return {"name": name, "baseline": baseline, "candidate": candidate, "change": change}


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.5f}"


def _quartiles(values: Row) -> str:
    return f"{values['median']:.1f} ({values['low']:.1f}-{values['high']:.1f})"


def interval(delta: Row) -> str:
    """A paired difference for people."""
    if delta["low"] is None:
        return f"{delta['mean']:+.5f} (one pair proves nothing)"
    return f"{delta['mean']:+.5f} [{delta['low']:+.5f}, {delta['high']:+.5f}]"


def table(found: Row, names: dict[str, str]) -> Table:
    """For the terminal. `names`: what each arm is."""
    result = Table(caption=CAPTION, caption_justify="left")
    result.add_column("a rank and step")
    for arm in ARMS:
        result.add_column(f"{arm}\n{names[arm]}", justify="right")
    result.add_column("change")
    for row in found["rows"]:
        result.add_row(row["name"], row["baseline"], row["candidate"], row["change"])
    return result
