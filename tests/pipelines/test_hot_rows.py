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
from cache.audit import DivergedReplicaError
from pipelines.dataset import Dataset
from pipelines.export import export_checkpoint
from pipelines.hot_tables import hot_counts
from pipelines.job import Job, Metrics
from pipelines.loader import Loader
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

    def names(self, prefix: str) -> list[str]:
        return sorted({name for metrics in self.logged for name in metrics if name.startswith(prefix)})

    @contextmanager
    def restore(self) -> Iterator[Path | None]:
        yield self._resume

    def series(self, name: str) -> list[float]:
        return [metrics[name] for metrics in self.logged if name in metrics]


def job_of(data: str, *assignments: str) -> Job:
    return load_config(assignments=[*SMALL, *RUN, *assignments]).job(data)


def checksums(run: RunState) -> list[int]:
    """Of the hot rows and of their optimiser's state."""
    assert run.hot is not None
    run.hot.rows.settle()
    replica = run.hot.rows.replica
    return [zlib.crc32(array.tobytes()) for array in (replica.rows, *replica.optimizer.state.values())]


def train(data: str, out: Path, *assignments: str, resume: Path | None = None, flip: int = -1) -> dict[str, Any]:
    """To the end, or to the error of an audit.

    Args:
        flip: a step after which rank 1 has another bit in its hot rows.
    """
    hooks = Hooks(out, resume)
    run = RunState(job_of(data, *assignments), hooks, torch.device("cpu"))
    bits = [checksums(run)] if run.hot else []
    error = ""
    try:
        for _ in train_in_windows(run):
            if run.hot is not None:
                bits.append(checksums(run))
                if run.position.step == flip and dist.get_rank() == 1:
                    run.hot.rows.replica.read(2)["weight"].view(np.uint32)[-1, 0] ^= 1 << 20
    except DivergedReplicaError as found:
        error = f"step {run.position.step}: {found}"
    return {
        "losses": hooks.series("train/loss"),
        "log_loss": hooks.series("eval/log_loss"),
        "bits": bits,
        "error": error,
        "hit_rates": {name: hooks.series(name) for name in hooks.names("cache/hit_rate")},
        "replaced": hooks.series("cache/replaced"),
        "replica_kb": hooks.series("wire/replica_kb"),
        "said": hooks.said,
        "pipelined": len(run.pipeline._pipelined_modules),
        "tables": getattr(hooks, "tables_of_exchange", []),
    }


SHORT = "train.max_steps=30"
ADAPT = ["cache.adapt_every=30", "cache.adapt_cost=0"]
ARMS = {
    "plain": PLAIN,
    "plain_hot": [*PLAIN, *HOT],
    "thin_hot": [*EXACT, *HOT, *ADAPT, "train.checkpoint_every=90"],
    "mean": [*PLAIN, *MEAN, SHORT],
    "mean_hot": [*EXACT, *MEAN, *HOT, "exchange.path=pooled", SHORT],
    "sgd": [*EXACT, "optim.sparse=sgd", SHORT],
    "sgd_hot": [*PLAIN, "optim.sparse=sgd", *HOT, SHORT, "cache.adapt_every=10", "cache.adapt_cost=0"],
    "lossy_hot": ["exchange.codec=thin", *HOT, SHORT],
    "all_hot": [*EXACT, "cache.hot_share=1", SHORT],
}
PAIRS = [("plain", "plain_hot"), ("plain", "thin_hot"), ("mean", "mean_hot"), ("sgd", "sgd_hot")]


def on_two_ranks(data: str, folder: str) -> dict[str, Any]:
    out = Path(folder)
    found = {name: train(data, out / name, *assignments) for name, assignments in ARMS.items()}
    saved = out / "thin_hot" / "90"
    found["resumed"] = train(data, out / "resumed", *ARMS["thin_hot"], resume=saved)
    found["without"] = train(data, out / "without", *PLAIN, "train.max_steps=120", resume=saved)
    own = [f"train.seed={dist.get_rank()}", "train.max_steps=50", "cache.audit_every=1"]
    found["own seeds"] = train(data, out / "seeds", *EXACT, *HOT, *own)
    return found


def on_three_ranks(data: str, folder: str, saved: str) -> dict[str, Any]:
    out = Path(folder)
    other = ["cache.hot_rows={C2: 9, C3: 11}", "train.max_steps=100"]
    arms = {"plain": [*PLAIN, "train.max_steps=100"], "hot": [*EXACT, *other]}
    found = {name: train(data, out / f"3_{name}", *of, resume=Path(saved)) for name, of in arms.items()}
    found["flipped"] = train(data, out / "flipped", *EXACT, *HOT, "train.max_steps=12", "cache.audit_every=5", flip=8)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hot")


@pytest.fixture(scope="module")
def ranks(small_dataset: Dataset, folder: Path) -> list[dict[str, Any]]:
    return run_ranks(on_two_ranks, 2, str(small_dataset.path), str(folder))


@pytest.fixture(scope="module")
def three(small_dataset: Dataset, folder: Path, ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    saved = folder / "thin_hot" / "90"
    return run_ranks(on_three_ranks, 3, str(small_dataset.path), str(folder), str(saved))


def state_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All weights."""
    file = export_checkpoint(checkpoint, checkpoint / "export") / "model.pt"
    return torch.load(file, weights_only=True)["state_dict"]


@pytest.mark.slow
@pytest.mark.parametrize(("without", "hot"), PAIRS)
def test_losses_and_weights_are_those_of_a_run_without_hot_rows(
    ranks: list[dict[str, Any]], folder: Path, without: str, hot: str
) -> None:
    """PC-05: prefetched batches, hot rows changed at every step, moves, and a checkpoint of all of it."""
    steps = STEPS if without == "plain" else 30
    for rank in ranks:
        assert len(rank[hot]["losses"]) == steps
        assert rank[hot]["losses"] == pytest.approx(rank[without]["losses"], rel=1e-6)
        assert rank[hot]["log_loss"] == pytest.approx(rank[without]["log_loss"], rel=1e-6)
    expected = state_of(folder / without / str(steps))
    for name, value in state_of(folder / hot / str(steps)).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_replicas_have_the_same_bits_after_every_step(ranks: list[dict[str, Any]]) -> None:
    """PC-06: also where ranks were given other seeds, and under lossy bounds."""
    first, second = ranks
    for name, arm in first.items():
        assert arm["bits"] == second[name]["bits"] and arm["error"] == ""
        assert (len(arm["bits"]) > len(arm["losses"])) == ("hot" in name or name in ("resumed", "own seeds"))
    assert len({str(bits) for bits in first["lossy_hot"]["bits"]}) == 31, "each step changes the rows"
    assert first["lossy_hot"]["losses"] == pytest.approx(first["plain"]["losses"][:30], rel=0.01)
    assert first["all_hot"]["losses"] == pytest.approx(first["plain"]["losses"][:30], rel=1e-6)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(ranks: list[dict[str, Any]], folder: Path) -> None:
    """Counts and the choice of hot rows go on too: step 90 is a multiple of 30, step 200 is not."""
    for rank in ranks:
        assert sum(rank["thin_hot"]["replaced"]) > 0
        assert rank["resumed"]["losses"] == rank["thin_hot"]["losses"][90:]
        assert rank["resumed"]["bits"][1:] == rank["thin_hot"]["bits"][91:]
    whole = state_of(folder / "thin_hot" / str(STEPS))
    for name, value in state_of(folder / "resumed" / str(STEPS)).items():
        assert torch.equal(value, whole[name]), name


@pytest.mark.slow
def test_a_checkpoint_is_that_of_a_run_without_hot_rows(
    ranks: list[dict[str, Any]], three: list[dict[str, Any]]
) -> None:
    """PC-05, PC-47: it goes on without hot rows, and with others on another number of ranks."""
    for rank in ranks:
        assert rank["without"]["losses"] == pytest.approx(rank["plain"]["losses"][90:120], rel=1e-6)
    for rank in three:
        assert len(rank["hot"]["losses"]) == 10
        assert rank["hot"]["losses"] == pytest.approx(rank["plain"]["losses"], rel=1e-6)


@pytest.mark.slow
def test_a_flipped_bit_is_named_within_one_period(three: list[dict[str, Any]]) -> None:
    """PC-06."""
    for rank in three:
        assert rank["flipped"]["error"].startswith(
            "step 10: hot rows of table table_C3, slots 0 to 59, are not the same"
        )
        assert "rank 1 differs" in rank["flipped"]["error"]


@pytest.mark.slow
def test_it_is_metered_and_described(ranks: list[dict[str, Any]]) -> None:
    hot, plain = ranks[0]["thin_hot"], ranks[0]["plain"]
    assert set(hot["hit_rates"]) == {"cache/hit_rate", *(f"cache/hit_rate/C{i}" for i in range(1, 7))}
    assert set(hot["hit_rates"]["cache/hit_rate/C1"]) == {1.0} and set(hot["hit_rates"]["cache/hit_rate/C4"]) == {0.0}
    assert 0 < min(hot["hit_rates"]["cache/hit_rate"]) <= max(hot["hit_rates"]["cache/hit_rate"]) < 1
    assert min(hot["replica_kb"]) > 0 and set(plain["replica_kb"]) == {0.0} and plain["hit_rates"] == {}
    assert hot["pipelined"] == plain["pipelined"] == 1, "ids of the next batch travel during the step"
    sent = {row["table"]: row["replica_bytes"] for row in hot["tables"] if row["path"] == "replica"}
    assert sent.keys() == {f"table_C{i}" for i in range(1, 7)}
    assert [table for table, count in sent.items() if not count] == ["table_C4"]
    said = "\n".join(hot["said"])
    assert "hot rows: 126 of " in said and " on every rank, " in said and "hot rows replaced" in said


@pytest.mark.slow
def test_hit_rates_are_those_of_a_plain_count(ranks: list[dict[str, Any]], small_dataset: Dataset) -> None:
    """PC-50: tables of unequal size and traffic; overall, it is a share of lookups and not a mean of tables."""
    hot = hot_counts(job_of("", *HOT).cache, small_dataset.table_rows)
    loaders = [
        Loader(small_dataset, "train", batch_size=64, rank=rank, world_size=2, shuffle=True).train_batches(0)
        for rank in range(2)
    ]
    for step in range(5):
        batches = [next(loader).sparse_features for loader in loaders]
        ids = {table: np.concatenate([of[table].values().numpy() for of in batches]) for table in hot}
        hits = {table: int((of < hot[table]).sum()) for table, of in ids.items()}
        rates = {f"cache/hit_rate/{table}": hits[table] / of.size for table, of in ids.items()}
        rates["cache/hit_rate"] = sum(hits.values()) / sum(of.size for of in ids.values())
        for rank in ranks:
            found = {name: series[step] for name, series in rank["thin_hot"]["hit_rates"].items()}
            assert found == pytest.approx(rates)
    for loader in loaders:
        loader.close()
