"""Bounds that move while a model is trained: by the step, and by what a shadow evaluation sees."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from app.config import load_config
from compression.exchange.sharders import links
from pipelines.dataset import Dataset
from pipelines.job import Job, Metrics
from pipelines.run_state import RunState
from pipelines.train import train_in_windows
from tests.ranks import run_ranks

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.xdist_group("moving_bounds")]
RANKS = 2


class Hooks:
    """Keeps what it is told; checkpoints go to a folder that the ranks share."""

    def __init__(self, resume: str | None = None, out: str | None = None) -> None:
        self.said: list[str] = []
        self.logged: list[tuple[int, Metrics]] = []
        self._resume, self._out = resume, out

    def say(self, text: str) -> None:
        self.said.append(text)

    def log(self, step: int, total_steps: int, metrics: Metrics) -> None:
        self.logged.append((step, metrics))

    def save(self, step: int, metrics: Metrics, write: Callable[[Path], None]) -> None:
        if self._out:
            write(Path(self._out) / str(step))
            dist.barrier()

    def tables(self, rows: list[dict[str, Any]]) -> None:
        pass

    @contextmanager
    def restore(self) -> Iterator[Path | None]:
        yield Path(self._resume) if self._resume else None

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(step, metrics[name]) for step, metrics in self.logged if name in metrics]


def job_of(data: str, *assignments: str) -> Job:
    small = ["train.batch_size=128", "model.embedding_dim=8", "model.dense_layers=[16]", "model.over_layers=[16]"]
    thin = ["exchange.codec=thin", "exchange.chain=bitpack", "train.log_every=1", "train.max_steps=20"]
    return load_config(assignments=[*small, *thin, *assignments]).job(data)


def digest(state: dict[str, Any]) -> str:
    """Of all weights that this rank holds."""
    found = hashlib.sha256()
    for key in sorted(state):
        value = state[key]
        parts = [shard.tensor for shard in value.local_shards()] if hasattr(value, "local_shards") else [value]
        for part in parts:
            found.update(part.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def train(job: Job, hooks: Hooks, spoil: int | None = None) -> str:
    """To the end; the digest of the weights. spoil: a step from which the last layer's weights are 10 times as
    large, so that an error of a row costs more."""
    run = RunState(job, hooks, torch.device("cpu"))
    for _ in train_in_windows(run):
        if run.position.step == spoil:
            with torch.no_grad():
                run.model.module.model.over_arch.model[1].weight.mul_(10)
    return digest(run.model.state_dict())


def on_a_rank(data: str, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    schedule = ["bounds.shape=step", "bounds.start=3", "bounds.steps=10", "bounds.stairs=5"]
    hooks = Hooks()
    train(job_of(data, *schedule), hooks)
    found["schedule"] = [hooks.series(f"bounds/{of}_multiplier") for of in ("row", "gradient")]
    found["sent"] = hooks.series("wire/output_dist_kb")

    loop = [*schedule, "bounds.loop_every=4", "bounds.loop_tolerance=1e-3", "train.checkpoint_every=10"]
    hooks = Hooks(out=folder)
    found["whole"] = train(job_of(data, *loop), hooks)
    found["loop"] = hooks.series("bounds/loop_multiplier")
    found["said"] = [text for text in hooks.said if "bounds of rows" in text]
    resumed = Hooks(resume=f"{folder}/10")
    found["resumed"] = train(job_of(data, *loop), resumed)
    found["resumed_loop"] = resumed.series("bounds/loop_multiplier")

    wide = ["exchange.row_bound=0.1", "bounds.loop_every=2", "bounds.loop_tolerance=1e-3"]
    hooks = Hooks()
    train(job_of(data, *wide), hooks, spoil=9)
    found["spoiled"] = hooks.series("bounds/loop_multiplier")
    found["harm"] = hooks.series("bounds/shadow_harm")

    hooks = Hooks()
    found["none"] = train(job_of(data, "bounds.loop_every=4", "exchange.codec=none"), hooks)
    found["none_loop"] = hooks.series("bounds/loop_multiplier")
    return found


def stated_again(data: str) -> dict[str, Any]:
    """A shadow evaluation changes nothing that stays: bounds, weights, mode."""
    run = RunState(job_of(data, "train.max_steps=3"), Hooks(), torch.device("cpu"))
    for _ in train_in_windows(run):
        pass
    batch = next(run.loader.train_batches(0))
    before = digest(run.model.state_dict())
    said, metrics = run.bounds.evaluate(batch)
    bounds = [str(link.rows._coding.bounds) for link in links(run.model)]
    return {
        "same": digest(run.model.state_dict()) == before and run.model.training,
        "bounds": bounds == [str(link.rows._stated.bounds) for link in links(run.model)],
        "said": said,
        "kb": metrics["bounds/shadow_kb"],
    }


@pytest.fixture(scope="module")
def ranks(small_dataset: Dataset) -> Iterator[list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        yield run_ranks(on_a_rank, RANKS, str(small_dataset.path), folder)


def test_the_schedule_is_a_function_of_the_step(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        rows, gradients = rank["schedule"]
        expected = [3.0 - 0.4 * (step // 2) for step in range(10)] + [1.0] * 10
        assert [value for _, value in rows] == pytest.approx(expected)
        assert {value for _, value in gradients} == {1.0}
        kb = [value for _, value in rank["sent"]]
        assert sum(kb[:4]) < 0.95 * sum(kb[-4:]), "wider bounds send less"


def test_the_loop_decides_alike_on_all_ranks_and_goes_on_where_it_was(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    assert first["loop"] == second["loop"] and first["said"] == second["said"]
    assert [step for step, _ in first["loop"]] == [4, 8, 12, 16, 20]
    assert first["loop"][-1][1] > 1.0, "bounds that do no harm are widened"
    assert "bounds of rows x1 cost" in first["said"][0]
    assert first["resumed_loop"] == [pair for pair in first["loop"] if pair[0] > 10]
    assert [rank["resumed"] for rank in ranks] == [rank["whole"] for rank in ranks]


def test_planted_divergence_narrows_at_the_next_evaluation(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        multipliers = dict(rank["spoiled"])
        assert multipliers[10] < multipliers[8], (rank["spoiled"], rank["harm"])
        assert dict(rank["harm"])[10] > 10 * dict(rank["harm"])[8]


def test_without_a_thin_exchange_nothing_is_looked_at(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["none_loop"] == [] for rank in ranks)


def test_a_shadow_evaluation_leaves_no_trace(small_dataset: Dataset) -> None:
    for rank in run_ranks(stated_again, RANKS, str(small_dataset.path)):
        assert rank["same"] and rank["bounds"] and rank["kb"] > 0
        assert rank["said"].startswith("bounds of rows x1 cost ")
