"""Ray Train workers, from their start to their end, seen from the driver."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer
from rich.console import Console

from app.board import BoardView
from app.config import ClusterOptions
from app.host_watch import HostWatch, watched

ABORT_LIMIT_S = 10.0
"""What Ray Train gets to end its workers."""


@dataclass(frozen=True)
class WorkerGroup:
    """Which workers, and where Ray keeps what they report."""

    cluster: ClusterOptions
    device: str
    """cpu or cuda."""
    name: str
    storage: str
    keep_checkpoints: int = 1
    go_on: str = "start again"
    """What to do after a lost host is back, for people."""
    label: str = "train"
    """On the progress bar."""


def run_workers(group: WorkerGroup, work: Callable[[Any], None], settings: Any, board: Any, console: Console) -> Any:
    """Call `work(settings)` on every worker, with what they tell the board shown on the console.

    Returns:
        (the last checkpoint or None, what rank 0 gave to `board.finish`).

    Raises:
        KeyboardInterrupt: Ctrl-C, or the job was stopped; no worker is left.
        LostHostError: a host is lost, and the workers did not run again in time or too often.
        CollectiveTimeoutError: ranks waited too long for others more often than `cluster.max_failures` allows.
        ray.train.TrainingFailedError: a worker failed more often than `cluster.max_failures` allows.
        Exception: what a worker gave to `board.fail`.
    """
    options = group.cluster
    trainer = make_trainer(
        watched(work, board, options.collective_timeout_s),
        settings,
        options,
        group.device,
        ray.train.RunConfig(
            name=group.name,
            storage_path=group.storage,
            failure_config=ray.train.FailureConfig(max_failures=options.max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=group.keep_checkpoints),
        ),
    )
    watch = HostWatch(options, group.device, group.go_on, board, console)
    try:
        with BoardView(board, console, group.label), watch, stop_signals():
            checkpoint = trainer.fit().checkpoint
    except (KeyboardInterrupt, ray.train.TrainingFailedError) as error:
        _, fatal = ray.get(board.outcome.remote())
        if fatal is None and not isinstance(error, KeyboardInterrupt):
            fatal = watch.blame()
        if fatal is not None:
            raise fatal from None
        raise
    final, _ = ray.get(board.outcome.remote())
    return checkpoint, final


def make_trainer(
    work: Callable[[Any], None], settings: Any, options: ClusterOptions, device: str, run: ray.train.RunConfig
) -> TorchTrainer:
    """Calls `work(settings)` on every worker that `options` asks for.

    Args:
        device: cpu or cuda.
    """
    on_gpu = device == "cuda"
    return TorchTrainer(
        work,
        train_loop_config=settings,
        torch_config=TorchConfig(
            backend="nccl" if on_gpu else "gloo", timeout_s=math.ceil(options.collective_timeout_s)
        ),
        scaling_config=ray.train.ScalingConfig(
            num_workers=options.workers,
            use_gpu=on_gpu,
            resources_per_worker={"CPU": options.cpus_per_worker} | ({"GPU": 1} if on_gpu else {}),
            placement_strategy=options.placement,
        ),
        run_config=run,
    )


@contextmanager
def stop_signals() -> Iterator[None]:
    """Make the end of a stopped `fit` a KeyboardInterrupt, whether Ctrl-C or the SIGTERM of `ray job stop` caused it.

    Ray's own handler of SIGINT aborts the workers and leaves with SystemExit(0), which would look like success.
    """
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _insisting():
            yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    # What a script starts with `&` ignores SIGINT, and so would ignore SIGTERM too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


@contextmanager
def _insisting() -> Iterator[None]:
    """Send two more SIGINTs when the first was not enough, at which Ray Train leaves without its controller.

    Its controller ends the workers after the first, unless it waits for room for them: then it answers to nothing.
    """
    caught, catch = os.pipe()
    os.set_blocking(catch, False)
    left = threading.Event()

    def insist() -> None:
        while signal.SIGINT not in os.read(caught, 64):
            if left.is_set():
                return
        for pause in (ABORT_LIMIT_S, 1.0):
            if left.wait(pause):
                return
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=insist, daemon=True, name="insist")
    thread.start()
    before = signal.set_wakeup_fd(catch)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        left.set()
        os.write(catch, b"\0")
        thread.join()
        os.close(caught)
        os.close(catch)
