"""Ratio, throughput and error of all contenders on one group of tables, on one core."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.codec.data import Group
from benchmarks.codec.peers import Contender

BOUNDS = (0.01, 0.03, 0.05)
"""Shares of each table's value range."""
WARM_UP = 3
"""Calls before anything is timed."""


@contextmanager
def one_core() -> Iterator[None]:
    """Hold this thread, and those that it starts, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def turns(works: list[Callable[[], Any]], rounds: int, least_s: float) -> list[list[float]]:
    """Seconds a call of each work, a turn a round: all works take turns, each round begun by another one.

    A turn is one call that is not timed, for the caches, and then calls for at least `least_s` seconds.
    """
    seconds: list[list[float]] = [[] for _ in works]
    for start in range(rounds):
        for i in range(len(works)):
            which = (start + i) % len(works)
            work = works[which]
            work()
            calls, begin = 0, time.perf_counter()
            while (spent := time.perf_counter() - begin) < least_s or not calls:
                work()
                calls += 1
            seconds[which].append(spent / calls)
    return seconds


class Run:
    """One contender on one group, warmed up."""

    def __init__(self, contender: Contender, group: Group, share: float) -> None:
        self.contender = contender
        self._arrays, self._bounds = group.arrays, group.bounds(share)
        self._outs = [np.empty_like(a) for a in self._arrays]
        for _ in range(WARM_UP):
            self.encode()
        # A message lives until the next encode.
        self._sent = [m.copy() if isinstance(m, np.ndarray) else m for m in self._messages]
        self.decode()

    def encode(self) -> None:
        self._messages = self.contender.encode(self._arrays, self._bounds)

    def decode(self) -> None:
        self.contender.decode(self._sent, self._outs)

    def size(self) -> int:
        """Bytes of the last messages, headers included."""
        return _size(self._messages)

    def error(self) -> float:
        """The largest error over its bound, in float64, of what is decoded from the last messages."""
        for out in self._outs:
            out.fill(np.nan)
        self.contender.decode(self._messages, self._outs)
        pairs = zip(self._arrays, self._outs, self._bounds, strict=True)
        return float(np.max([np.abs(a.astype(np.float64) - o).max() / b for a, o, b in pairs]))


def measure(
    contenders: list[Contender], group: Group, share: float, rounds: int, least_s: float
) -> list[dict[str, Any]]:
    """A row for each contender: bounds are `share` of each table's range, computed before anything is timed."""
    runs = [Run(c, group, share) for c in contenders]
    seconds = turns([work for run in runs for work in (run.encode, run.decode)], rounds, least_s)
    rows = []
    for run, encode_s, decode_s in zip(runs, seconds[::2], seconds[1::2], strict=True):
        size, error = run.size(), run.error()
        rows.append({
            "group": group.name,
            "kind": group.kind,
            "contender": run.contender.name,
            "bounded": run.contender.bounded,
            "bound": share,
            "raw_bytes": group.raw_bytes,
            "payload_bytes": size,
            "ratio": group.raw_bytes / size,
            "encode_gbps": group.raw_bytes / statistics.median(encode_s) / 1e9,
            "decode_gbps": group.raw_bytes / statistics.median(decode_s) / 1e9,
            "encode_s": encode_s,
            "decode_s": decode_s,
            "error_over_bound": error,
            "kept_bound": error <= 1.0,
        })  # fmt: skip
    return rows


def by_table(ours: Callable[[], Contender], peers: list[Contender], group: Group, share: float) -> list[dict[str, Any]]:
    """A row for each table, encoded alone: our ratio, by a new codec each, and that of this table's best peer."""
    rows = []
    for (name, array), bound in zip(group.tables.items(), group.bounds(share), strict=True):
        sizes = {p.name: _size(p.encode([array], [bound])) for p in peers if p.bounded}
        best = min(sizes, key=lambda peer: sizes[peer])
        codec = ours()
        for _ in range(WARM_UP):
            own = _size(codec.encode([array], [bound]))
        rows.append({
            "group": group.name,
            "kind": group.kind,
            "table": name,
            "bound": share,
            "ratio": array.nbytes / own,
            "best_peer": best,
            "best_ratio": array.nbytes / sizes[best],
            "over_best": sizes[best] / own,
        })  # fmt: skip
    return rows


def _size(messages: list[Any]) -> int:
    return sum(memoryview(message).nbytes for message in messages)
