"""Sends a working folder and a command to a Ray cluster, follows the job, and tells truly how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.tracking import COMMIT_VARIABLE, git_commit
from pipelines.errors import UserError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

UPLOAD_LIMIT = 100 * 10**6  # bytes
# On top of what Ray itself leaves out (.git, .venv, venv, __pycache__) and what .gitignore and .rayignore name.
LEFT_OUT = ["/data", "/runs", "/mlruns", "/mlartifacts", "/mlflow.db*", "*.parquet", "node_modules"]
STOPPED = 130
UNREACHABLE_LIMIT = 60.0  # seconds without an answer before the job counts as lost
STOP_LIMIT = 60.0


@dataclass(frozen=True)
class Upload:
    """The files of a working folder that go to the cluster."""

    root: Path
    files: dict[Path, int]
    """Path relative to `root` -> bytes."""

    @property
    def size(self) -> int:
        return sum(self.files.values())

    def largest(self, count: int = 5) -> list[tuple[str, int]]:
        """Top-level entries with their bytes, the largest first."""
        sizes: Counter[str] = Counter()
        for path, size in self.files.items():
            sizes[path.parts[0] + ("/" if len(path.parts) > 1 else "")] += size
        return sizes.most_common(count)

    def left_out(self) -> list[str]:
        """Top-level entries of which nothing is sent."""
        return sorted(entry.name for entry in self.root.iterdir() if not self.holds(Path(entry.name)))

    def holds(self, path: Path) -> bool:
        """Whether the file, or something below the folder, is sent."""
        return any(file == path or path in file.parents for file in self.files)


def submit(
    address: str,
    working_dir: Path,
    entrypoint: Sequence[str],
    *,
    timeout: float | None = None,
    limit: int = UPLOAD_LIMIT,
) -> int:
    """Runs `entrypoint` as a job on the head of the cluster, in a copy of `working_dir`, and prints its log.

    Relative paths in the entrypoint count from the copy; one that exists here but is left out of the copy is refused.
    Ctrl-C stops the job and waits for its end.

    Args:
        address: of the job server, such as http://head:8265; stronger than RAY_ADDRESS.
        timeout: seconds after which the job is stopped.
        limit: bytes of the upload.

    Returns:
        0 only if the job succeeded; 130 if it was stopped; else the exit code of its command, or 1.

    Raises:
        UserError: no job server answers, the upload is too large, or the entrypoint names a path that is left out.
    """
    upload = collect(working_dir)
    check_size(upload, limit)
    check_paths(upload, entrypoint)
    print(f"sending {_megabytes(upload.size)} in {len(upload.files)} files from {upload.root}")
    print(f"left out: {', '.join(upload.left_out()) or 'nothing'}", flush=True)
    for noisy in ("ray._private.runtime_env", "ray.dashboard"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    client = _connect(address)
    job = _start(client, upload.root, entrypoint)
    print(f"job {job}; stop it with Ctrl-C or: ray job stop --address {address} {job}", flush=True)
    try:
        asyncio.run(_follow(client, job, timeout))
    except KeyboardInterrupt:
        print("stopping the job", flush=True)
        _stop(client, job)
    except TimeoutError:
        print(f"the job did not end within {timeout} s: stopping it", flush=True)
        _stop(client, job)
    return _conclude(client, job)


def collect(working_dir: Path) -> Upload:
    """What Ray would send of a folder, by Ray's own matcher."""
    from ray._private.ray_constants import RAY_RUNTIME_ENV_IGNORE_GITIGNORE, get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    root = working_dir.expanduser().absolute()
    if not root.is_dir():
        raise UserError("no such folder", where=str(working_dir), fix="name the folder that holds the project")
    files: dict[Path, int] = {}

    def take(path: Path) -> None:
        if path.is_file():
            files[path.relative_to(root)] = path.stat().st_size

    _dir_travel(
        root,
        [_get_excludes(root, get_runtime_env_default_excludes() + LEFT_OUT)],
        take,
        include_gitignore=os.environ.get(RAY_RUNTIME_ENV_IGNORE_GITIGNORE) != "1",
        logger=logging.getLogger(f"{__name__}.quiet"),
    )
    return Upload(root, files)


def check_size(upload: Upload, limit: int = UPLOAD_LIMIT) -> None:
    """Raises UserError with the largest entries when the upload is over `limit` bytes."""
    if upload.size > limit:
        largest = ", ".join(f"{name} {_megabytes(size)}" for name, size in upload.largest())
        raise UserError(
            f"{_megabytes(upload.size)} to send, over the limit of {_megabytes(limit)}; largest: {largest}",
            where=str(upload.root),
            fix="name in .rayignore what the cluster does not need; put data on its shared storage",
        )


def check_paths(upload: Upload, entrypoint: Sequence[str]) -> None:
    """Raises UserError for a relative path in the entrypoint that exists here and is not sent."""
    for text in _path_arguments(entrypoint):
        path = Path(text)
        if path.is_absolute() or not (upload.root / path).exists():
            continue
        inside = Path(os.path.normpath(path))
        if not upload.holds(inside):
            raise UserError(
                f"'{text}' is left out of the upload, so the job would not find it",
                where="entrypoint",
                fix="give an absolute path that all nodes of the cluster have, such as a mount",
            )


def _path_arguments(entrypoint: Sequence[str]) -> Iterator[str]:
    """Arguments that may be paths: with a slash, after an option, or after `key=`."""
    previous = ""
    for argument in entrypoint:
        value = argument.rpartition("=")[2]
        if "/" in argument or "=" in argument or previous.startswith("-"):
            yield value
        previous = argument


def _connect(address: str) -> JobSubmissionClient:
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    with _without_ray_address():
        try:
            return JobSubmissionClient(address)
        except AuthenticationError as error:
            raise UserError(
                f"{address} refuses us: {str(error).splitlines()[0]}",
                where="address",
                fix="copy the head's ~/.ray/auth_token to this machine",
            ) from error
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"no Ray job server answers at {address}: {str(error).splitlines()[0]}",
                where="address",
                fix="the address of the dashboard, such as http://head:8265 (`ray dashboard cluster.yaml` forwards it)",
            ) from error


@contextlib.contextmanager
def _without_ray_address() -> Iterator[None]:
    # Ray lets these variables win over an address given as an argument.
    names = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _start(client: JobSubmissionClient, root: Path, entrypoint: Sequence[str]) -> str:
    runtime_env: dict[str, object] = {"working_dir": str(root), "excludes": LEFT_OUT}
    if commit := git_commit(root):
        runtime_env["env_vars"] = {COMMIT_VARIABLE: commit}
    try:
        return client.submit_job(entrypoint=shlex.join(entrypoint), runtime_env=runtime_env)
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"the cluster refused the job: {reason}", where="submit") from error


async def _follow(client: JobSubmissionClient, job: str, timeout: float | None) -> None:
    """Prints the log until the job ends. Raises TimeoutError."""

    async def follow() -> None:
        try:
            async for lines in client.tail_job_logs(job):
                print(lines, end="", flush=True)
        except (RuntimeError, OSError) as error:
            print(f"the log is cut off: {error}", file=sys.stderr, flush=True)
        while not await asyncio.to_thread(_ended, client, job):
            await asyncio.sleep(1)

    async with asyncio.timeout(timeout):
        await follow()


def _ended(client: JobSubmissionClient, job: str) -> bool:
    """Whether the job has ended, or its cluster has not answered for long."""
    start = time.monotonic()
    while True:
        try:
            return client.get_job_status(job).is_terminal()
        except (RuntimeError, OSError):
            if time.monotonic() - start > UNREACHABLE_LIMIT:
                return True
            time.sleep(1)


def _stop(client: JobSubmissionClient, job: str) -> None:
    """Stops the job and waits for its end, for a minute at most."""
    end = time.monotonic() + STOP_LIMIT
    with contextlib.suppress(RuntimeError, OSError):  # it has just ended, or the head is gone
        client.stop_job(job)
    while not _ended(client, job) and time.monotonic() < end:
        time.sleep(0.5)


def _conclude(client: JobSubmissionClient, job: str) -> int:
    """Prints status and last error line; the exit code."""
    from ray.job_submission import JobStatus

    try:
        info = client.get_job_info(job)
        if info.status == JobStatus.SUCCEEDED:
            print(f"job {job} SUCCEEDED")
            return 0
        error = last_error_line(client.get_job_logs(job)) or (info.message or "").strip()
    except (RuntimeError, OSError) as lost:
        print(f"job {job} is lost: the cluster does not answer: {str(lost).splitlines()[0]}", file=sys.stderr)
        return 1
    print(f"job {job} {info.status.value}: {error}", file=sys.stderr)
    if info.status == JobStatus.STOPPED:
        return STOPPED
    return info.driver_exit_code if (info.driver_exit_code or 0) > 0 else 1


def last_error_line(text: str) -> str:
    """The last line that speaks of an error, else the last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(error|exception|killed|interrupt)\w*\b", line, re.IGNORECASE)]
    return (errors or lines or [""])[-1]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
