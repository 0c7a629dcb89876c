"""`thinwire bench ...`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from app.cli_parts import PATH, check_json, examples, json_option, write_json


@click.group()
def bench() -> None:
    """The benchmarks behind the README's numbers."""


@bench.command("loader", **examples("thinwire bench loader --quick"))
@click.option("--data", type=PATH, metavar="FOLDER", help="Prepared data set; default: a synthetic one.")
@click.option("--source", type=PATH, metavar="FILE", help="Criteo TSV to convert; default: one made up.")
@click.option("--quick", is_flag=True, help="Smaller data, under a minute.")
@json_option
def bench_loader(data: Path | None, source: Path | None, quick: bool, json_file: Path | None) -> None:
    """Conversion in MB/s next to pandas, and loader rows/s next to what a training step needs."""
    from app.doctor import require_training_stack

    require_training_stack()
    from app.bench_command import run_loader_bench

    write_json(json_file, run_loader_bench(data, source, quick))


@bench.command("codec", **examples(
    "thinwire bench codec --quick",
    "thinwire bench codec --data dumps --json codec.json",
))  # fmt: skip
@click.option("--data", "folder", type=PATH, metavar="FOLDER", envvar="THINWIRE_EMBEDDINGS", show_envvar=True,
              help="Raw float32 dumps of embedding batches, a file a table.")  # fmt: skip
@click.option("--dim", type=click.IntRange(min=1), default=64, show_default=True, help="Columns of the dumps.")
@click.option("--batches", type=PATH, metavar="FOLDER", help="Keep the trained batches here, and use them again.")
@click.option("--quick", is_flag=True, help="Fewer batches and rounds: under a minute.")
@click.option("--threads", type=int, help="How many to hold against one.  [default: 2, if there are 2 cores]")
@click.option("--plot", type=PATH, default="codec.png", show_default=True, help="Ratio over throughput.")
@json_option
def bench_codec(json_file: Path | None, **options: Any) -> None:
    """The codec next to SZ3, ZFP, quantise + zstd and others, at the same error bounds, on one core.

    On embedding batches and gradients of the demo model as it trains, on dumps if there are any, and on noise.
    """
    from app.doctor import require_training_stack

    require_training_stack()
    from app.codec_command import run_codec_bench

    check_json(json_file)
    run_codec_bench(**options, write=lambda result: write_json(json_file, result))


@bench.command("exchange", **examples(
    "thinwire bench exchange --quick",
    "thinwire bench exchange --workers 4 --rates 100mbit,1gbit --grid 1024x16,512x64",
    "RAY_ADDRESS=auto thinwire bench exchange --workers 8 --rates none",
))  # fmt: skip
@click.option("--where", type=click.Choice(["auto", "lab", "cluster"]), default="auto", show_default=True,
              help="lab: hosts with limited links on this machine (needs root); cluster: the one at RAY_ADDRESS, or "
              "ranks on this machine without one; auto: cluster if RAY_ADDRESS is set, else lab.")  # fmt: skip
@click.option("--workers", help="Ranks, one a host; several numbers are measured one after the other.  [default: 2,4]")
@click.option("--rates", help="Link rates, both directions each; none = unshaped.  [default: "
              "50mbit,100mbit,1gbit,none; quick: 100mbit,none; cluster: none]")  # fmt: skip
@click.option("--grid", metavar="BATCHxDIM,...", help="Rows a rank and step, and embedding dimension.  [default: "
              "1024x16,1024x32; quick: 1024x16]")  # fmt: skip
@click.option("--quick", is_flag=True, help="Two ranks, fewer rates and windows: under 3 minutes.")
@click.option("--link-command", help="On a cluster: a command that sets all links, with {rate} in it.")
@click.option("--plot", type=PATH, default="exchange.png", show_default=True, help="Step time over link rate.")
@click.option("--part", is_flag=True, hidden=True)
@json_option
def bench_exchange(json_file: Path | None, **options: Any) -> None:
    """What the embedding exchange costs: TorchRec's own, with and without QComms, next to free communication.

    Windows of all contenders take turns, so that drift of the machine meets all alike.
    """
    from app.doctor import require_training_stack

    require_training_stack()
    from app.exchange_command import run_exchange_bench

    check_json(json_file)
    run_exchange_bench(**options, write=lambda result: write_json(json_file, result))


@bench.command("kernels", **examples("thinwire bench kernels --json kernels.json"))
@click.option("--quick", is_flag=True, help="Messages up to 16 MiB, fewer rounds.")
@json_option
def bench_kernels(json_file: Path | None, quick: bool) -> None:
    """The codec's CUDA kernels: same bytes as the CPU codec, then GB/s by stage and size; needs a GPU.

    Next to a copy on the device, and to nvCOMP where nvidia-nvcomp is installed.
    """
    from app.kernels_command import run_kernels_bench

    check_json(json_file)
    write_json(json_file, run_kernels_bench(quick=quick))
