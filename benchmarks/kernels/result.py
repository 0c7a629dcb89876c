"""What was measured as lines and as claims with their targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.bars import bar

SPEED = {"bitpack": (800.0, 1000.0), "huffman": (250.0, 350.0)}
"""GB/s of raw input to encode and to decode, on the model's message."""
OVERHEAD_US = 150.0
"""Encoding and decoding a message of the demo model, at most."""
OVER_PEERS = 1.5
"""Ratio over that of the best of nvCOMP's chains."""


def bars(done: dict[str, Any]) -> list[dict[str, Any]]:
    """Claims of a run; those of what was not measured are left out."""
    model = {row["chain"]: row for row in done["rows"] if row["message"] == "model"}
    found = [
        bar(f"{chain}: {side}", model[chain][f"{side}_gb_per_s"], target, "GB/s")
        for chain, targets in SPEED.items()
        for side, target in zip(("encode", "decode"), targets, strict=True)
    ]
    demo = min(row["encode_us"] + row["decode_us"] for row in done["rows"] if row["message"] == "demo")
    found.append(bar("demo model: encode and decode, at most", demo, OVERHEAD_US, "us", demo <= OVERHEAD_US))
    if done["peers"]:
        best = max(peer["ratio"] for peer in done["peers"])
        ratio = max(row["ratio"] for row in model.values())
        found.append(bar("ratio over nvCOMP's best", ratio / best, OVER_PEERS, "x"))
    return found


def lines(done: dict[str, Any]) -> Iterator[str]:
    """For a terminal."""
    device = done["device"]
    yield f"{device['name']} ({device['arch']}): a copy moves {device['copy_gb_per_s']:.0f} GB/s"
    yield f"{done['checked']} messages have the bytes of the CPU codec, both ways"
    for row in [*done["rows"], *done["peers"]]:
        name = row.get("peer") or f"{row['chain']} {row['message']}"
        speed = f"encode {row['encode_gb_per_s']:.0f} GB/s, decode {row['decode_gb_per_s']:.0f} GB/s"
        yield f"{name}: {row['ratio']:.1f}x, {speed}"
        for side in ("encode", "decode"):
            times = row.get(f"{side}_stages_us", {})
            if times:
                yield f"  {side}: " + ", ".join(f"{kernel} {us:.1f} us" for kernel, us in times.items())
    for missing in done["not_measured"]:
        yield f"not measured: {missing}"
    for one in done["bars"]:
        yield f"{'ok' if one['ok'] else 'NO'}  {one['name']}: {one['value']:.1f} {one['unit']} ({one['target']:g})"
