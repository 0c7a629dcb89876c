"""`python -m benchmarks.kernels`: the measurement of `thinwire bench kernels` with torch, CuPy, NumPy and the folder
`compression` (which needs Numba) alone."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.kernels.measure import run
from benchmarks.kernels.result import lines
from compression.gpu import GpuUnavailableError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller messages, fewer rounds")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    try:
        done = run(quick=options.quick)
    except GpuUnavailableError as error:
        print(f"no GPU to measure: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(done)))
    if options.json:
        options.json.write_text(json.dumps(done, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
