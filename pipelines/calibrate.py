"""Measure what the cost model cannot count: the link, steps at two batch sizes, and what each chain of the codec does.

Called on all ranks of a cluster at once, through the default process group.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from cache.constants import CHAINS, Constants
from cache.fit import Measured, fit
from compression.all_to_all import all_to_all_duplex
from pipelines.dataset import Dataset, module_name
from pipelines.errors import UserError
from pipelines.groups import local_groups
from pipelines.job import Job
from pipelines.measure import Steps, Windows
from pipelines.metrics import KINDS
from pipelines.model import build_model
from pipelines.options import CacheOptions
from pipelines.workload import Workload, read_workload

FIRST = "huffman"
"""The chain that steps are timed with."""
BATCHES = 24
"""Different ones; then they come again."""
SETTLE = 30
"""Steps before anything is measured: rows leave their first values, at which they are coded in other sizes."""
ROUNDS, STEPS, MESSAGES, BULK_S = 5, 4, 50, 0.1
MOST_BULK_BYTES = 200_000_000
SMALLER = 4
"""The small batch is so many times smaller."""


def calibrate(job: Job, dataset: Dataset, device: torch.device, advance: Callable[[str], None]) -> Constants:
    """Constants of this cluster and this job, the same on all ranks.

    Args:
        advance: told what was measured.

    Raises:
        UserError: the job has another exchange than can be calibrated.
    """
    if dist.get_world_size() < 2:
        raise UserError("one rank sends nothing", where="cluster.workers", fix="use 2 or more")
    if job.train.batch_size < 2 * SMALLER:
        raise UserError(f"a batch of {job.train.batch_size} is too small", where="train.batch_size", fix="use 64")
    workload = read_workload(job, dataset)
    constants = link_constants(device)
    advance("link")
    gather, overlap = memory_constants(job, dataset, workload, device)
    constants = replace(constants, lookup_gb_s=gather, overlap_us=overlap)
    advance("memory")
    batches = (max(job.train.batch_size // SMALLER, 1), job.train.batch_size)
    measured = [thin_steps(_with(job, batch, "thin", job.exchange.dense), dataset, device) for batch in batches]
    advance("thin exchange")
    local = [local_ms(_with(job, batch, "none", "none"), dataset, device) for batch in batches]
    advance("local exchange")
    ranks = dist.get_world_size()
    return fit(
        constants,
        workload.tables,
        workload.owners(ranks),
        workload.setting(ranks),
        measured[0],
        measured[1],
        (local[0], local[1]),
    )


def _with(job: Job, batch: int, codec: Any, dense: Any) -> Job:
    exchange = job.exchange.model_copy(update={"codec": codec, "dense": dense, "chain": FIRST, "tables": {}})
    return replace(
        job, cache=CacheOptions(), train=job.train.model_copy(update={"batch_size": batch}), exchange=exchange
    )


def thin_steps(job: Job, dataset: Dataset, device: torch.device) -> dict[str, Measured]:
    """By chain, `FIRST` first."""
    from compression.exchange import use_chain

    steps = Steps(job, dataset, device, BATCHES)
    for _ in range(SETTLE):
        steps.step()
    # Chains take turns: what they code changes from step to step.
    rounds: dict[str, list[dict[str, Any]]] = {chain: [] for chain in (FIRST, *(c for c in CHAINS if c != FIRST))}
    for _ in range(ROUNDS):
        for chain, results in rounds.items():
            use_chain(steps.trainable.model, chain)
            results.append(steps.measure(Windows(0, 1, STEPS if chain == FIRST else 2)))
    names = {module_name(table.name): table.name for table in dataset.manifest.tables}
    found = {chain: _mean(job.train.batch_size, results, names) for chain, results in rounds.items()}
    del steps
    gc.collect()
    return found


def _mean(batch: int, results: list[dict[str, Any]], names: dict[str, str]) -> Measured:
    """Of some rounds; the step is their median."""
    tables: dict[str, dict[str, Any]] = {}
    for row in (row for result in results for row in result["tables"]):
        into = tables.setdefault(row["table"], {"table": names[row["table"]], "path": row["path"]})
        for key, value in row.items():
            if isinstance(value, float):
                into[key] = into.get(key, 0.0) + value / len(results)
    wire = {kind: statistics.fmean(result["wire_bytes"][kind] for result in results) for kind in KINDS}
    return Measured(
        batch=batch,
        step_ms=statistics.median(result["step_ms"] for result in results),
        tables=list(tables.values()),
        ids_bytes=wire["ids"] + wire["sizes"],
        dense_bytes=wire["dense"],
    )


def local_ms(job: Job, dataset: Dataset, device: torch.device) -> float:
    """A step whose communication is free."""
    steps = Steps(job, dataset, device, BATCHES, local_groups())
    found = float(steps.measure(Windows(5, ROUNDS, STEPS))["step_ms"])
    del steps
    gc.collect()
    return found


def link_constants(device: torch.device) -> Constants:
    """Latency and CPU time of small messages in a ring, goodput of an all-to-all that takes about `BULK_S`."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    small, other = torch.zeros(64, dtype=torch.uint8, device=device), torch.zeros(64, dtype=torch.uint8, device=device)

    def ring() -> None:
        for _ in range(MESSAGES):
            work = dist.irecv(other, (me - 1) % ranks)
            dist.send(small, (me + 1) % ranks)
            assert work is not None
            work.wait()

    cpu = time.process_time()
    seconds = _median(ring, device) / MESSAGES
    cpu = (time.process_time() - cpu) / (MESSAGES * (ROUNDS + 1))
    # A rate first from a small message, then from one that takes long enough.
    count = int(1e6 / _worst(_bulk_s(int(1e6), device), device) * BULK_S)
    count = min(max(count, 100_000), MOST_BULK_BYTES)
    rate = count / _worst(_bulk_s(count, device), device)
    return Constants(
        latency_us=1e6 * _worst(seconds, device), message_us=1e6 * _worst(cpu, device), goodput_mbit=8e-6 * rate
    )


def _worst(value: float, device: torch.device) -> float:
    """The largest of all ranks."""
    found = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


def _bulk_s(count: int, device: torch.device) -> float:
    """Seconds in which each rank sends so many bytes to the others in all, and gets as many."""
    ranks = dist.get_world_size()
    each = max(count // (ranks - 1), 1)
    source = torch.ones(ranks * each, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    world = dist.group.WORLD
    assert world is not None
    if dist.get_backend() == "gloo":
        return _median(lambda: all_to_all_duplex(target, source, None, None, world).wait(), device)
    return _median(lambda: dist.all_to_all_single(target, source), device)


def _median(call: Callable[[], object], device: torch.device) -> float:
    """Seconds; the first call is left out."""
    times = []
    for _ in range(ROUNDS + 1):
        dist.barrier()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def memory_constants(job: Job, dataset: Dataset, workload: Workload, device: torch.device) -> tuple[float, float]:
    """GB/s of gathered rows, and microseconds of a sample in the bottom MLP's backward pass; on all ranks at once, as
    in a step."""
    dim = job.model.embedding_dim
    rows = 1 << 18
    table = torch.zeros(rows, dim, device=device)
    ids = torch.randint(0, rows, (1 << 16,), device=device)
    gather = _worst(_median(lambda: table[ids].sum(), device), device)
    dense = build_model(job.model, dataset, seed=0, device=torch.device("cpu")).model.dense_arch.to(device)
    columns = torch.zeros(workload.batch, len(dataset.manifest.dense), device=device)

    def both() -> None:
        dense(columns).sum().backward()

    def forward() -> None:
        with torch.no_grad():
            dense(columns)

    backward = -_worst(min(_median(forward, device) - _median(both, device), 0.0), device)
    return 4e-9 * ids.numel() * dim / gather, 1e6 * backward / workload.batch
