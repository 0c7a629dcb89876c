"""What the pairs of `thinwire compare` say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from scipy import stats

from app.compare_worker import ARMS
from pipelines.metrics import KINDS

WARM_UP = 2
"""Windows at the beginning of each run that say nothing about speed."""
AUC_LOSS_LIMIT = 0.001
"""Mean AUC that a candidate may lose: the least that users of click models call a difference."""
CONFIDENCE = 0.95
CAPTION = "{pairs} pairs of seeds; [...] is the 95 % interval of the mean difference, (...) are quartiles of windows"

Row = dict[str, Any]


def paired(baseline: Sequence[float], candidate: Sequence[float]) -> Row:
    """Mean of candidate - baseline over pairs, with the 95 % interval of Student's t; no interval for a single pair."""
    deltas = [c - b for b, c in zip(baseline, candidate, strict=True)]
    mean, n = statistics.fmean(deltas), len(deltas)
    if n < 2:
        return {"mean": mean, "low": None, "high": None, "pairs": n}
    half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * statistics.stdev(deltas) / math.sqrt(n)
    return {"mean": mean, "low": mean - half, "high": mean + half, "pairs": n}


def spread(values: Sequence[float]) -> Row:
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "low": values[0], "high": values[0], "n": len(values)}
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high, "n": len(values)}


def summarise(pairs: Sequence[Row]) -> Row:
    """`arms` (a record an arm), `auc_delta`, `ne_delta`, `speedup`, `bytes_ratio`, and `bars`."""
    arms = {arm: _arm(pairs, arm) for arm in ARMS}
    base, other = (arms[arm] for arm in ARMS)
    quotients = [b / c for pair in pairs for b, c in zip(*(_times(pair, arm) for arm in ARMS), strict=True)]
    found: Row = {
        "arms": arms,
        "speedup": spread(quotients) if quotients else None,
        "bytes_ratio": {key: _over(base["wire_kb"][key], other["wire_kb"][key]) for key in ("exchange", "total")},
        "auc_delta": paired(base["auc"], other["auc"]) if base["auc"] else None,
        "ne_delta": paired(base["ne"], other["ne"]) if base["ne"] else None,
    }
    return found | {"bars": _bars(found)}


def _arm(pairs: Sequence[Row], arm: str) -> Row:
    windows = [w for pair in pairs for w in pair[arm]["windows"]]
    last = [pair[arm]["last"] for pair in pairs]
    times = [t for pair in pairs for t in _times(pair, arm)]
    return {
        "auc": [m["eval/auc"] for m in last if "eval/auc" in m],
        "ne": [m["eval/ne"] for m in last if "eval/ne" in m],
        "step_ms": spread(times) if times else None,
        "samples_per_s": statistics.median(w["train/samples_per_s"] for w in windows),
        "wire_kb": {
            key: statistics.fmean(w[f"wire/{key}_kb"] for w in windows) for key in (*KINDS, "exchange", "total")
        },
    }


def _times(pair: Row, arm: str) -> list[float]:
    """Step times of the windows that count: not the first ones, and not the last, which may be short."""
    return [w["time/step_ms"] for w in pair[arm]["windows"]][WARM_UP:-1]


def _over(a: float, b: float) -> float:
    return a / b if b else math.inf


def _bars(found: Row) -> list[Row]:
    bars = []
    if found["auc_delta"]:
        lost = -found["auc_delta"]["mean"]
        bars.append(_bar("AUC lost by the candidate, at most", lost, AUC_LOSS_LIMIT, "", lost <= AUC_LOSS_LIMIT))
    ratio = found["bytes_ratio"]["exchange"]
    bars.append(_bar("bytes of the exchange, baseline over candidate", ratio, 1.0, "x", ratio >= 1.0))
    return bars


def _bar(name: str, value: float, target: float, unit: str, ok: bool) -> Row:
    return {"name": name, "value": value, "target": target, "unit": unit, "ok": ok}


def rows(found: Row) -> list[Row]:
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
        table.append(_row(name, f"{a:,.1f}", f"{b:,.1f}", f"{_over(a, b):.2f}x fewer" if a > b else ""))
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
    pairs = found["auc_delta"]["pairs"] if found["auc_delta"] else 1
    result = Table(caption=CAPTION.format(pairs=pairs), caption_justify="left")
    result.add_column("a rank and step")
    for arm in ARMS:
        result.add_column(f"{arm}\n{names[arm]}", justify="right")
    result.add_column("change")
    for row in rows(found):
        result.add_row(row["name"], row["baseline"], row["candidate"], row["change"])
    return result
