"""`thinwire train`: from options to a configuration, and the result for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from app.config import RunConfig, load_config, parse_yaml
from app.storage import CONFIG, read_text, resolve_storage
from pipelines.errors import UserError

if TYPE_CHECKING:
    from app.trainer import TrainResult


def configure(
    preset: str | None,
    file: Path | None,
    assignments: tuple[str, ...],
    data: str | None,
    name: str | None,
    resume: str | None,
) -> RunConfig:
    """The configuration of a new run, or that of the run to resume with `assignments` on top.

    Raises:
        UserError: options that contradict each other, or a wrong key or value.
    """
    overrides: dict[str, dict[str, Any]] = {}
    if data is not None:
        # Naming data means not wanting a preset's made-up ones.
        overrides["data"] = {"path": data, "synthetic": None}
    if resume is None:
        if name:
            overrides["run"] = {"name": name}
        return load_config(preset, file, assignments, overrides=overrides)
    if preset or file or name:
        raise UserError(
            "a resumed run has its own configuration", where="--resume", fix="change single keys with --set"
        )
    storage, _, run = resolve_storage(resume).rstrip("/").rpartition("/")
    file_of_run = f"{storage}/{run}/{CONFIG}"
    saved = parse_yaml(read_text(file_of_run), file_of_run)
    overrides["run"] = {"name": run, "storage": storage}
    return load_config(assignments=assignments, base=saved, overrides=overrides)


def print_result(result: TrainResult, console: Console) -> None:
    """The end of a run, a line a fact."""
    metrics = result.metrics
    lines: list[tuple[str, str]] = []
    if "eval/auc" in metrics:
        best = f"   (best possible on these synthetic data: {result.best_auc:.4f})" if result.best_auc else ""
        lines += [("AUC", f"{metrics['eval/auc']:.4f}{best}"), ("NE", f"{metrics['eval/ne']:.4f}")]
    lines.append(("data", "SYNTHETIC" if result.synthetic else "real"))
    lines.append(("steps", f"{metrics.get('step', 0):,.0f}"))
    if "train/samples_per_s" in metrics:
        speed, step_ms = metrics["train/samples_per_s"], metrics["time/step_ms"]
        lines.append(("speed", f"{speed:,.0f} samples/s, {step_ms:.1f} ms/step at the end"))
    memory = metrics.get("memory/peak_rss_mb", 0.0)
    lines.append(("time", f"{result.seconds:.0f} s in all; rank 0 took {memory:,.0f} MB of memory at most"))
    lines.append(("checkpoint", result.checkpoint))
    if result.export:
        lines.append(("model", f"{result.export}/model.pt, score.py"))
    lines.append(("dashboard", result.dashboard))
    for name, value in lines:
        # Paths and commands must survive being copied: no folding.
        console.print(f"{name:<11}{value}", highlight=False, markup=False, soft_wrap=True)
