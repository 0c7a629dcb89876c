"""`thinwire prepare` and `thinwire synth`."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from app.progress import data_progress
from pipelines.dataset import Manifest
from pipelines.errors import UserError
from pipelines.prepare import PrepareOptions, prepare
from pipelines.synthetic import SynthOptions, write_synthetic


def run_prepare(
    sources: tuple[Path, ...], file_format: str, out: Path, days: str | None, workers: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Prepare, print the summary, and return the figures for `--json`."""
    start = time.monotonic()
    settings = PrepareOptions(days=parse_days(days) if days else None, **options)
    with data_progress(Console(stderr=True)) as progress:
        manifest = prepare(
            list(sources), format=file_format, out=out, options=settings, workers=workers, progress=progress
        )
    return _finished(manifest, out, time.monotonic() - start)


def run_synth(out: Path, overwrite: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Generate, print the summary, and return the figures for `--json`."""
    start = time.monotonic()
    exponents = list(options.pop("exponents"))
    if len(exponents) > 0:
        options["exponents"] = exponents[0] if len(exponents) == 1 else exponents
    options["multi_hot"] = dict(_table_and_mean(text) for text in options["multi_hot"])
    with data_progress(Console(stderr=True)) as progress:
        advance = partial(progress, "synthetic data")
        manifest = write_synthetic(out, SynthOptions(**options), overwrite=overwrite, progress=advance)
    return _finished(manifest, out, time.monotonic() - start)


def parse_days(text: str) -> list[int]:
    """Day numbers of `0-22,23`.

    Raises:
        UserError: the text is something else.
    """
    days: list[int] = []
    try:
        for item in text.split(","):
            first, _, last = item.partition("-")
            days.extend(range(int(first), int(last or first) + 1))
    except ValueError:
        raise UserError(f"'{text}' names no days", where="--days", fix="for example --days 0-22,23") from None
    return days


def _table_and_mean(text: str) -> tuple[str, float]:
    table, _, mean = text.partition("=")
    try:
        return table, float(mean)
    except ValueError:
        raise UserError(f"'{text}' is not TABLE=MEAN", where="--multi-hot", fix="for example C3=20") from None


def _finished(manifest: Manifest, out: Path, seconds: float) -> dict[str, Any]:
    print((out / "summary.txt").read_text())
    next_step = f": thinwire train --data {out}" if "train" in manifest.splits else ""
    print(f"{out} is ready after {seconds:.1f} s{next_step}")
    return {"out": str(out), "seconds": seconds, "manifest": manifest.model_dump()}
