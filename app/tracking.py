"""MLflow runs: opened and closed by the driver, fed by rank 0 through a queue, complete on disk in any case.

    handle = open_run(TrackingSettings(uri=""), folder=run_folder, params=..., config_yaml=..., tags=...)
    writer = MetricWriter(handle)          # in the worker of rank 0; `handle` is plain strings
    writer.log(step, {"train/loss": 0.4})
    print(writer.close())
    finish(handle, "FINISHED")             # in the driver

`python -m app.tracking FOLDER [URI]` sends later what a run folder holds and MLflow does not.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from app.tracking_queue import RUN, MetricWriter, Unsent
from app.tracking_sender import SENT, Sender
from app.tracking_store import (
    PARAMS_A_CALL,
    START_LIMIT,
    RunHandle,
    artifact_root,
    bounded,
    check_reachable_from_workers,
    chunks,
    clean_name,
    connect,
    dashboard_command,
    hide_password,
    normalise_uri,
    one_line,
    send,
    short_value,
)
from pipelines.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "MetricWriter",
    "RunHandle",
    "TrackingSettings",
    "Unsent",
    "check_reachable_from_workers",
    "dashboard_command",
    "environment_tags",
    "finish",
    "log_summary",
    "normalise_uri",
    "open_run",
    "reopen_run",
    "resend",
]

Status = Literal["FINISHED", "FAILED", "KILLED"]
COMMIT_VARIABLE = "THINWIRE_GIT_COMMIT"  # set by submit: the copy on the cluster has no .git
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackingSettings:
    """Where and how a run is tracked."""

    uri: str = ""
    """MLflow tracking URI; empty: `sqlite:///<working folder>/mlflow.db`."""
    experiment: str = "thinwire"
    on_error: Literal["continue", "stop"] = "continue"
    """What to do when the server cannot be reached at the start: train with local files only, or stop."""


def open_run(
    settings: TrackingSettings,
    *,
    folder: Path,
    run_name: str = "",
    params: dict[str, Any],
    config_yaml: str,
    tags: dict[str, str],
    parent_run_id: str | None = None,
) -> RunHandle:
    """Creates the run, with its parameters (cut to 500 characters) and the whole configuration as `config.yaml`.

    All of it is also kept in `folder`/run.json, from which `resend` can make the run later. Takes at most about a
    minute, with a dead server too.

    Raises:
        UserError: the URI cannot work; or the server cannot be reached and `settings.on_error` is "stop".
    """
    uri = normalise_uri(settings.uri)
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "uri": uri,
        "run_id": "",
        "folder": str(folder),
        "started_ms": time.time_ns() // 1_000_000,
        "experiment": settings.experiment,
        "run_name": run_name,
        "params": {clean_name(k): short_value(v) for k, v in params.items()},
        "tags": {**tags, **({"mlflow.parentRunId": parent_run_id} if parent_run_id else {})},
        "config_yaml": config_yaml,
    }
    (folder / "config.yaml").write_text(config_yaml)
    try:
        record["run_id"] = bounded(lambda: _create(uri, record), START_LIMIT)
    except UserError:
        raise
    except Exception as error:  # whatever a store or its driver raises, the answer is the same
        what = f"cannot open a run at {hide_password(uri)}: {one_line(error)}"
        if settings.on_error == "stop":
            raise UserError(
                what, where="tracking.uri", fix="start the server, or set tracking.on_error=continue"
            ) from error
        log.warning("%s; training goes on, metrics are kept in %s", what, folder)
    _write_record(folder, record)
    if record["run_id"]:
        _describe(uri, record)
    return RunHandle(uri, record["run_id"], str(folder), record["started_ms"])


def finish(handle: RunHandle, status: Status, tags: dict[str, str] | None = None) -> bool:
    """Ends the run, within about 30 s; False, with a warning, if MLflow does not hear it (`resend` tells it later)."""
    folder = Path(handle.folder)
    record = _read_record(folder) if (folder / RUN).exists() else asdict(handle)
    record.update(status=status, final_tags=tags or {}, ended_ms=time.time_ns() // 1_000_000)
    folder.mkdir(parents=True, exist_ok=True)
    _write_record(folder, record)
    if not handle.run_id:
        return False
    try:
        bounded(lambda: _end(connect(handle.uri), handle.run_id, record), START_LIMIT)
    except Exception as error:  # an unreachable server must not turn a finished training into a failed one
        log.warning("MLflow run %s is not marked %s: %s", handle.run_id, status, one_line(error))
        return False
    return True


def log_summary(handle: RunHandle, metrics: dict[str, float], files: Sequence[Path]) -> bool:
    """Metrics that the driver itself found, and files as artifacts; False, with a warning, if MLflow does not take
    them within about a minute. What matters is in the files."""
    if not handle.run_id:
        return False

    def log_all() -> None:
        client, now = connect(handle.uri), time.time_ns() // 1_000_000
        send(client, handle.run_id, [(clean_name(name), value, now, 0) for name, value in metrics.items()])
        for file in files:
            client.log_artifact(handle.run_id, str(file))

    try:
        bounded(log_all, 2 * START_LIMIT)
    except Exception as error:  # a finished comparison must not fail for its tracking
        log.warning("MLflow run %s lacks its summary: %s", handle.run_id, one_line(error))
        return False
    return True


def reopen_run(folder: Path, *, config_yaml: str, tags: dict[str, str]) -> RunHandle | None:
    """The run that `open_run` made in `folder`, running again with a configuration and tags that may have changed; None
    if there is none. Its parameters stay those of the first start, which MLflow never changes."""
    if not (folder / RUN).is_file():
        return None
    record = _read_record(folder)
    record.pop("status", None)
    record.update(config_yaml=config_yaml, tags={**record["tags"], **tags})
    _write_record(folder, record)
    handle = RunHandle(record["uri"], record["run_id"], str(folder), record["started_ms"])
    if handle.run_id:
        try:
            bounded(lambda: _mark_running(connect(handle.uri), record), START_LIMIT)
        except Exception as error:  # the server is down for now: the metrics are sent when it is back
            log.warning("MLflow run %s is not marked running: %s", handle.run_id, one_line(error))
    return handle


def resend(folder: Path, uri: str = "") -> int:
    """Sends what `folder` (of one run) holds and MLflow does not: the run itself, metrics, final status.

    Args:
        uri: another store than the run was made for; a new run is then made there.

    Returns:
        The number of points sent.

    Raises:
        UserError: no run.json in `folder`, or the store still cannot be reached.
    """
    if not (folder / RUN).is_file():
        raise UserError(f"no {RUN}", where=str(folder), fix="name the folder of a run")
    record = _read_record(folder)
    target = normalise_uri(uri or record["uri"])
    try:
        if not record["run_id"] or target != record["uri"]:
            record.update(uri=target, run_id=_create(target, record))
            (folder / SENT).unlink(missing_ok=True)
            _write_record(folder, record)
            _describe(target, record)
        sender = Sender(target, record["run_id"], folder)
        while sender.step():
            pass
        if "status" in record:
            _end(connect(target), record["run_id"], record)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"cannot send to {hide_password(target)}: {one_line(error)}", where=str(folder)) from error
    return sender.sent


def environment_tags(*, world_size: int, synthetic: bool) -> dict[str, str]:
    """Tags that tell what made a run: versions, git commit, world size, and whether the data are synthetic."""
    tags = {
        "synthetic": str(synthetic).lower(),
        "world_size": str(world_size),
        "version.python": platform.python_version(),
    }
    for package in ("thinwire", "torch", "torchrec", "ray", "mlflow"):
        tags[f"version.{package}"] = package_version(package)
    commit = os.environ.get(COMMIT_VARIABLE) or git_commit(Path(__file__).parent.parent)
    if commit:
        tags["git_commit"] = tags["mlflow.source.git.commit"] = commit
    return tags


def package_version(package: str) -> str:
    """The installed version, read without importing; "missing" if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def git_commit(checkout: Path) -> str:
    """The commit of `checkout`, with `-dirty` when tracked files differ; "" if it is none, or without git."""
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip()


def _create(uri: str, record: dict[str, Any]) -> str:
    client = connect(uri)
    experiment_id = _experiment(client, uri, record["experiment"])
    run = client.create_run(
        experiment_id, start_time=record["started_ms"], tags=record["tags"], run_name=record["run_name"] or None
    )
    return run.info.run_id


def _experiment(client: MlflowClient, uri: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifact_location=artifact_root(uri))
        except MlflowException as error:
            found = client.get_experiment_by_name(name)  # another process was faster
            if found is None:
                raise error
    if found.lifecycle_stage == "deleted":
        raise UserError(
            f"experiment '{name}' is deleted",
            where="tracking.experiment",
            fix=f"another name, or `mlflow experiments restore -x {found.experiment_id}`",
        )
    return found.experiment_id


def _describe(uri: str, record: dict[str, Any]) -> None:
    """Parameters and config.yaml: worth a warning, not the run, when they fail."""
    from mlflow.entities import Param

    def describe() -> None:
        client, params = connect(uri), [Param(k, v) for k, v in record["params"].items()]
        for part in chunks(params, PARAMS_A_CALL):
            client.log_batch(record["run_id"], params=list(part), synchronous=True)
        client.log_text(record["run_id"], record["config_yaml"], "config.yaml")

    try:
        bounded(describe, START_LIMIT)
    except Exception as error:
        log.warning("MLflow run %s lacks parameters or config.yaml: %s", record["run_id"], one_line(error))


def _mark_running(client: MlflowClient, record: dict[str, Any]) -> None:
    client.update_run(record["run_id"], status="RUNNING")
    for key, value in record["tags"].items():
        client.set_tag(record["run_id"], key, value)
    if "killed" in client.get_run(record["run_id"]).data.tags:
        client.delete_tag(record["run_id"], "killed")
    client.log_text(record["run_id"], record["config_yaml"], "config.yaml")


def _end(client: MlflowClient, run_id: str, record: dict[str, Any]) -> None:
    if record["final_tags"]:
        send(client, run_id, [], record["final_tags"])
    client.set_terminated(run_id, status=record["status"], end_time=record["ended_ms"])


def _read_record(folder: Path) -> dict[str, Any]:
    # A worker on another host wrote its own run.json, with the handle alone.
    defaults = {"experiment": "thinwire", "run_name": "", "params": {}, "tags": {}, "config_yaml": ""}
    return {**defaults, **json.loads((folder / RUN).read_text())}


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    part = folder / f"{RUN}.part"
    part.write_text(json.dumps(record, indent=1))
    part.replace(folder / RUN)


if __name__ == "__main__":
    try:
        print(f"{resend(Path(sys.argv[1]), *sys.argv[2:3])} points sent")
    except (UserError, IndexError) as mistake:
        sys.exit(f"{mistake}\nusage: python -m app.tracking RUN_FOLDER [TRACKING_URI]")
