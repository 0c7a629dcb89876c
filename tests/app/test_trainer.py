"""`thinwire train` on a real local Ray cluster and a real MLflow store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import mlflow
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from app.config import load_config
from benchmarks.torchrun_train import FolderHooks
from pipelines.dataset import Dataset
from pipelines.export import export_checkpoint
from pipelines.train import train
from tests.ranks import digest, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.ray]

SMALL = [
    "model.embedding_dim=8",
    "model.dense_layers=[16]",
    "model.over_layers=[16]",
    "train.batch_size=128",
    "train.log_every=5",
]


def sets(*assignments: str) -> list[str]:
    return [part for a in (*SMALL, *assignments) for part in ("--set", a)]


def steps_logged(run: Path) -> int:
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return max((json.loads(line)["step"] for line in lines if "train/loss" in line), default=0)


def mlflow_run(folder: Path, name: str) -> mlflow.entities.Run:
    client = mlflow.MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("thinwire")
    [run] = [r for r in client.search_runs([experiment.experiment_id]) if r.info.run_name == name]
    return run


def train_without_ray(data: str, out: str, assignments: list[str]) -> None:
    config = load_config(assignments=[*SMALL, *assignments])
    job = config.job(data)
    train(job, FolderHooks(Path(out)), torch.device("cpu"))


def test_the_demo_is_tracked_and_exported(thinwire, tmp_path: Path) -> None:
    command = thinwire("train", "--preset", "demo", "--name", "first", "--json", "out.json")
    assert command.wait() == 0, command.output
    result = json.loads((tmp_path / "out.json").read_text())
    assert 0.75 < result["best_auc"] - 0.02 < result["metrics"]["eval/auc"] < result["best_auc"] + 0.01
    assert result["metrics"]["memory/peak_rss_mb"] > 100
    run = mlflow_run(tmp_path, "first")
    assert run.info.run_id == result["mlflow_run_id"]
    assert run.info.status == "FINISHED"
    names = {"train/loss", "train/samples_per_s", "time/step_ms", "time/data_wait_ms", "eval/auc", "eval/ne"}
    assert names <= set(run.data.metrics)
    assert any(name.startswith("system/") for name in run.data.metrics)
    assert run.data.metrics["eval/auc"] == result["metrics"]["eval/auc"]
    assert run.data.tags["synthetic"] == "true"
    assert run.data.tags["world_size"] == "2"
    assert {"version.torch", "version.torchrec", "version.ray", "planted_best_auc"} <= set(run.data.tags)
    assert run.data.params["train.batch_size"] == "1024"
    assert "SYNTHETIC" in command.output
    assert "global batch 2,048" in command.output
    assert run.info.artifact_uri.startswith("file://") or Path(run.info.artifact_uri).is_absolute()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "output.txt", "runs"], (
        "no second store may appear"
    )

    model = mlflow.MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db").search_logged_models([run.info.experiment_id])[
        0
    ]
    assert model.source_run_id == run.info.run_id

    again = thinwire("train", "--preset", "demo", "--name", "first")
    assert again.wait() == 2
    assert "a run of this name exists" in again.output.splitlines()[-1]
    # A refused resume leaves the run as it was.
    config = (tmp_path / "runs" / "first" / "config.yaml").read_text()
    refused = thinwire("train", "--resume", "runs/first", "--set", "train.seed=1")
    assert refused.wait() == 2
    assert "train.seed is 0 in the checkpoint and 1 in this run" in refused.output.splitlines()[-1]
    assert (tmp_path / "runs" / "first" / "config.yaml").read_text() == config

    exported = thinwire("export", "runs/first", "--out", "model")
    assert exported.wait() == 0, exported.output
    assert digest(tmp_path / "model" / "model.pt") == digest(Path(result["export"]) / "model.pt")


def test_a_killed_worker_costs_nothing_but_time(thinwire, tmp_path: Path, small_dataset: Dataset) -> None:
    """The run restarts from its last checkpoint by itself and ends with the bits of an uninterrupted run; under the
    lossy exchange, inside of which its peer waits, and with hot rows, which rows the checkpoint keeps."""
    thin = ["exchange.codec=thin", "exchange.dense=thin", "cache.hot_share=0.2", "cache.adapt_every=30"]
    options = ["train.epochs=6", "train.checkpoint_every=100", *thin]
    command = thinwire("train", "--data", str(small_dataset.path), "--name", "killed", *sets(*options))
    run = tmp_path / "runs" / "killed"
    snapshot = run / "checkpoint_manager_snapshot.json"
    command.wait_until(lambda: snapshot.exists() and "checkpoint_000000" in snapshot.read_text())
    victim = command.workers()[0]
    victim.kill()
    assert command.wait() == 0, command.output
    assert "resumed at step" in command.output

    data = str(small_dataset.path)
    run_ranks(train_without_ray, 2, data, str(tmp_path / "plain"), options)
    newest = tmp_path / "plain" / (tmp_path / "plain" / "newest").read_text()
    plain = export_checkpoint(newest, tmp_path / "plain-export")
    assert digest(run / "export" / "model.pt") == digest(plain / "model.pt")
    kept = [p for p in run.iterdir() if p.name.startswith("checkpoint_0")]
    assert len(kept) == 2, "keep_checkpoints"


def test_a_stopped_run_leaves_no_worker(thinwire, tmp_path: Path, small_dataset: Dataset) -> None:
    """By Ctrl-C, which a terminal sends to the whole process group."""
    data = str(small_dataset.path)
    command = thinwire("train", "--data", data, "--name", "stopped", *sets("train.epochs=1000"))
    command.wait_until(lambda: steps_logged(tmp_path / "runs" / "stopped") > 0)
    workers = command.workers()
    assert len(workers) == 2
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.wait(30) == 130, command.output
    assert command.output.splitlines()[-1] == "thinwire: stopped"
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert mlflow_run(tmp_path, "stopped").info.status == "KILLED"


def test_a_run_whose_driver_is_killed_is_marked_killed(thinwire, tmp_path: Path, small_dataset: Dataset) -> None:
    data = str(small_dataset.path)
    command = thinwire("train", "--data", data, "--name", "dead", *sets("train.epochs=1000"))
    command.wait_until(lambda: steps_logged(tmp_path / "runs" / "dead") > 0)
    below = psutil.Process(command.process.pid).children(recursive=True)
    command.process.kill()
    _, alive = psutil.wait_procs([p for p in below if p.is_running()], timeout=30)
    assert not [p for p in alive if "RayTrainWorker" in " ".join(p.cmdline())]
    end = time.monotonic() + 30
    while mlflow_run(tmp_path, "dead").info.status != "KILLED":
        assert time.monotonic() < end
        time.sleep(0.5)


def test_one_rank_that_fails_ends_the_run_with_its_error(thinwire, tmp_path: Path, small_dataset: Dataset) -> None:
    """Rank 1 alone meets an id outside its table while rank 0 waits in the all-to-all."""
    bad = tmp_path / "bad"
    shutil.copytree(small_dataset.path, bad)
    part = bad / small_dataset.split("train").parts[0].path
    table = pq.read_table(part)
    ids = table["C4"].to_numpy().copy()
    ids[4000] = 1_000_000  # batch 15 of 256 rows: row 160 of it, which is rank 1's
    column = table.schema.get_field_index("C4")
    table = table.set_column(column, table.schema.field("C4"), pa.array(ids, pa.int32()))
    pq.write_table(table, part, row_group_size=16_384)
    command = thinwire("train", "--data", str(bad), "--name", "bad", *sets("data.shuffle=false"))
    assert command.wait() == 2
    last = command.output.splitlines()[-1]
    assert "column 'C4' has id 1000000" in last and part.name in last
    assert mlflow_run(tmp_path, "bad").info.status == "FAILED"


def test_a_diverged_run_fails_and_says_so(thinwire, tmp_path: Path, small_dataset: Dataset) -> None:
    data = str(small_dataset.path)
    command = thinwire("train", "--data", data, "--name", "nan", *sets("optim.sparse_lr=1e30"))
    assert command.wait() == 1
    assert "the loss is nan" in command.output.splitlines()[-1]
    run = mlflow_run(tmp_path, "nan")
    assert run.info.status == "FAILED"
    assert run.data.tags["diverged"] == "true"
    assert all(np.isfinite(v) and abs(v) < 1e300 for v in run.data.metrics.values())


def test_without_retries_a_killed_worker_fails_the_run(thinwire, tmp_path: Path, small_dataset: Dataset) -> None:
    """The peer sits in the all-to-all when its partner dies (ray-project/ray#22349)."""
    options = sets("train.epochs=1000", "cluster.max_failures=0")
    command = thinwire("train", "--data", str(small_dataset.path), "--name", "lost", *options)
    command.wait_until(lambda: steps_logged(tmp_path / "runs" / "lost") > 0)
    workers = command.workers()
    workers[0].kill()
    assert command.wait(90) == 1, command.output
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert mlflow_run(tmp_path, "lost").info.status == "FAILED"


def test_too_few_cpus_and_a_dead_cluster_are_named(thinwire, small_dataset: Dataset) -> None:
    command = thinwire("train", "--data", str(small_dataset.path), *sets("cluster.device=cuda"))
    assert command.wait() == 2
    assert "2 workers need a GPU each, the cluster has 0" in command.output.splitlines()[-1]
    command = thinwire("train", "--data", str(small_dataset.path), *sets("cluster.address=127.0.0.1:1"))
    assert command.wait() == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in command.output.splitlines()[-1]
