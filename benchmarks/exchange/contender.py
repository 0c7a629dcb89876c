"""One way of exchanging embeddings: a model of its own that takes steps, and what they cost."""

from __future__ import annotations

import contextlib
import itertools
import re
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function
from torchrec.datasets.utils import Batch

from pipelines.metrics import EXCHANGE, KINDS
from pipelines.trainable import Trainable

PHASES = ("input dist", "lookup", "output dist", "dense forward", "backward", "gradients", "optimiser", "rest")
# Profiler ranges that TorchRec opens, by the phase that they belong to. Forward and backward hold others of them.
_RANGES = [
    (r"## (start|wait)_sparse_data_dist", "input dist"),
    (r"\[lookup\]", "lookup"),
    (r"\[output_dist(_wait)?\]", "output dist"),
    (r"## forward", "forward"),
    (r"## backward", "backward"),
    (r"autograd::engine::evaluate_function: (All2All_Pooled_(Wait|Req)|_Send|_Receive)Backward", "gradients"),
    (r"## (optimizer|zero_grad)", "optimiser"),
    (r"steps$", "all"),
]
QUIET_S = 0.05
"""For gloo's threads to end their records of a collective that has ended."""


@dataclass
class Window:
    """Some steps in a row, seen by all ranks together."""

    step_ms: float
    """Of the slowest rank."""
    wire: list[float]
    """Bytes a rank and step by kind, mean over ranks."""
    busiest: float
    """Bytes of the exchange that the rank which sends most sends in a step, over the mean of all ranks."""


@dataclass
class Contender:
    """A model that takes steps over the same batches again and again, in the order of all others."""

    name: str
    trainable: Trainable
    batches: list[Batch]
    windows: list[Window] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Of the first steps, mean over ranks."""
    steps: int = 0
    """In a window."""
    peak_mb: float = 0.0
    """Largest memory of a rank during its windows."""
    growth_mb: float = 0.0
    """Largest growth of a rank's memory within a window."""

    def __post_init__(self) -> None:
        if (hot := self.trainable.hot) is not None:
            self.batches = [hot.splitter(batch) for batch in self.batches]
        self._feed: Iterator[Batch] = itertools.cycle(self.batches)

    def step(self) -> torch.Tensor:
        loss, _, _ = self.trainable.pipeline.progress(self._feed)
        return loss.detach()

    def warm_up(self, steps: int) -> None:
        """Take the first steps, whose losses are kept: another contender of the same numbers must have the same."""
        for _ in range(steps):
            loss = self.step().double().reshape(1)
            dist.all_reduce(loss)
            self.losses.append(float(loss) / dist.get_world_size())

    def measure(self, steps: int) -> Window:
        """Time `steps` steps after one that is not timed: the input dist of its batch was sent long ago."""
        device = self.batches[0].labels.device
        self.step()
        dist.barrier()
        self.trainable.groups.wire.take()
        before = start_peak()
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        if loss.is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        peak = peak_mb()
        worst = torch.tensor([seconds, peak, peak - before], dtype=torch.float64, device=device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        wire = self.trainable.groups.wire.take().to(device)
        most = wire[: len(EXCHANGE)].sum()
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        dist.all_reduce(wire)
        mean = float(wire[: len(EXCHANGE)].sum()) / dist.get_world_size()
        self.peak_mb, self.growth_mb = max(self.peak_mb, float(worst[1])), max(self.growth_mb, float(worst[2]))
        scale = steps * dist.get_world_size()
        busiest = float(most) / mean if mean else 1.0
        return Window(1000 * float(worst[0]) / steps, [count / scale for count in wire.tolist()], busiest)

    def take_turn(self) -> None:
        self.windows.append(self.measure(self.steps))

    def phases(self, steps: int) -> dict[str, float]:
        """Milliseconds a step in each of `PHASES`, mean over ranks, from steps under torch's profiler, which slows them
        a little. The backward pass holds the tables' update and the dense all-reduce; gradients are what waits for the
        all-to-all and unpacks it."""
        if self.batches[0].labels.is_cuda:
            return dict.fromkeys(PHASES, 0.0)  # the ranges would show how long launches take, not kernels
        taken = 0
        feed = itertools.islice(self._feed, steps)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            with record_function("steps"), contextlib.suppress(StopIteration):
                while True:
                    self.trainable.pipeline.progress(feed)
                    taken += 1
            # Nothing may be on its way when the profiler stops: gloo's threads would write into its freed records.
            dist.barrier()
            time.sleep(QUIET_S)
        found = dict.fromkeys([phase for _, phase in _RANGES], 0.0)
        for event in profiler.key_averages():
            for pattern, phase in _RANGES:
                if re.match(pattern, event.key):
                    found[phase] += event.cpu_time_total / 1000
        found = {phase: ms / taken for phase, ms in found.items()}
        found["dense forward"] = found.pop("forward") - found["lookup"] - found["output dist"]
        found["backward"] -= found["gradients"]
        found["rest"] = found.pop("all") - sum(found.values())
        # Batches that were in the pipeline before had their input dist earlier.
        found["input dist"] *= taken / steps
        mean = torch.tensor([found[p] for p in PHASES], device=self.batches[0].labels.device)
        dist.all_reduce(mean)
        return dict(zip(PHASES, (mean / dist.get_world_size()).tolist(), strict=True))


def all_to_all_ms(phases: dict[str, float]) -> float:
    """What of a step's phases waits for all-to-all, packing included."""
    return phases["input dist"] + phases["output dist"] + phases["gradients"]


def wire_kb(windows: list[Window]) -> dict[str, float]:
    """Mean KB a rank and step by kind."""
    return {k: sum(w.wire[i] for w in windows) / len(windows) / 1000 for i, k in enumerate(KINDS)}


def start_peak() -> float:
    """Begin to look for the peak; MB in use now."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 1e6
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident size so far
    except OSError:
        return 0.0
    return _status("VmRSS")


def peak_mb() -> float:
    """Since `start_peak`: MB of the GPU, else of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return _status("VmHWM")


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
