"""The best of a search on fresh seeds: the luckiest of many trials looks better than it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.compare_result import interval, paired
from app.config import RunConfig
from app.tune_result import Trial, read_outcome
from app.tune_space import config_of
from app.tune_trial import Search, train_once
from app.tune_worker import Baseline

MOST = 8
"""Candidates that are tried."""
CONFIRM = "confirm-"
"""Begins the names of these runs."""


@dataclass(frozen=True)
class Confirmed:
    """A trial trained again with seeds that the search has not used."""

    trial: Trial
    auc_delta: dict[str, Any]
    """Mean and 95 % interval over the fresh seeds."""

    def within(self, max_auc_drop: float) -> bool:
        """Whether it loses no more AUC than allowed, by the mean."""
        return float(self.auc_delta["mean"]) >= -max_auc_drop

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {"trial": self.trial.name, "auc_delta": self.auc_delta}


def confirm(
    search: Search, trials: Sequence[Trial], seeds: Sequence[int], max_auc_drop: float, baseline: RunConfig
) -> list[Confirmed]:
    """Train the fastest trials that the search found within the limit with fresh seeds, one after the other, until one
    is still within it, or MOST have been tried. What was done before a kill is not done again.

    Args:
        trials: of the search, valid ones.
        seeds: fresh ones.
        baseline: configuration of trial 0.

    Returns:
        What was tried, in this order; the last one is within the limit if any is.
    """
    within = [trial for trial in trials if trial.auc_delta >= -max_auc_drop and trial.point]
    found: list[Confirmed] = []
    if not within:
        return found
    # No early stop: all seeds count.
    fresh = replace(search, seeds=tuple(seeds), stop_below=-math.inf)
    base = Baseline.of(_outcome(f"{CONFIRM}baseline", baseline, replace(fresh, baseline=None)))
    for trial in sorted(within, key=lambda t: -t.speedup)[:MOST]:
        config = config_of(trial.point or {}, search.base, search.curves, search.steps)
        name = f"{CONFIRM}{trial.name.removeprefix('trial-')}"
        outcome = _outcome(name, config, replace(fresh, baseline=base))
        deltas = [-1.0] if outcome["diverged"] else outcome["auc_deltas"]
        one = Confirmed(trial, paired([0.0] * len(deltas), deltas))
        found.append(one)
        search.board.say.remote(f"{trial.name} on {len(deltas)} fresh seeds: AUC {interval(one.auc_delta)}")
        if one.within(max_auc_drop):
            break
    return found


def _outcome(name: str, config: RunConfig, search: Search) -> dict[str, Any]:
    return read_outcome(Path(search.folder) / name) or train_once(name, config, search, [])
