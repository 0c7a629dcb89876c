"""Where MLflow runs are kept, and how to reach that place within bounded time."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import logging
import os
import posixpath
import re
import shlex
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from filelock import FileLock, Timeout

from pipelines.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")
POINTS_A_CALL = 1000  # MLflow refuses larger batches
PARAMS_A_CALL = 100
VALUE_LIMIT = 500  # characters of a parameter: what every MLflow server accepts
START_LIMIT = 30.0  # seconds to open or close a run
SERVER_SCHEMES = ("http", "https")
DATABASE_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql")

# MLflow's own defaults wait up to an hour for a dead server. What the user has set wins.
for _name, _value in {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "8",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}.items():
    os.environ.setdefault(_name, _value)
# Its database layer logs tracebacks of errors that we report in one line.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
logging.getLogger("alembic").setLevel(logging.WARNING)
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


@dataclass(frozen=True)
class RunHandle:
    """A run, in plain strings that travel to the workers."""

    uri: str
    run_id: str
    """Empty when the tracking server could not be reached at the start: the run is then kept in `folder` only."""
    folder: str
    """Local folder of the run: run.json, config.yaml, metrics.jsonl, metrics.sent."""
    started_ms: int


def normalise_uri(uri: str) -> str:
    """The absolute tracking URI, `sqlite:///<working folder>/mlflow.db` when `uri` is empty.

    Raises:
        UserError: a directory (MLflow 3 refuses those), an unknown scheme, or an in-memory SQLite store.
    """
    if not uri:
        return f"sqlite:///{Path.cwd() / 'mlflow.db'}"
    if uri == "databricks":
        return uri
    scheme = urlsplit(uri).scheme.split("+")[0] if "://" in uri or uri.startswith("file:") else ""
    if scheme in ("", "file"):
        folder = Path(unquote(urlsplit(uri).path if scheme else uri)).expanduser().absolute()
        raise UserError(
            f"'{uri}' is a directory store, which MLflow 3 refuses",
            where="tracking.uri",
            fix=f"use sqlite:///{folder / 'mlflow.db'}; `mlflow migrate-filestore` moves an old store",
        )
    if scheme not in (*SERVER_SCHEMES, *DATABASE_SCHEMES, "databricks"):
        known = ", ".join(f"{s}://" for s in (*SERVER_SCHEMES, *DATABASE_SCHEMES))
        raise UserError(f"unknown scheme in '{uri}'", where="tracking.uri", fix=f"MLflow knows {known}")
    if scheme != "sqlite":
        return uri
    path = sqlite_path(uri)
    if path is None:
        raise UserError(
            f"'{uri}' keeps runs in memory only",
            where="tracking.uri",
            fix="name a file: sqlite:///mlflow.db is relative, sqlite:////data/mlflow.db absolute",
        )
    return f"sqlite:///{path}"


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of an SQLite store's file; None for another kind of store or one in memory."""
    match = re.match(r"sqlite(\+\w+)?:///(.+)", uri)
    return Path(match[2]).absolute() if match and match[2] != ":memory:" else None


def artifact_root(uri: str) -> str | None:
    """Folder for artifacts of new experiments: `mlartifacts` beside an SQLite file; None: the server decides."""
    path = sqlite_path(uri)
    return str(path.parent / "mlartifacts") if path else None


def dashboard_command(uri: str) -> str:
    """The command, or for a server the address, that shows the runs."""
    if uri.startswith(("http://", "https://")):
        return f"open {hide_password(uri)}"
    # Started through its path, as `make demo` does, the command's neighbour is not on PATH.
    mlflow = "mlflow" if shutil.which("mlflow") else str(Path(sys.executable).with_name("mlflow"))
    return f"{mlflow} ui --backend-store-uri {shlex.quote(hide_password(uri))}"


def hide_password(uri: str) -> str:
    """`uri` without the password that a database or server URI may carry."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", uri)


def check_reachable_from_workers(uri: str, n_nodes: int) -> None:
    """Refuses a store that only the driver's host can see. `n_nodes` counts distinct hosts.

    Raises:
        UserError: several hosts, and `uri` is a loopback address or a local file.
    """
    if n_nodes < 2:
        return
    host = urlsplit(uri).hostname or ""
    local = host == "localhost" or host.endswith(".localhost")
    with contextlib.suppress(ValueError):
        local = local or ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    if sqlite_path(uri) is None and not local:
        return
    what = "is an SQLite file on one host" if sqlite_path(uri) else "means another machine on every host"
    raise UserError(
        f"{hide_password(uri)} {what}, and the workers run on {n_nodes} hosts",
        where="tracking.uri",
        fix=f"run `mlflow server --host 0.0.0.0 --port 5000` here and set tracking.uri=http://{socket.gethostname()}:5000",
    )


def connect(uri: str) -> MlflowClient:
    """A client whose store exists: the first use of a SQLite file makes its tables, one process at a time.

    Raises:
        OSError, MlflowException and what a database driver raises: the store cannot be reached.
    """
    from mlflow import MlflowClient

    path = sqlite_path(uri)
    if path is None:
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"{path} is not writable")
    # mlflow/mlflow#6490: two processes that create the schema at once break each other.
    try:
        with FileLock(f"{path}.lock", timeout=START_LIMIT):
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.get_experiment("0")
    except Timeout as error:
        raise TimeoutError(f"{path}.lock is held by another process") from error
    return client


def bounded(call: Callable[[], T], limit: float) -> T:
    """The result of `call`, or TimeoutError after `limit` seconds; the call then goes on unheard in a daemon thread."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="thinwire-tracking-call")
    thread.start()
    thread.join(limit)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {limit:.0f} s")
    return results[0]


def module_environment() -> dict[str, str]:
    """The environment in which `python -m app...` finds this code from any folder."""
    root = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}


def clean_name(name: str) -> str:
    """`name` as MLflow accepts it. A changed name ends in a hash of the original, so two names never fall together."""
    clean = re.sub(r"[^\w/.\- ]", "_", name, flags=re.ASCII)
    clean = posixpath.normpath(clean).lstrip("/")
    clean = re.sub(r"^(\.\./?)+|^\.$", "", clean)[:240]
    if clean == name and name:
        return name
    return f"{clean or 'unnamed'}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def short_value(value: object) -> str:
    """A parameter's value as text of at most `VALUE_LIMIT` characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= VALUE_LIMIT else text[: VALUE_LIMIT - 3] + "..."


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`items` in order, in pieces of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def send(
    client: MlflowClient, run_id: str, points: Sequence[tuple[str, float, int, int]], tags: dict[str, str] | None = None
) -> None:
    """One call with at most `POINTS_A_CALL` points (name, value, time in ms, step). Sending a point twice stores it
    once."""
    from mlflow.entities import Metric, RunTag

    metrics = [Metric(name, value, time_ms, step) for name, value, time_ms, step in points]
    run_tags = [RunTag(clean_name(key), value) for key, value in (tags or {}).items()]
    client.log_batch(run_id, metrics=metrics, tags=run_tags, synchronous=True)


def one_line(error: BaseException) -> str:
    """What went wrong in at most 200 characters, without a password: of a failed request only the system's reason."""
    text = hide_password(str(error).strip() or type(error).__name__)
    reason = re.search(r"\[Errno -?\d+\] [\w ]+|[Rr]ead timed out|[Cc]onnection to \S+ timed out", text)
    return reason[0] if reason else text.splitlines()[0][:200]
