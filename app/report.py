"""`thinwire report`: a search as one HTML page, from its MLflow runs."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.tracked_run import EXCHANGE_TABLES
from app.tracking_queue import RUN
from app.tracking_store import connect, normalise_uri
from app.tune import BEST, RESULT
from app.tune_confirm import CONFIRM
from app.tune_trial import BASELINE
from pipelines.errors import UserError
from pipelines.metrics import KINDS

os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
SERIES = (
    "exchange/rows_ratio",
    "exchange/gradients_ratio",
    "bounds/row_multiplier",
    "bounds/gradient_multiplier",
)
MOST_CHILDREN = 1000


@dataclass(frozen=True)
class Child:
    """A trial as MLflow has it."""

    name: str
    status: str
    metrics: dict[str, float]
    wire_kb: dict[str, float]
    """The last value of a step, by kind."""


@dataclass(frozen=True)
class SearchRuns:
    """What MLflow has of a search."""

    run_id: str
    name: str
    best: str
    """Name of the best trial, or none."""
    children: list[Child]
    max_auc_drop: float
    config: str
    """best.yaml."""
    confirmed: list[dict[str, Any]] = field(default_factory=list)
    """What was tried on fresh seeds: `trial` and `auc_delta`."""
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Of the best trial, by metric: (step, value)."""
    tables: list[dict[str, Any]] = field(default_factory=list)
    """Of the best trial: what the exchange did by table."""

    @property
    def baseline(self) -> Child | None:
        return next((child for child in self.children if child.name == BASELINE), None)

    def child(self, name: str) -> Child | None:
        return next((child for child in self.children if child.name == name), None)


def find_search(folder: Path | None, uri: str | None, run_id: str | None) -> tuple[str, str]:
    """Store and run of a search, from its folder or as they are given.

    Raises:
        UserError: neither is there.
    """
    if folder is not None:
        try:
            record = json.loads((folder / RUN).read_text())
        except (OSError, ValueError) as error:
            raise UserError("no search is here", where=str(folder), fix="name the folder of a search") from error
        uri, run_id = uri or record["uri"], run_id or record["run_id"]
    if not uri or not run_id:
        raise UserError(
            "what to report is not said", where="thinwire report", fix="give a folder, or --tracking and --run"
        )
    return uri, run_id


def read_search(uri: str, run_id: str) -> SearchRuns:
    """From a tracking server or database.

    Raises:
        UserError: there is no such run, or it is no search.
    """
    from mlflow.exceptions import MlflowException

    uri = normalise_uri(uri)
    client = connect(uri)
    try:
        parent = client.get_run(run_id)
    except MlflowException as error:
        raise UserError(f"no run {run_id}", where=uri, fix="see the dashboard for its id") from error
    query = f"tags.`mlflow.parentRunId` = '{run_id}'"
    runs = client.search_runs([parent.info.experiment_id], query, max_results=MOST_CHILDREN)
    if "best_trial" not in parent.data.tags or not runs:
        raise UserError(f"run {run_id} is no finished search", where=uri, fix="give the run that thinwire tune made")
    best = parent.data.tags["best_trial"]
    series, tables, config = {}, [], ""
    for run in runs:
        if run.data.tags.get("trial") == best and run.info.status == "FINISHED":
            series = {key: _history(client, run.info.run_id, key) for key in SERIES if key in run.data.metrics}
            tables = list(csv.DictReader(io.StringIO(_artifact(client, run.info.run_id, EXCHANGE_TABLES))))
    result = json.loads(_artifact(client, run_id, RESULT) or "{}")
    if best != "none":
        config = _artifact(client, run_id, BEST)
    return SearchRuns(
        run_id=run_id,
        name=parent.data.tags.get("mlflow.runName", run_id),
        best=best,
        children=[child for child in map(_child, runs) if not child.name.startswith(CONFIRM)],
        max_auc_drop=float(result.get("max_auc_drop", 0.0)),
        config=config,
        confirmed=result.get("confirmed", []),
        series=series,
        tables=tables,
    )


def _child(run: Any) -> Child:
    metrics = dict(run.data.metrics)
    wire = {kind: metrics.get(f"wire/{kind}_kb", 0.0) for kind in KINDS}
    return Child(run.data.tags.get("trial", ""), run.info.status, metrics, wire)


def _history(client: Any, run_id: str, key: str) -> list[tuple[int, float]]:
    return sorted({point.step: point.value for point in client.get_metric_history(run_id, key)}.items())


def _artifact(client: Any, run_id: str, name: str) -> str:
    """Text of an artifact; empty if the run has none of this name."""
    if name not in [file.path for file in client.list_artifacts(run_id)]:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        return Path(client.download_artifacts(run_id, name, folder)).read_text()
