"""What the trials of a search came to: read from their folders, and the ones that no other beats."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pipelines.errors import UserError

OUTCOME = "outcome.json"


@dataclass(frozen=True)
class Trial:
    """A trial that has ended."""

    name: str
    point: dict[str, Any] | None
    """None: the baseline."""
    why: str
    """`finished`, or why not."""
    speedup: float
    auc_delta: float
    outcome: dict[str, Any]

    @property
    def valid(self) -> bool:
        """Trained to its end, with finite numbers."""
        return self.point is not None and self.why == "finished" and math.isfinite(self.speedup + self.auc_delta)

    def record(self) -> dict[str, Any]:
        """For JSON and people."""
        return {"trial": self.name, "point": self.point, "why": self.why} | {
            key: self.outcome.get(key)
            for key in ("speedup", "auc_delta", "auc_deltas", "wire_bytes_per_step", "ratio", "step_ms", "coding_ms")
        }


def write_outcome(folder: Path, outcome: dict[str, Any]) -> None:
    """Keep what a trial came to."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / OUTCOME, outcome)


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """What a trial came to; None if it has not ended."""
    file = folder / OUTCOME
    return json.loads(file.read_text()) if file.exists() else None


def write_whole(file: Path, values: Any) -> None:
    """JSON that is there whole or not at all, whenever the process is killed."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(values, indent=1) + "\n")
    part.replace(file)


def read_trials(folder: Path) -> list[Trial]:
    """All trials of a search that have ended, in the order in which they did."""
    files = sorted(folder.glob(f"trial-*/{OUTCOME}"), key=lambda file: (file.stat().st_mtime_ns, file))
    trials = []
    for file in files:
        outcome = json.loads(file.read_text())
        speedup, delta = (float(outcome.get(key, math.nan)) for key in ("speedup", "auc_delta"))
        trials.append(Trial(outcome["trial"], outcome["point"], outcome["why"], speedup, delta, outcome))
    return trials


def valid_trials(folder: Path) -> list[Trial]:
    """Those that trained to their end.

    Raises:
        UserError: there are none.
    """
    trials = read_trials(folder)
    valid = [trial for trial in trials if trial.valid]
    if not valid:
        raise UserError(
            f"no valid trial: {len(trials)} ended without a result or diverged",
            where=str(folder),
            fix="see the runs in MLflow, and lower learning rates or bounds",
        )
    return valid


def pareto(trials: Sequence[Trial]) -> list[Trial]:
    """Those that no other is at least as good as in speed and AUC and better in one; the fastest first."""
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda t: (-t.speedup, -t.auc_delta)):
        if not front or trial.auc_delta > front[-1].auc_delta:
            front.append(trial)
    return front


def best_of(trials: Sequence[Trial], max_auc_drop: float) -> Trial | None:
    """The fastest that loses no more AUC than allowed; None if all do."""
    within = [trial for trial in trials if trial.auc_delta >= -max_auc_drop]
    return max(within, key=lambda t: (t.speedup, t.auc_delta), default=None)


def table(found: dict[str, Any]) -> Table:
    """For the terminal."""
    result = Table(
        caption=f"*: no other trial is better in both; best: the fastest that loses at most {found['max_auc_drop']:g} "
        "AUC. Speedup is by the cost law, from bytes and times measured; AUC less the baseline's, mean of the "
        "seeds",
        caption_justify="left",
    )
    for name in (
        "trial",
        "speedup",
        "AUC delta",
        "KB a step",
        "ratio",
        "bounds: row, gradient, dense",
        "tables",
        "schedule",
        "",
    ):
        result.add_column(name, justify="right" if name in ("speedup", "AUC delta", "KB a step", "ratio") else "left")
    best = (found["best"] or {}).get("trial")
    for row in sorted(found["rows"], key=lambda r: -(r["speedup"] or 0.0)):
        mark = "best" if row["trial"] == best else "*" if row["trial"] in found["pareto"] else ""
        result.add_row(*_cells(row), mark if row["why"] == "finished" else row["why"][:40])
    return result


def _cells(row: dict[str, Any]) -> list[str]:
    point = row["point"]
    numbers = [
        f"{row['speedup']:.2f}x" if row["speedup"] is not None else "",
        f"{row['auc_delta']:+.5f}" if row["auc_delta"] is not None else "",
        f"{row['wire_bytes_per_step'] / 1e3:.1f}" if row["wire_bytes_per_step"] is not None else "",
        f"{row['ratio']:.1f}" if row["ratio"] is not None else "",
    ]
    if point is None:
        return [row["trial"], *numbers, "TorchRec fp32", "", ""]
    bounds = ", ".join(f"{point[key]:.2%}" for key in ("row_bound", "gradient_bound", "dense_bound"))
    shape = point["shape"]
    schedule = shape if shape == "constant" else f"{shape} from {point['start']:.1f} over {point['phase']:.0%}"
    travel = f"{point['path']}, {point['hot_share']:.0%} hot"
    return [row["trial"], *numbers, bounds, point["tables"], f"{schedule}, {travel}"]
