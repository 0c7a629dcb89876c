"""Training with hot rows on every rank, on real ranks: the same numbers as without, and the same bits on all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from app.config import load_config
from pipelines.dataset import Dataset
from pipelines.export import export_checkpoint
from pipelines.job import Job, Metrics
from pipelines.run_state import RunState
from pipelines.train import train_in_windows
from tests.ranks import run_ranks

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.xdist_group("hot_rows")]
STEPS = 200
SMALL = ["train.batch_size=64", "model.embedding_dim=8", "model.dense_layers=[16]", "model.over_layers=[16]"]
RUN = [f"train.max_steps={STEPS}", "train.epochs=100", "train.log_every=1", "train.eval_every=70"]
EXACT = ["exchange.codec=thin", "exchange.row_bound=0", "exchange.gradient_bound=0"]
PLAIN = ["exchange.codec=none"]
# C1 is replicated wholly, C3 is multi-hot, C4 has no hot row.
HOT = ["cache.hot_rows={C1: 7, C3: 60, C4: 0, C6: 50}", "cache.hot_share=0.1", "cache.audit_every=7"]
MEAN = ["model.pooling=mean", "model.table_dims={C3: 4}"]


class Hooks:
    """Keeps what it is told; checkpoints go to a folder that the ranks share."""

    def __init__(self, out: Path, resume: Path | None = None) -> None:
        self.said: list[str] = []
        self.logged: list[Metrics] = []
        self._out, self._resume = out, resume

    def say(self, text: str) -> None:
        self.said.append(text)

    def log(self, step: int, total_steps: int, metrics: Metrics) -> None:
        self.logged.append({"step": step, **metrics})

    def save(self, step: int, metrics: Metrics, write: Callable[[Path], None]) -> None:
        write(self._out / str(step))
        dist.barrier()

    def tables(self, rows: list[dict[str, Any]]) -> None:
        self.tables_of_exchange = rows

    @contextmanager
    def restore(self) -> Iterator[Path | None]:
        yield self._resume

    def series(self, name: str) -> list[float]:
        return [metrics[name] for metrics in self.logged if name in metrics]


def job_of(data: str, *assignments: str) -> Job:
    return load_config(assignments=[*SMALL, *RUN, *assignments]).job(data)


def train(data: str, out: Path, *assignments: str, resume: Path | None = None) -> dict[str, Any]:
    """To the end."""
    hooks = Hooks(out, resume)
    run = RunState(job_of(data, *assignments), hooks, torch.device("cpu"))
    bits = []
    for _ in train_in_windows(run):
        if run.hot is not None:
            run.hot.rows.settle()
            replica = run.hot.rows.replica
            bits.append([zlib.crc32(array.tobytes()) for array in (replica.rows, *replica.optimizer.state.values())])
    return {
        "losses": hooks.series("train/loss"),
        "auc": hooks.series("eval/auc"),
        "bits": bits,
        "hit_rate": hooks.series("cache/hit_rate"),
        "replaced": hooks.series("cache/replaced"),
        "replica_kb": hooks.series("wire/replica_kb"),
        "plan": next((text for text in hooks.said if "hot rows:" in text), ""),
    }


def on_a_rank(data: str, folder: str) -> dict[str, Any]:
    out, found = Path(folder), {}
    arms = {
        "plain": PLAIN,
        "plain_hot": [*PLAIN, *HOT],
        "thin_hot": [*EXACT, *HOT, "train.checkpoint_every=90"],
        "adapted": [*EXACT, *HOT, "cache.adapt_every=30", "cache.adapt_cost=0", "train.checkpoint_every=90"],
        "mean": [*PLAIN, *MEAN],
        "mean_hot": [*EXACT, *MEAN, *HOT, "exchange.path=pooled"],
        "sgd": [*EXACT, "optim.sparse=sgd"],
        "sgd_hot": [*EXACT, "optim.sparse=sgd", *HOT, "cache.adapt_every=50", "cache.adapt_cost=0"],
    }
    for name, assignments in arms.items():
        found[name] = train(data, out / name, *assignments)
    for name in ("thin_hot", "adapted"):
        found[f"{name}_resumed"] = train(data, out / f"{name}_resumed", *arms[name], resume=out / name / "90")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hot")


@pytest.fixture(scope="module")
def ranks(small_dataset: Dataset, folder: Path) -> list[dict[str, Any]]:
    return run_ranks(on_a_rank, 2, str(small_dataset.path), str(folder))


def state_of(run: Path) -> dict[str, torch.Tensor]:
    """All weights at the end."""
    file = export_checkpoint(run / str(STEPS), run / "export") / "model.pt"
    return torch.load(file, weights_only=True)["state_dict"]


PAIRS = [("plain", "plain_hot"), ("plain", "thin_hot"), ("plain", "adapted"), ("mean", "mean_hot"), ("sgd", "sgd_hot")]


@pytest.mark.slow
@pytest.mark.parametrize(("without", "hot"), PAIRS)
def test_losses_and_weights_are_those_of_a_run_without_hot_rows(
    ranks: list[dict[str, Any]], folder: Path, without: str, hot: str
) -> None:
    for rank in ranks:
        assert len(rank[hot]["losses"]) == STEPS
        assert rank[hot]["losses"] == pytest.approx(rank[without]["losses"], rel=1e-6)
        assert rank[hot]["auc"] == pytest.approx(rank[without]["auc"], abs=1e-6)
    expected = state_of(folder / without)
    for name, value in state_of(folder / hot).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
