"""`thinwire bench kernels`: the codec's CUDA kernels on this machine's GPU."""

from __future__ import annotations

from typing import Any

from app.bench_command import bar_table
from app.cli_parts import wide_console
from benchmarks.kernels.measure import run
from benchmarks.kernels.result import lines
from compression.gpu import GpuUnavailableError
from pipelines.errors import UserError


def run_kernels_bench(*, quick: bool) -> dict[str, Any]:
    """Check, measure and print; `rows` and `bars` among the result.

    Raises:
        UserError: no GPU that kernels run on, or kernels that differ from the CPU codec.
    """
    try:
        done = run(quick=quick)
    except GpuUnavailableError as error:
        raise UserError(f"no GPU to measure: {error}", fix="run it on a host with a GPU; `thinwire doctor`") from error
    console = wide_console()
    for line in lines({**done, "bars": []}):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(bar_table(done["bars"]))
    return done
