"""Bits that the codec spends on sorted distinct ids, next to the entropy of their gaps.

The gaps of a message are id[0] + 1, id[1] - id[0], and so on: what is left to send once order and distinctness are
used. Their entropy is that of a code that knows how frequent each gap is in this table, pooled over all its messages:
the mean of -log2(frequency). One message alone would make it look smaller than it is, for most gaps of a large table
occur once in it; pooled over many it is still biased low, which is to our disadvantage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.codec.data import Array
from compression import decode_ids, encode_ids


def measure_ids(file: Path) -> list[dict[str, Any]]:
    """A row for each table of "ids" of `capture_batches`, and one, "all", for all of them.

    Raises:
        RuntimeError: ids did not come back as they were.
    """
    with np.load(file) as arrays:
        names = [key.partition("/")[2] for key in arrays if key.startswith("ids/")]
        found = [_measure(name, arrays[f"ids/{name}"], arrays[f"counts/{name}"]) for name in names]
    sums = {key: sum(row[key] for row in found) for key in ("messages", "ids", "bits", "entropy_bits")}
    return [_with_quotients(row) for row in (*found, {"table": "all", **sums})]


def _measure(name: str, ids: Array, counts: Array) -> dict[str, Any]:
    messages = np.split(ids, np.cumsum(counts)[:-1])
    size = 0
    for message in messages:
        payload = encode_ids(message)
        size += payload.nbytes
        if not np.array_equal(decode_ids(payload), message):
            raise RuntimeError(f"ids of table {name} did not come back as they were")
    gaps = np.concatenate([np.diff(message, prepend=-1) for message in messages])
    return {
        "table": name,
        "messages": len(messages),
        "ids": len(ids),
        "bits": 8 * size,
        "entropy_bits": pooled_entropy(gaps) * len(gaps),
    }


def pooled_entropy(gaps: Array) -> float:
    """Bits a gap, by the frequencies of these gaps."""
    _, counts = np.unique(gaps, return_counts=True)
    return float(-(counts * np.log2(counts / counts.sum())).sum() / counts.sum())


def _with_quotients(row: dict[str, Any]) -> dict[str, Any]:
    bits, entropy = row["bits"] / row["ids"], row["entropy_bits"] / row["ids"]
    return {**row, "bits_per_id": bits, "entropy_per_id": entropy, "over_entropy": bits / entropy if entropy else None}
