"""Memory that the codec takes beside its input and output, in a process of its own.

python -m benchmarks.codec.memory MEGABYTES
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.codec import data
from benchmarks.codec.ours import OURS, Thinwire
from pipelines.errors import UserError

DIM, TABLES = 64, 4
BOUND = 0.03
LINUX = Path("/proc/self")


def measure_memory(megabytes: int) -> list[dict[str, Any]] | None:
    """Peak growth of the resident size in encode and decode, over the raw input: of rows that repeat, and of noise.

    None where the system does not let a process reset its peak.

    Raises:
        UserError: the process failed.
    """
    command = [sys.executable, "-m", "benchmarks.codec.memory", str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"measuring memory failed: {said[-1]}", where="bench codec")
    return list(json.loads(done.stdout)) or None


def _rows(megabytes: int) -> list[dict[str, Any]]:
    _compile()
    rows = megabytes * 1_000_000 // (4 * DIM)
    found = []
    for make in (lambda: data.zipf_rows(TABLES, rows // TABLES, DIM), lambda: data.noise(rows, DIM)):
        group = make()
        outs = [np.ones_like(a) for a in group.arrays]  # touched, so that they are resident
        codec, bounds, before = Thinwire(OURS), group.bounds(BOUND), _status("VmRSS")
        growth = []
        for _ in range(2):
            _reset_peak()
            codec.decode(codec.encode(group.arrays, bounds), outs)
            growth.append(_status("VmHWM") - before)
        found.append({
            "group": group.name,
            "bound": BOUND,
            "raw_bytes": group.raw_bytes,
            "extra_over_raw": growth[0] / group.raw_bytes,
            "second_call_over_raw": (growth[1] - growth[0]) / group.raw_bytes,
        })  # fmt: skip
    return found


def _compile() -> None:
    """Load all compiled functions: they are not the input's."""
    for group in (data.zipf_rows(2, 4096, DIM), data.noise(4096, DIM)):
        codec = Thinwire(OURS)
        codec.decode(codec.encode(group.arrays, group.bounds(BOUND)), [np.empty_like(a) for a in group.arrays])


def _reset_peak() -> None:
    (LINUX / "clear_refs").write_text("5")


def _status(key: str) -> int:
    """Bytes."""
    for line in (LINUX / "status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {key} in /proc/self/status")


if __name__ == "__main__":
    try:
        _reset_peak()
    except OSError:
        print([])
    else:
        print(json.dumps(_rows(int(sys.argv[1]))))
