"""Large inputs: the fast path next to a plain copy of memory, and two threads next to one."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from benchmarks.codec.data import Group
from benchmarks.codec.measure import Run, turns
from benchmarks.codec.ours import BITPACK, CHAINS, OURS, Thinwire


def measure_bitpack(group: Group, share: float, rounds: int) -> dict[str, Any]:
    """Encode and decode of the fast path, as shares of a copy's speed by the same bytes, on this core.

    Shares are medians over rounds of the quotient of two turns that met the same drift of the machine.
    """
    run = Run(Thinwire(BITPACK), group, share)
    copies = [np.empty_like(a) for a in group.arrays]

    def copy() -> None:
        for to, array in zip(copies, group.arrays, strict=True):
            np.copyto(to, array)

    copy_s, encode_s, decode_s = turns([copy, run.encode, run.decode], rounds, 0)
    return _base(group, share, run) | {
        "chain": CHAINS[BITPACK],
        "copy_gbps": group.raw_bytes / statistics.median(copy_s) / 1e9,
        "encode_of_copy": ratio(copy_s, encode_s),
        "decode_of_copy": ratio(copy_s, decode_s),
    }


def measure_threads(group: Group, share: float, rounds: int, threads: int) -> dict[str, Any]:
    """Speedup of the chosen chain by `threads` threads over one."""
    one, many = Run(Thinwire(OURS), group, share), Run(Thinwire(OURS, threads), group, share)
    works = [one.encode, many.encode, one.decode, many.decode]
    one_encode, many_encode, one_decode, many_decode = turns(works, rounds, 0)
    return _base(group, share, many) | {
        "chain": CHAINS[OURS],
        "threads": threads,
        "encode_speedup": ratio(one_encode, many_encode),
        "decode_speedup": ratio(one_decode, many_decode),
        "encode_gbps": group.raw_bytes / statistics.median(many_encode) / 1e9,
        "decode_gbps": group.raw_bytes / statistics.median(many_decode) / 1e9,
    }


def ratio(first: list[float], second: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def _base(group: Group, share: float, run: Run) -> dict[str, Any]:
    return {
        "group": group.name,
        "bound": share,
        "raw_bytes": group.raw_bytes,
        "ratio": group.raw_bytes / run.size(),
        "error_over_bound": run.error(),
    }
