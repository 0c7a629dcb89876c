"""Runs independent jobs here or as Ray tasks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from pipelines.errors import UserError

_Result = TypeVar("_Result", covariant=True)


class Job(Protocol[_Result]):
    """Something to do, whose result depends on its arguments and the files they name alone."""

    def run(self) -> _Result: ...


@contextmanager
def cluster(workers: int) -> Iterator[None]:
    """A Ray cluster while the block runs, where `workers` asks for one.

    The cluster that this process is connected to stays as it is; else the running one is joined, or one is started on
    this machine and stopped at the end.
    """
    if workers == 0:
        yield
        return
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    if address:
        try:
            knock(address)
        except OSError as error:
            raise UserError(
                f"no Ray cluster answers at {address}: {error}", where="RAY_ADDRESS", fix="start it, or unset it"
            ) from error
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="warning")
    try:
        yield
    finally:
        ray.shutdown()


def knock(address: str) -> None:
    """Raises OSError in seconds where nothing listens at a Ray address; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def run_jobs(jobs: Sequence[Job[Any]], workers: int, on_done: Callable[[int], None]) -> list[Any]:
    """Results of all jobs, in their order.

    Args:
        workers: 0: one after the other in this process; N: Ray tasks, at most N at once.
        on_done: called with the index of each job that is done.

    Raises:
        UserError: the first one that a job raised.
    """
    if workers:
        return _run_on_ray(jobs, workers, on_done)
    results = []
    for i, job in enumerate(jobs):
        results.append(job.run())
        on_done(i)
    return results


def _run_on_ray(jobs: Sequence[Job[Any]], workers: int, on_done: Callable[[int], None]) -> list[Any]:
    import ray

    @ray.remote(num_cpus=1, max_retries=2)
    def task(job: Job[Any]) -> Any:
        return job.run()

    results: list[Any] = [None] * len(jobs)
    running: dict[Any, int] = {}
    waiting = iter(enumerate(jobs))
    try:
        while True:
            while len(running) < workers and (following := next(waiting, None)) is not None:
                running[task.remote(following[1])] = following[0]
            if not running:
                return results
            (done,), _ = ray.wait(list(running), num_returns=1)
            index = running.pop(done)
            results[index] = ray.get(done)
            on_done(index)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, (UserError, OSError)):
            raise cause from None
        raise
    finally:
        for left in running:
            ray.cancel(left)
        # Nothing may write on after the folder's lock is gone.
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=60)
