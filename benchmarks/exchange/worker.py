"""`rank.measure` as a Ray Train worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from benchmarks.exchange import rank
from benchmarks.exchange.plan import Plan, settings
from pipelines.errors import UserError


@dataclass(frozen=True)
class BenchSettings:
    """What the driver hands to each worker."""

    plan: Plan
    board: Any


def work(given: BenchSettings) -> None:
    """Entry point of a worker."""
    device = ray.train.torch.get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    first = ray.train.get_context().get_world_rank() == 0
    total = len(settings(given.plan)) + given.plan.paper_point
    done = 0

    def advance(what: str) -> None:
        nonlocal done
        done += 1
        if first:
            given.board.update.remote(done, total, {})
            given.board.say.remote(f"measured {what}")

    try:
        result = rank.measure(given.plan, device, advance)
    except (UserError, RuntimeError) as error:
        # Not worth a restart: what was measured is in this process only.
        ray.get(given.board.fail.remote(error))
        raise
    if first:
        ray.get(given.board.finish.remote(result | {"device": device_name(device)}))


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)} a rank"
