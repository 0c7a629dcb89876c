"""What the link gives: goodput of send and receive, all-to-all by both schedules, and all-reduce."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from compression.all_to_all import all_to_all_duplex

REPEATS = 5


def measure(bits_per_second: float, seconds: float, device: torch.device) -> dict[str, float]:
    """Median Gbit/s that a rank sends, by pattern, of messages that take about `seconds` at the link's rate.

    `send/recv` is one pair of ranks, one way. An all-reduce sends 2 (W - 1) / W of its tensor.
    """
    ranks, me = dist.get_world_size(), dist.get_rank()
    count = int(min(bits_per_second, 2e9) * seconds / 32)
    count -= count % ranks
    mine, theirs = torch.ones(count, device=device), torch.empty(count, device=device)
    sent = 32 * count * (ranks - 1) / ranks
    world = dist.group.WORLD
    assert world is not None

    def pair() -> None:
        if me == 0:
            dist.send(mine, 1)
        elif me == 1:
            dist.recv(theirs, 0)

    patterns: dict[str, tuple[Callable[[], object], float]] = {
        "send/recv": (pair, 32.0 * count),
        "all-to-all, TorchRec": (lambda: dist.all_to_all_single(theirs, mine), sent),
        "all-to-all, duplex": (lambda: all_to_all_duplex(theirs, mine, None, None, world).wait(), sent),
        "all-reduce": (lambda: dist.all_reduce(theirs), 2 * sent),
    }
    if dist.get_backend() != "gloo":
        del patterns["all-to-all, duplex"]
    return {name: bits / _seconds(call, device) / 1e9 for name, (call, bits) in patterns.items()}


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Median over repeats of the slowest rank's time, the first left out."""
    times = []
    for _ in range(REPEATS + 1):
        dist.barrier()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        worst = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        times.append(float(worst))
    return statistics.median(times[1:])
