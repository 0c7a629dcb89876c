"""`rank.measure` as a Ray Train worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from benchmarks.exchange import rank
from benchmarks.exchange.plan import Plan
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

    def advance(done: int, total: int) -> None:
        if first:
            given.board.update.remote(done, total, {})

    def keep(result: dict[str, Any], what: str) -> None:
        if first:
            given.board.say.remote(f"measured {what}")
            ray.get(given.board.finish.remote(result | {"device": device_name(device)}))

    try:
        rank.measure(given.plan, device, advance, keep)
    except UserError as error:
        ray.get(given.board.fail.remote(error))
        raise


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)} a rank"
