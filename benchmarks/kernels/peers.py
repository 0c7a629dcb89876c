"""nvCOMP on the same quantised input, where its wheel (nvidia-nvcomp) is installed."""

from __future__ import annotations

from typing import Any

import torch

ALGORITHMS = ("ANS", "Bitcomp", "Cascaded", "LZ4")


def nvcomp_rows(tables: list[torch.Tensor], bound: float, rounds: int) -> list[dict[str, Any]]:
    """Ratio and throughput, in raw float32 bytes, of codes of a byte; an empty list without nvCOMP.

    Quantising is not among what is timed: it is nvCOMP's best case.
    """
    try:
        import cupy
        from nvidia import nvcomp
    except ImportError:
        return []
    from benchmarks.kernels.measure import timed

    raw = sum(table.nbytes for table in tables)
    step = 2 * bound * (1 - 2.0**-14)
    codes = torch.cat([(table / step).round().clamp(-127, 127).to(torch.int8).reshape(-1) for table in tables])
    given = nvcomp.as_array(cupy.from_dlpack(codes))
    rows = []
    for algorithm in ALGORITHMS:
        codec = nvcomp.Codec(algorithm=algorithm)
        packed = codec.encode(given)
        back = torch.from_dlpack(cupy.asarray(codec.decode(packed))).view(torch.int8)
        assert torch.equal(back.reshape(-1), codes), f"nvCOMP {algorithm} did not give back what it got"
        encode, decode = _seconds(timed, codec, given, packed, rounds)
        rows.append({
            "peer": f"nvCOMP {algorithm}", "ratio": raw / packed.buffer_size,
            "encode_gb_per_s": raw / encode / 1e9, "decode_gb_per_s": raw / decode / 1e9,
        })  # fmt: skip
    return rows


def _seconds(timed: Any, codec: Any, given: Any, packed: Any, rounds: int) -> tuple[float, float]:
    return timed(lambda: codec.encode(given), rounds), timed(lambda: codec.decode(packed), rounds)
