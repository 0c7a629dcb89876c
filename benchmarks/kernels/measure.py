"""Throughput of the codec's kernels on one GPU: all bytes are checked against the CPU codec before they are timed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.peers import nvcomp_rows
from benchmarks.kernels.result import bars
from compression import Codec
from compression.gpu import GpuCodec, HostCodec

BOUND = 0.03
COLUMNS = 64
SIZES = [1 << power for power in range(16, 31, 2)]
"""Raw bytes of a message."""
MODEL = (26, 16384)
"""Tables and rows of the message that the targets are about."""
DEMO = (26, 500, 16)
"""Tables, rows and columns of a message of the demo model."""
CHAINS = ("bitpack", "dedup", "huffman")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def run(*, quick: bool) -> dict[str, Any]:
    """Check, measure, and give back `rows`, `bars` and what was not measured.

    Raises:
        GpuUnavailableError: there is no GPU that the kernels run on.
        AssertionError: kernels and CPU codec differ.
    """
    codec = GpuCodec()
    checked = check(codec)
    device = torch.cuda.get_device_properties(codec.device)
    rounds = 5 if quick else 20
    copy = copy_rate(codec.device, rounds)
    rows: list[dict[str, Any]] = []
    for chain in CHAINS:
        for size in [size for size in SIZES if not quick or size <= 1 << 24]:
            tables = embeddings(codec.device, max(size >> 22, 1), min(size, 1 << 22) // (4 * COLUMNS), COLUMNS)
            rows.append({"message": f"{size >> 10} KiB", **_measure(codec, tables, chain, rounds)})
        tables = embeddings(codec.device, *MODEL, COLUMNS)
        rows.append({"message": "model", **_measure(codec, tables, chain, rounds)})
        rows.append({"message": "demo", **_measure(codec, embeddings(codec.device, *DEMO), chain, rounds)})
    peers = nvcomp_rows(embeddings(codec.device, *MODEL, COLUMNS), BOUND, rounds)
    done = {
        "device": {"name": device.name, "arch": f"sm_{device.major}{device.minor}", "copy_gb_per_s": copy / 1e9},
        "checked": checked,
        "rows": rows,
        "peers": peers,
        "not_measured": ["rans: no kernel", "exchange by NCCL: there is none"]
        + ([] if peers else ["nvCOMP: not installed"]),
    }
    return {**done, "bars": bars(done)}


def embeddings(device: torch.device, tables: int, rows: int, columns: int) -> list[torch.Tensor]:
    """Float32 [rows, columns] as of lookups in trained tables: correlated columns, rows by Zipf's law."""
    random = torch.Generator(device).manual_seed(0)
    found = []
    for _ in range(tables):
        distinct = max(rows // 2, 1)
        mix = torch.randn(columns, columns, generator=random, device=device) / columns**0.5
        trained = 0.1 * torch.randn(distinct, columns, generator=random, device=device) @ mix
        uniform = torch.rand(rows, generator=random, device=device)
        found.append(trained[(distinct**uniform).long().clamp(max=distinct) - 1].contiguous())
    return found


def check(codec: GpuCodec) -> int:
    """Payloads of hard tables are those of the CPU codec, and each decodes the other's. How many messages."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, (300, 7), np.uint64).astype(np.uint32).view(np.float32)
    hard = [torch.from_numpy(array) for array in (
        bits, np.zeros((1024, 4), np.float32), np.full((33, 5), -0.0, np.float32), np.full((9, 9), np.nan, np.float32),
        np.repeat(random.standard_normal((70, 16)), 20, axis=0).astype(np.float32), np.empty((0, 4), np.float32),
    )]  # fmt: skip
    host, done = HostCodec(), 0
    for dtype in DTYPES:
        for chain in CHAINS:
            for seed in (None, 7):
                tables = [table.to(dtype) for table in hard] + [
                    t.to(dtype).cpu() for t in embeddings(codec.device, 2, 3000, 64)
                ]
                held = [table.to(codec.device) for table in tables]
                payload = codec.encode(held, BOUND, chain, stochastic=seed)
                expected = host.encode(tables, BOUND, chain, stochastic=seed)
                assert torch.equal(payload.cpu(), expected), f"{chain} of {dtype} is not what the CPU codec makes"
                outs, mine = [torch.empty_like(t) for t in tables], [torch.empty_like(t) for t in held]
                Codec().decode(expected, outs)
                codec.decode(expected.to(codec.device), mine)
                for one, other in zip(outs, mine, strict=True):
                    assert one.view(torch.uint8).equal(other.cpu().view(torch.uint8)), f"{chain} of {dtype}: decoded"
                done += 1
    return done


def _measure(codec: GpuCodec, tables: list[torch.Tensor], chain: str, rounds: int) -> dict[str, Any]:
    raw = sum(table.nbytes for table in tables)
    outs = [torch.empty_like(table) for table in tables]
    payload = codec.encode(tables, BOUND, chain).clone()
    codec.decode(payload, outs)
    for table, out in zip(tables, outs, strict=True):
        assert float((table.double() - out.double()).abs().max()) <= BOUND, "over the bound"
    encode = timed(lambda: codec.encode(tables, BOUND, chain), rounds)
    decode = timed(lambda: codec.decode(payload, outs), rounds)
    return {
        "chain": chain, "raw_bytes": raw, "ratio": raw / payload.numel(), "device_bytes_held": codec.size,
        "encode_gb_per_s": raw / encode / 1e9, "decode_gb_per_s": raw / decode / 1e9,
        "encode_us": 1e6 * encode, "decode_us": 1e6 * decode,
        "encode_stages_us": stages(codec, lambda: codec.encode(tables, BOUND, chain), rounds),
        "decode_stages_us": stages(codec, lambda: codec.decode(payload, outs), rounds),
    }  # fmt: skip


def timed(call: Callable[[], Any], rounds: int) -> float:
    """Seconds of a call, the median by CUDA events, what the host adds between launches among them; after warm-up."""
    for _ in range(3):
        call()
    found = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return statistics.median(found)


def stages(codec: GpuCodec, call: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Microseconds of each kernel of a call, the median."""
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        with codec.timed_launches() as launches:
            call()
        torch.cuda.synchronize(codec.device)
        for name, start, end in launches:
            found[name].append(1e3 * start.elapsed_time(end))
    return {name: statistics.median(times) for name, times in found.items()}


def copy_rate(device: torch.device, rounds: int) -> float:
    """Bytes that a copy on the device reads and writes per second: the limit of all that goes through memory."""
    one = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    other = torch.empty_like(one)
    return 2 * one.nbytes / timed(lambda: other.copy_(one), rounds)
