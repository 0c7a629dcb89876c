"""Bars and tables of what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from benchmarks.bars import bar
from benchmarks.codec.data import CLAIMED
from benchmarks.codec.ours import CHAINS, FAST, OURS

Row = dict[str, Any]
RATIO, WORST_TABLE, OVER_ZSTD, OVER_SCIENTIFIC, OF_COPY = 1.5, 1.0, 2.5, 5.0, 0.4
OVER_ENTROPY, MEMORY, SECOND_CALL, OF_THREADS = 1.3, 2.0, 0.01, 0.85


def aggregate(rows: list[Row]) -> list[Row]:
    """A row for each contender and bound, over the dumps and the trained rows: all bytes over all bytes or seconds."""
    found = []
    kept = [r for r in rows if r["kind"] in CLAIMED]
    for name, bound in dict.fromkeys((r["contender"], r["bound"]) for r in kept):
        here = [r for r in kept if (r["contender"], r["bound"]) == (name, bound)]
        raw = sum(r["raw_bytes"] for r in here)
        found.append({
            "contender": name,
            "bound": bound,
            "bounded": here[0]["bounded"],
            "ratio": raw / sum(r["payload_bytes"] for r in here),
            "encode_gbps": raw / sum(r["raw_bytes"] / r["encode_gbps"] for r in here),
            "decode_gbps": raw / sum(r["raw_bytes"] / r["decode_gbps"] for r in here),
            "error_over_bound": max(r["error_over_bound"] for r in here),
        })  # fmt: skip
    return found


def bars(done: Row) -> list[Row]:
    """The claims. Of several settings that a claim is about, such as bounds, the worst one counts."""
    total, tables = done["aggregate"], [r for r in done["tables"] if r["kind"] in CLAIMED]
    ours = {r["bound"]: r for r in total if r["contender"] == OURS}
    peers = [r for r in total if r["contender"] not in CHAINS and r["bounded"]]
    found = []
    for bound, own in ours.items():
        best = max((r for r in peers if r["bound"] == bound), key=lambda r: r["ratio"])
        name = f"ratio over the best peer's, {best['contender']}, bound {bound:.0%} of range"
        found.append(bar(name, own["ratio"] / best["ratio"], RATIO, "x"))
    worst = min(tables, key=lambda r: r["over_best"])
    name = f"ratio over its best peer's, worst table ({worst['group']}: {worst['table']} at {worst['bound']:.0%})"
    found.append(bar(name, worst["over_best"], WORST_TABLE, "x"))
    fast = {r["bound"]: r for r in total if r["contender"] == FAST}
    races = [(ours, "", "NumPy + zstd-1", OVER_ZSTD), (ours, "", "quantise + zstd-1", OVER_ZSTD)]
    races += [(fast, " at 10 Gbit/s", "quantise + zstd-1", OVER_ZSTD)]
    races += [(ours, "", peer, OVER_SCIENTIFIC) for peer in ("SZ3", "ZFP")]
    for own_rows, where, peer, target in races:
        for side in ("encode", "decode"):
            key = f"{side}_gbps"
            same = [r for r in peers if r["contender"].partition(",")[0] == peer]
            value = min(own_rows[r["bound"]][key] / r[key] for r in same)
            found.append(bar(f"{side} speed{where} over {peer}'s, worst bound", value, target, "x"))
    for side in ("encode", "decode"):
        value = min(r[f"{side}_of_copy"] for r in done["bitpack"])
        found.append(bar(f"bitpack: {side} speed over a memory copy's, worst input", value, OF_COPY, "x"))
    found.append(_at_most("ids: bits over the entropy of the gaps", done["ids"][-1]["over_entropy"], OVER_ENTROPY))
    if done["memory"]:
        value = max(r["extra_over_raw"] for r in done["memory"])
        found.append(_at_most("peak extra memory over the raw input", value, MEMORY))
        value = max(r["second_call_over_raw"] for r in done["memory"])
        found.append(_at_most("memory that a second call adds, over the raw input", value, SECOND_CALL))
    if threaded := done["threads"]:
        for side in ("encode", "decode"):
            name = f"{side} speed of {threaded['threads']} threads over one's"
            found.append(bar(name, threaded[f"{side}_speedup"], OF_THREADS * threaded["threads"], "x"))
    own = [r for r in done["rows"] if r["contender"] in CHAINS] + done["bitpack"] + ([threaded] if threaded else [])
    beyond = sum(not r["error_over_bound"] <= 1.0 for r in own)  # what is not a number is beyond it too
    found.append(_at_most("measurements with an error beyond the bound, all our chains", beyond, 0, "of them"))
    return found


def _at_most(name: str, value: float, most: float, unit: str = "x") -> Row:
    return bar(f"{name}, at most", value, most, unit, value <= most)


def aggregate_table(total: list[Row]) -> Table:
    """A line a contender: ratio and speeds at each bound."""
    bounds = sorted({r["bound"] for r in total})
    table = Table(title="dumps and trained rows: ratio, encode / decode GB/s on one core", title_justify="left")
    table.add_column("")
    for bound in bounds:
        table.add_column(f"{bound:.0%} of range", justify="right")
    table.add_column("worst error / bound", justify="right")
    for name in dict.fromkeys(r["contender"] for r in total):
        here = {r["bound"]: r for r in total if r["contender"] == name}
        cells = [f"{r['ratio']:.2f}x  {r['encode_gbps']:5.2f} / {r['decode_gbps']:5.2f}" for r in here.values()]
        error = max(r["error_over_bound"] for r in here.values())
        kept = error_text(error) if here[bounds[0]]["bounded"] else "no bound"
        table.add_row(name, *cells, kept, style="bold" if name == OURS else "")
    return table


def error_text(error: float) -> str:
    """Enough digits to tell an error that is the bound from one that is above it."""
    return f"{error:.2f}" if error <= 1 else f"{error:.8f}".rstrip("0") + " !"


def group_tables(rows: list[Row]) -> Iterable[Table]:
    """A table a bound: ratios, a line a contender, a column a group."""
    groups = list(dict.fromkeys(r["group"] for r in rows))
    for bound in sorted({r["bound"] for r in rows}):
        table = Table("ratio", *groups, title=f"by data, bound {bound:.0%} of range", title_justify="left")
        for name in dict.fromkeys(r["contender"] for r in rows):
            here = {r["group"]: r["ratio"] for r in rows if (r["contender"], r["bound"]) == (name, bound)}
            table.add_row(name, *(f"{here[group]:.2f}" for group in groups), style="bold" if name == OURS else "")
        yield table


def other_lines(done: Row) -> Iterable[str]:
    """What the bars do not show, a line each."""
    for r in done["bitpack"]:
        speeds = f"encode {r['encode_of_copy']:.2f}, decode {r['decode_of_copy']:.2f} of a copy"
        yield f"bitpack, {r['group']}, bound {r['bound']:.0%}: {r['ratio']:.2f}x, {speeds} at {r['copy_gbps']:.1f} GB/s"
    ids = done["ids"][-1]
    yield (
        f"ids: {ids['ids']:,} in {ids['messages']:,} messages, {ids['bits_per_id']:.2f} bits each; "
        f"the gaps' entropy is {ids['entropy_per_id']:.2f}"
    )
    for r in done["memory"] or ():
        yield f"memory, {r['group']}: {r['extra_over_raw']:.2f}x the raw input, then {r['second_call_over_raw']:+.3f}x"
    if r := done["threads"]:
        speeds = f"encode {r['encode_gbps']:.2f}, decode {r['decode_gbps']:.2f} GB/s"
        yield f"{r['threads']} threads, {r['group']}: {r['ratio']:.2f}x, {speeds}"
    for kind in ("gradients", "noise"):
        worst = min((r for r in done["tables"] if r["kind"] == kind), key=lambda r: r["over_best"])
        yield (
            f"{kind}: at worst {worst['over_best']:.2f}x the best peer's ratio ({worst['best_peer']}; "
            f"{worst['group']}: {worst['table']} at {worst['bound']:.0%})"
        )
